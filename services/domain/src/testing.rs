//! Builders and random commands that tests of several crates share.
//!
//! Only for tests: behind `cfg(test)` or the feature `testing`. Randomness is a seed, so that a failure names the run
//! that shows it, and every backend of the quota store can be driven with the very commands that drive [`Book`].

use std::sync::Arc;

use uuid::Uuid;

use crate::attempt::{AttemptNumber, Target};
use crate::calendar::{Calendar, Window, WindowKind, Zone};
use crate::ids::{DeploymentId, KeyId, ModelName, PriceVersion, ProviderId, ReservationId, TeamId, TenantId};
use crate::ledger::{LedgerLine, SourcePosition};
use crate::money::{Amounts, Charge, Hold, NanoUsd};
use crate::quota::{Book, Correction, Counting, Limit, Measure, Scope, Subject, Unit};
use crate::reservation::{Closing, Command, Created, IdempotencyRecord, PendCause, Reserve, UsageRecord};
use crate::usage::{Meter, Usage, UsageSource};

/// 2026-03-01T12:00:00Z, a Sunday.
pub const NOON_MS: i64 = 1_772_366_400_000;
pub const LEASE_MS: i64 = 60_000;
pub const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// The process that owns every reservation unless a test says otherwise.
pub const OWNER: &str = "eu/gateway-1/7";

/// Dollars from a decimal literal.
#[must_use]
pub fn usd(dollars: &str) -> NanoUsd {
    match dollars.parse() {
        Ok(amount) => amount,
        Err(_) => NanoUsd::MAX,
    }
}

#[must_use]
pub fn amounts(requests: i64, tokens: i64, dollars: &str) -> Amounts {
    Amounts::new(requests, tokens, usd(dollars))
}

/// Tokens and money of an attempt; the request is the reservation's own.
#[must_use]
pub fn of_attempt(tokens: i64, dollars: &str) -> Amounts {
    amounts(0, tokens, dollars)
}

#[must_use]
pub fn id(n: u64) -> ReservationId {
    ReservationId::new(Uuid::from_u64_pair(0x0195_0000_0000_7000, 0x8000_0000_0000_0000 | n))
}

/// A client request on its way to admission; change a field to say what a test is about.
#[derive(Debug, Clone)]
pub struct Request {
    pub id: ReservationId,
    pub tenant: TenantId,
    pub team: Option<TeamId>,
    pub key: KeyId,
    pub model: ModelName,
    pub fingerprint: [u8; 32],
    pub hold: Hold,
    pub at_ms: i64,
    /// The windows are those of a later day, for stores whose clock a test cannot move.
    pub days_ahead: i64,
    pub zone: Zone,
    pub lease_ms: i64,
    pub limits: Vec<Limit>,
    pub idempotency: Option<IdempotencyRecord>,
    pub adjust_on_mismatch: bool,
}

/// Request `n` of the tenant `acme`: one request, 2,000 tokens, $0.10.
#[must_use]
pub fn request(n: u64) -> Request {
    Request {
        id: id(n),
        tenant: TenantId::new("acme"),
        team: Some(TeamId::new("search")),
        key: KeyId::new("vk-1"),
        model: ModelName::new("fast"),
        fingerprint: [7; 32],
        hold: amounts(1, 2_000, "0.10"),
        at_ms: NOON_MS,
        days_ahead: 0,
        zone: Zone::UTC,
        lease_ms: LEASE_MS,
        limits: Vec::new(),
        idempotency: None,
        adjust_on_mismatch: false,
    }
}

impl Request {
    #[must_use]
    pub fn created(&self) -> Created {
        let scopes = Scope::of_request(self.team.as_ref(), &self.key, &self.model);
        Created {
            id: self.id,
            tenant: self.tenant.clone(),
            team: self.team.clone(),
            key: self.key.clone(),
            model: self.model.clone(),
            fingerprint: self.fingerprint,
            hold: self.hold,
            counting: Counting { scopes, windows: windows(self.at_ms + self.days_ahead * DAY_MS, self.zone) },
            price_version: PriceVersion::new("prices-1"),
            admitted_at_ms: self.at_ms,
            due_ms: self.at_ms.saturating_add(self.lease_ms),
            owner: Arc::from(OWNER),
            labels: Arc::from([]),
            end_user: None,
            idempotency: self.idempotency.clone(),
            adjust_on_mismatch: self.adjust_on_mismatch,
        }
    }

    #[must_use]
    pub fn command(&self) -> Command {
        let (created, limits) = (self.created(), self.limits.iter().cloned().collect());
        Command::Reserve(Arc::new(Reserve { created, limits, lease_ms: self.lease_ms }))
    }
}

#[must_use]
pub fn windows(at_ms: i64, zone: Zone) -> [Window; 4] {
    *Calendar::new(zone).at(at_ms).windows()
}

/// The tenant over all models.
#[must_use]
pub const fn tenant_scope() -> Scope {
    Scope { subject: Subject::Tenant, model: None }
}

/// A limit of the whole tenant; `max` in the unit of `measure`.
#[must_use]
pub const fn tenant_limit(measure: Measure, max: i64) -> Limit {
    Limit { scope: tenant_scope(), measure, max }
}

/// The tenant's budget per day.
#[must_use]
pub fn daily_budget(dollars: &str) -> Limit {
    tenant_limit(Measure::Calendar { unit: Unit::Usd, window: WindowKind::Day }, usd(dollars).nanos())
}

#[must_use]
pub fn target(name: &str) -> Arc<Target> {
    Arc::new(Target {
        deployment: DeploymentId::new(name),
        provider: ProviderId::new(name),
        upstream_model: "m-1".to_owned(),
        provider_region: "eu".to_owned(),
        price: name.to_owned(),
    })
}

/// Marks attempt `number`, which goes to the deployment `primary`.
#[must_use]
pub fn start(number: AttemptNumber, hold: Hold, previous: Option<Closing>) -> Command {
    Command::StartAttempt { number, hold, target: target("primary"), previous }
}

#[must_use]
pub const fn close_attempt(number: AttemptNumber, closing: Closing) -> Command {
    Command::CloseAttempt { number, closing }
}

/// What `source` says an attempt used; `cause` tells its reports apart.
#[must_use]
pub fn record(source: UsageSource, charge: Charge, cause: &str) -> Arc<UsageRecord> {
    Arc::new(UsageRecord {
        usage: Usage::new([(Meter::OutVisible, charge.tokens)]).unwrap_or_default(),
        source,
        charge,
        price_version: PriceVersion::new("prices-1"),
        served_tier: None,
        cause: cause.to_owned(),
    })
}

/// The provider answered, and said what it used.
#[must_use]
pub fn executed(tokens: i64, dollars: &str) -> Closing {
    Closing::Executed(record(UsageSource::Response, of_attempt(tokens, dollars), ""))
}

/// `line` on its way back to the counters.
#[must_use]
pub fn correction(line: &LedgerLine) -> Correction {
    Correction {
        reservation: line.key.reservation,
        number: line.key.attempt,
        total: line.total,
        amount: line.amount,
        counting: line.created.counting.clone(),
        admitted_at_ms: line.created.admitted_at_ms,
        source: line.source,
    }
}

/// How many random runs a test makes: `WEIR_RUNS` times as many as `usual`, for nights.
#[must_use]
pub fn runs(usual: u64) -> u64 {
    let times = std::env::var("WEIR_RUNS").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    usual.saturating_mul(times)
}

/// Seeded randomness (SplitMix64): the same seed gives the same run on every machine.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from zero up to, not including, `end`.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.roll() % if end == 0 { 1 } else { end }
    }

    pub const fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below(high.abs_diff(low) + 1).cast_signed()
    }

    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[usize::try_from(self.below(items.len() as u64)).unwrap_or_default()]
    }
}

/// One command of a random run.
#[derive(Debug, Clone)]
pub struct Step {
    pub now_ms: i64,
    pub id: ReservationId,
    pub command: Command,
}

/// An endless run of commands for one tenant: a few reservations at a time, two keys, two models, limits of every kind
/// and scope, a clock that often stands still and sometimes runs past leases and midnight. Most commands fit the
/// reservation they are for; the rest must be refused without a trace.
#[derive(Debug, Clone)]
pub struct RandomRun {
    pub dice: Dice,
    pub limits: Vec<Limit>,
    now_ms: i64,
    requests: Vec<(Request, AttemptNumber)>,
    live: Option<Live>,
}

/// How a run differs whose clock is a store's own, so that time passes by itself.
#[derive(Debug, Clone)]
struct Live {
    tenant: TenantId,
    first_n: u64,
    lease_ms: i64,
    scale: i64,
    days_ahead: i64,
}

const KEYS: [&str; 2] = ["vk-1", "vk-2"];
const MODELS: [&str; 2] = ["fast", "large"];
/// How many reservations of a run are talked to: older ones are left to their fate.
const ALIVE: usize = 5;

impl RandomRun {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let limits = random_limits(&mut dice);
        // Near the end of a day that is the end of a week too: runs cross both.
        let now_ms = NOON_MS + DAY_MS / 2 - dice.between(0, 900_000);
        Self { dice, limits, now_ms, requests: Vec::new(), live: None }
    }

    /// A run of `tenant` against a store with a clock of its own: leases of at most `lease_ms`, every amount and limit
    /// times `scale`, windows that move on by days, `Idempotency-Key`s, ids that no other `first_n` has.
    #[must_use]
    pub fn live(seed: u64, tenant: &TenantId, first_n: u64, lease_ms: i64, scale: i64) -> Self {
        let mut run = Self::new(seed);
        for limit in &mut run.limits {
            let counts_amounts = match limit.measure {
                Measure::Calendar { unit, .. } | Measure::PerMinute { unit } => unit != Unit::Requests,
                Measure::Concurrent => false,
            };
            if counts_amounts {
                limit.max = limit.max * scale + run.dice.between(-1, 1);
            }
        }
        run.live = Some(Live { tenant: tenant.clone(), first_n, lease_ms, scale, days_ahead: 0 });
        run
    }

    /// The next step of a live run, at the store's time.
    pub fn step_at(&mut self, now_ms: i64) -> Step {
        self.now_ms = now_ms;
        self.step()
    }

    /// A ledger line for one of the run's reservations, or for one that no store has a record of. Lines come twice and
    /// out of order.
    pub fn random_correction(&mut self) -> Correction {
        let at = usize::try_from(self.dice.below(self.requests.len().min(ALIVE) as u64 + 1)).unwrap_or_default();
        let known = self.requests.len().checked_sub(at + 1).map(|at| self.requests[at].0.clone());
        let request = known.unwrap_or_else(|| Request { id: id(u64::MAX >> 2), ..self.random_request() });
        let created = request.created();
        let (total, amount) = (self.random_amounts(), self.random_amounts());
        Correction {
            reservation: request.id,
            number: 1 + self.dice.below(2) as AttemptNumber,
            total: Amounts { requests: 1, ..total },
            amount,
            counting: created.counting,
            admitted_at_ms: self.now_ms - self.dice.between(0, 70_000),
            source: SourcePosition { partition: self.dice.between(0, 1) as i32, offset: self.dice.between(0, 60) },
        }
    }

    #[must_use]
    pub const fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// The windows that the next request counts in.
    #[must_use]
    pub fn newest_windows(&self) -> [Window; 4] {
        windows(self.now_ms + self.live.as_ref().map_or(0, |live| live.days_ahead) * DAY_MS, Zone::UTC)
    }

    pub fn ids(&self) -> impl Iterator<Item = ReservationId> {
        self.requests.iter().map(|(request, _)| request.id)
    }

    pub fn step(&mut self) -> Step {
        self.pass_time();
        let is_new = self.requests.is_empty() || self.dice.chance(20);
        if is_new {
            let request = self.random_request();
            let (id, command) = (request.id, request.command());
            self.requests.push((request, 0));
            return Step { now_ms: self.now_ms, id, command };
        }
        let newest = self.requests.len() - 1;
        let back = usize::try_from(self.dice.below(ALIVE as u64)).unwrap_or_default();
        let at = newest.saturating_sub(back);
        let id = self.requests[at].0.id;
        let command = self.random_command(at);
        Step { now_ms: self.now_ms, id, command }
    }

    fn pass_time(&mut self) {
        if let Some(live) = &mut self.live {
            live.days_ahead += i64::from(self.dice.chance(1)) * self.dice.between(1, 9);
            return;
        }
        self.now_ms += match self.dice.below(100) {
            0..60 => 0,
            60..80 => self.dice.between(1, 900),
            80..94 => self.dice.between(1_000, 25_000),
            94..99 => self.dice.between(LEASE_MS - 1, LEASE_MS + 5_000),
            _ => self.dice.between(3_600_000, 30 * 3_600_000),
        };
    }

    fn random_request(&mut self) -> Request {
        let n = self.requests.len() as u64 + 1;
        let team = self.dice.chance(70).then(|| TeamId::new("search"));
        let key = KeyId::from(*self.dice.pick(&KEYS));
        let model = ModelName::from(*self.dice.pick(&MODELS));
        let scopes = Scope::of_request(team.as_ref(), &key, &model);
        let limits = self.limits.iter().filter(|limit| scopes.contains(&limit.scope)).cloned().collect();
        let hold = Amounts { requests: 1, ..self.random_amounts() };
        let (at_ms, adjust_on_mismatch) = (self.now_ms, self.dice.chance(50));
        let request = Request { team, key, model, hold, at_ms, limits, adjust_on_mismatch, ..request(n) };
        let Some(live) = &self.live else { return request };
        let idempotency = self.dice.chance(30).then(|| IdempotencyRecord {
            key_hash: [self.dice.below(4) as u8; 32],
            expires_at_ms: at_ms + self.dice.between(-5, 3 * live.lease_ms),
        });
        Request {
            id: id(live.first_n + n),
            tenant: live.tenant.clone(),
            lease_ms: self.dice.between(1, live.lease_ms),
            days_ahead: live.days_ahead,
            idempotency,
            ..request
        }
    }

    pub fn random_amounts(&mut self) -> Amounts {
        let scale = self.live.as_ref().map_or(1, |live| live.scale);
        let (tokens, nanos) = (self.dice.between(0, 50) * scale, self.dice.between(0, 90) * scale);
        Amounts::new(0, tokens, NanoUsd::from_nanos(nanos))
    }

    fn random_closing(&mut self) -> Closing {
        match self.dice.below(5) {
            0 => Closing::NotExecuted,
            1 => Closing::MayHaveExecuted,
            2 => Closing::ExecutedUsageUnknown,
            _ => Closing::Executed(record(UsageSource::Response, self.random_amounts(), "")),
        }
    }

    fn random_command(&mut self, at: usize) -> Command {
        let (request, started) = &self.requests[at];
        let (mut again, limits, started) = (request.clone(), request.limits.iter().cloned().collect(), *started);
        let number = if self.dice.chance(85) { started } else { self.dice.below(4) as AttemptNumber };
        let (now_ms, hold) = (self.now_ms, self.random_amounts());
        match self.dice.below(100) {
            0..25 => {
                // Zero always fits what is free; more may need an extension first.
                let hold = if self.dice.chance(70) { self.within(again.hold) } else { hold };
                let previous = self.dice.chance(70).then(|| self.random_closing());
                let number = if self.dice.chance(85) { started + 1 } else { number };
                self.requests[at].1 = self.requests[at].1.max(number).min(5);
                start(number, hold, previous)
            }
            25..28 => Command::Correlate { number, provider_id: (*self.dice.pick(&["p-1", "p-2"])).to_owned() },
            28..36 => Command::Extend { number: started + 1, hold, limits },
            36..42 => Command::Tighten { number, hold },
            42..45 => Command::FreeSlot,
            45..55 => {
                let owner = Arc::from(if self.dice.chance(90) { OWNER } else { "eu/gateway-2/1" });
                let lease_ms = self.live.as_ref().map_or(LEASE_MS, |live| live.lease_ms);
                Command::Renew { until_ms: now_ms + self.dice.between(-lease_ms / 12, lease_ms), owner }
            }
            55..72 => close_attempt(number, self.random_closing()),
            72..82 => Command::Close,
            82..90 => Command::Pend { cause: PendCause::Expired },
            90..94 => Command::Release,
            94..97 => Command::Escalate,
            _ => {
                if self.dice.chance(30) {
                    again.fingerprint = [8; 32];
                }
                if self.live.is_some() {
                    again.at_ms = now_ms;
                }
                again.command()
            }
        }
    }

    fn within(&mut self, hold: Hold) -> Hold {
        let usd = NanoUsd::from_nanos(self.dice.between(0, hold.usd.nanos()));
        Amounts { requests: 0, tokens: self.dice.between(0, hold.tokens), usd }
    }
}

fn random_limits(dice: &mut Dice) -> Vec<Limit> {
    let subjects = [Subject::Tenant, Subject::Team(TeamId::new("search")), Subject::Key(KeyId::new("vk-1"))];
    let mut limits = Vec::new();
    for _ in 0..dice.below(6) {
        let model = dice.chance(30).then(|| ModelName::new("fast"));
        let scope = Scope { subject: dice.pick(&subjects).clone(), model };
        let window = *dice.pick(&WindowKind::ALL);
        let (measure, max) = match dice.below(6) {
            0 => (Measure::Calendar { unit: Unit::Requests, window }, dice.between(1, 20)),
            1 => (Measure::Calendar { unit: Unit::Tokens, window }, dice.between(20, 600)),
            2 => (Measure::Calendar { unit: Unit::Usd, window }, dice.between(20, 900)),
            3 => (Measure::PerMinute { unit: Unit::Requests }, dice.between(1, 6)),
            4 => (Measure::PerMinute { unit: Unit::Tokens }, dice.between(20, 200)),
            _ => (Measure::Concurrent, dice.between(1, 4)),
        };
        limits.push(Limit { scope, measure, max });
    }
    limits
}

/// How much of `limit` is taken for a reservation that counts as `counting` says.
#[must_use]
pub fn taken(book: &Book, limit: &Limit, counting: &Counting, now_ms: i64) -> i64 {
    match limit.measure {
        Measure::Calendar { unit, window: kind } => {
            let window = counting.windows.iter().find(|window| window.kind == kind);
            window.map_or(0, |window| unit.of(book.counter(&limit.scope, *window).total()))
        }
        Measure::PerMinute { unit } => match (unit, book.rate(&limit.scope, now_ms)) {
            (Unit::Requests, (requests, _)) => requests,
            (Unit::Tokens, (_, tokens)) => tokens,
            (Unit::Usd, _) => 0,
        },
        Measure::Concurrent => book.slots(&limit.scope),
    }
}
