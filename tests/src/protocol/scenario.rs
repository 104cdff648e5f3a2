//! What one search is about: how many requests and attempts, what providers do, what may fail and how often.
//!
//! A search of everything at once has no end, so each scenario allows the faults whose meeting it is about. A bound on
//! a fault is how often it may happen in one run; *when* is every possibility.

use weir_domain::reconcile::CeilingPolicy;

/// Faults still to come, each with its own bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Faults {
    /// A gateway is killed; every other step of it may also come arbitrarily late.
    pub kills: u8,
    /// The store loses its newest writes: all back to any earlier moment.
    pub rollbacks: u8,
    /// A batch of the log appears once more, at any distance.
    pub copies: u8,
    /// The corrector reads from an earlier position again.
    pub rewinds: u8,
    /// A ledger entry cannot be applied and waits for a person, with all that follow of its reservation.
    pub parks: u8,
    /// The log cannot be reached for a while: gateways write to their spools.
    pub outages: u8,
    /// Sweep or report consumer is killed between two steps.
    pub consumer_kills: u8,
    /// A rebuild gives up waiting for gateways and spools.
    pub absences: u8,
}

/// What providers' reports say of what was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportsSay {
    Nothing,
    TheTruth,
    /// One unit more than the response said.
    OneMore,
}

/// The protocol with one mistake in it: each must be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A store that lost writes goes on admitting and closing.
    NoFence,
    /// What expired with nothing on the log is taken as never sent, although the store has its mark.
    NaiveExpiry,
    /// The gateway closes in the store before its closing events are on the log.
    QuotaFirst,
    /// Every usage is added, whoever spoke before.
    LastWriter,
    /// Ledger lines reach the store without the position of their event.
    NoSourcePosition,
    /// A line at or below the applied position is dropped, although its reservation's record is there.
    PositionBeforeRecord,
    /// A correction of one attempt sets the charge of the whole reservation.
    CorrectTheWhole,
    /// What a broken stream said so far is billed as its usage.
    PartialBilled,
}

impl Mutation {
    pub const ALL: [Self; 8] = [
        Self::NoFence,
        Self::NaiveExpiry,
        Self::QuotaFirst,
        Self::LastWriter,
        Self::NoSourcePosition,
        Self::PositionBeforeRecord,
        Self::CorrectTheWhole,
        Self::PartialBilled,
    ];
}

#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: &'static str,
    /// One or two, of one tenant, each on a gateway of its own.
    pub requests: usize,
    /// How many attempts a request may make: one or two.
    pub attempts: u16,
    /// A daily budget of the tenant, in units of which a hold takes three.
    pub budget: Option<i64>,
    /// `attempt_record = "durable_first"`; otherwise `"overlap"`: the append runs beside the call.
    pub durable_first: bool,
    /// What the provider may bill for an attempt: above three is more than the hold.
    pub bills: &'static [i64],
    /// The provider may refuse: it runs nothing, and says so.
    pub refuses: bool,
    /// The answer may be lost after it ran.
    pub loses_answers: bool,
    /// The call may be lost before it ran, and nobody can tell.
    pub loses_calls: bool,
    /// A stream may break after it said what it used so far.
    pub breaks_streams: bool,
    pub reports: ReportsSay,
    pub adjust_on_mismatch: bool,
    pub ceiling: CeilingPolicy,
    /// Gateways renew leases that ended, and take back what was pended.
    pub renews: bool,
    /// Sweep and reports look, plan and append in one step; otherwise each is a step of its own, and may be stale.
    pub are_consumers_quick: bool,
    /// The builder reads what is appended in the same step; otherwise it lags as far as it likes.
    pub is_builder_quick: bool,
    /// The moments at which things happen, ms since the first; a run ends at the last one.
    pub moments_ms: &'static [i64],
    pub faults: Faults,
    pub mutation: Option<Mutation>,
}

/// Within the lease; behind it.
pub(super) const LEASE_ENDS_MS: i64 = 61_000;
/// Behind the ceiling and the retry horizon of what ended before.
pub(super) const HOUR_MS: i64 = 3_600_000;

impl Scenario {
    /// One request, one attempt, a gateway that may be killed, and reports that say the truth.
    #[must_use]
    pub const fn plain(name: &'static str) -> Self {
        Self {
            name,
            requests: 1,
            attempts: 1,
            budget: None,
            durable_first: false,
            bills: &[1, 4],
            refuses: true,
            loses_answers: true,
            loses_calls: true,
            breaks_streams: false,
            reports: ReportsSay::TheTruth,
            adjust_on_mismatch: false,
            ceiling: CeilingPolicy::Person,
            renews: false,
            are_consumers_quick: false,
            is_builder_quick: false,
            moments_ms: &[0, LEASE_ENDS_MS],
            faults: Faults {
                kills: 1,
                rollbacks: 0,
                copies: 0,
                rewinds: 0,
                parks: 0,
                outages: 0,
                consumer_kills: 0,
                absences: 0,
            },
            mutation: None,
        }
    }
}
