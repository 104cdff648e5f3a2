//! What an operator may set of the reconciler. Every bound says why it is there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use weir_runtime::units::HumanDuration;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReconcilerOptions {
    /// How often the sweep looks for leases that ended.
    pub period: HumanDuration,
    /// How often it looks through pending reservations: the corrector brings what becomes known, so this is for what it
    /// missed and for the ceiling.
    pub pending_period: HumanDuration,
    /// How old a pending reservation may become before a person, or the tenant's policy, decides.
    pub ceiling: HumanDuration,
    /// How long a report waits for its attempt before it becomes a discrepancy.
    pub parked_reports: HumanDuration,
    /// A gateway's lease: after an outage of the quota store the sweep waits this long, because nobody could renew.
    pub lease: HumanDuration,
    /// How long a round waits for the ledger's builder before it takes the projection for lagging.
    pub projection_patience: HumanDuration,
    /// How long a rebuild of lost counters waits for a gateway that does not answer, while the log does. What waits in the
    /// spool of one that is absent is then missing from the counters until it is forwarded; nothing is admitted meanwhile.
    pub rebuild_patience: HumanDuration,
    /// The longest pause after a store or the log refused.
    pub longest_pause: HumanDuration,
    /// Reservations that one round acts on: bounds what a round appends, and how long it takes.
    pub reservations_per_round: usize,
    /// Pending reservations that are listed at once: they are copies in memory.
    pub pending_listed: usize,
    /// Reports that may wait for their attempts. At the bound the feed waits, which shows as lag: so many strangers
    /// are a wrong feed, not late events.
    pub max_parked_reports: usize,
}

impl Default for ReconcilerOptions {
    fn default() -> Self {
        Self {
            period: HumanDuration::from_secs(1),
            pending_period: HumanDuration::from_secs(10),
            ceiling: HumanDuration::from_secs(24 * 60 * 60),
            parked_reports: HumanDuration::from_secs(24 * 60 * 60),
            lease: HumanDuration::from_secs(60),
            projection_patience: HumanDuration::from_secs(2),
            rebuild_patience: HumanDuration::from_secs(30),
            longest_pause: HumanDuration::from_secs(30),
            reservations_per_round: 512,
            pending_listed: 20_000,
            max_parked_reports: 10_000,
        }
    }
}
