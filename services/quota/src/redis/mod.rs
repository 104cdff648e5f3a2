//! The quota store on Redis, single or Cluster: one book for all gateways.
//!
//! The rules are not written a second time. The domain decides in this process on the record that it read or remembers;
//! one script compares (is the record still that one, is there room in every limit, is the lease over, is the key neither
//! revoked nor taken) and applies, or applies nothing and says what it found, and then the domain decides again. One
//! round trip a command in the common case. The decision record 0006 has the reasons.
//!
//! **Residual risks.** A paused old master that clients still reach counts on its own until they leave it. A failover may
//! lose the newest writes (replication is asynchronous): the fence stops everything until the book is rebuilt from the
//! log, so what is lost then is only what never came to the log.
//!
//! **Start** with `plan` (what commands come to), `step` and `lua/apply.lua` (compare and apply), then `fence`.

mod cluster;
mod fence;
mod keys;
mod link;
mod options;
mod plan;
mod recent;
mod record;
mod serve;
mod step;

pub use fence::{Begun, NodeReport, Rebuilt, TenantState, Unless};
pub use options::{RedisOptions, RedisOptionsError};

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::ledger::SourcePosition;
use weir_domain::quota::{Correction, Denial, Entry, Reply};
use weir_domain::reservation::{Command, Conflict, Decision, Event, ReservationStatus, Reserve, decide};
use weir_runtime::entropy::Entropy;

use crate::contract::QuotaError;

use keys::{Keys, directory, wanted};
use link::{Answer, Call, Link, Script, malformed};
use plan::Plan;
use recent::{Recent, Unanswered};
use record::Known;
use step::{Effect, Step, seen};

/// A client of the quota store; cheap to share, one a process.
#[derive(Debug)]
pub struct RedisQuota {
    link: Link,
    prefix: String,
    horizon_ms: i64,
    replicas: u32,
    recent: Recent,
    tenants: Mutex<HashMap<TenantId, Listed>>,
    /// Random at start, then counted: no two operations of any process have the same id.
    process: String,
    operations: AtomicU64,
}

#[derive(Debug, Clone)]
struct Listed {
    keys: Arc<Keys>,
    /// When the tenant was last put into the directory.
    at: Option<Instant>,
}

/// Names of tenants that are kept ready here; beyond it they are computed again.
const MOST_TENANTS: usize = 200_000;

/// A directory that a node lost is whole again after this time, wherever anything goes on.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// How often a step is decided again after it lost a race. Only the few processes that work on one reservation race.
const ROUNDS: usize = 64;

impl RedisQuota {
    /// Connects when it is first needed. What cannot work is refused here; what the servers lack, by
    /// [`RedisQuota::check`].
    pub fn new(options: &RedisOptions, entropy: &dyn Entropy) -> Result<Self, RedisOptionsError> {
        if options.prefix.contains(['{', '}']) {
            return Err(RedisOptionsError::Prefix(options.prefix.clone()));
        }
        let mut random = [0; 8];
        entropy.fill(&mut random);
        Ok(Self {
            link: Link::new(options)?,
            prefix: options.prefix.clone(),
            horizon_ms: i64::try_from(options.retry_horizon.as_ms()).unwrap_or(i64::MAX),
            replicas: options.replicas,
            recent: Recent::new(options.remembered),
            tenants: Mutex::default(),
            process: format!("{:x}", u64::from_le_bytes(random)),
            operations: AtomicU64::new(0),
        })
    }

    fn keys(&self, tenant: &TenantId) -> Arc<Keys> {
        let mut tenants = self.tenants.lock();
        if let Some(listed) = tenants.get(tenant) {
            return Arc::clone(&listed.keys);
        }
        if tenants.len() >= MOST_TENANTS {
            tenants.clear();
        }
        let keys = Arc::new(Keys::of(&self.prefix, tenant));
        tenants.insert(tenant.clone(), Listed { keys: Arc::clone(&keys), at: None });
        keys
    }

    fn operation(&self) -> String {
        format!("{}.{}", self.process, self.operations.fetch_add(1, Ordering::Relaxed))
    }

    /// Lists the tenant for whoever looks for leases that ended: before its first reservation, and now and then again.
    async fn list(&self, tenant: &TenantId) -> Result<(), QuotaError> {
        let listed = self.tenants.lock().get(tenant).and_then(|listed| listed.at);
        if listed.is_some_and(|at| at.elapsed() < LIST_AGAIN_AFTER) {
            return Ok(());
        }
        let directory = directory(&self.prefix, tenant);
        self.link.ask(redis::cmd("SADD").arg(directory).arg(tenant.as_str())).await?;
        if let Some(listed) = self.tenants.lock().get_mut(tenant) {
            listed.at = Some(Instant::now());
        }
        Ok(())
    }

    /// Says that a tenant without a book was asked for, so that whoever rebuilds need not look through all tenants.
    async fn want(&self, tenant: &TenantId) {
        let wanted = redis::cmd("SADD").arg(wanted(&self.prefix)).arg(tenant.as_str()).to_owned();
        if let Err(error) = self.link.ask(&wanted).await {
            tracing::debug!(%tenant, %error, "a tenant without a book could not be reported");
        }
    }

    async fn run(&self, tenant: &TenantId, script: Script, call: &Call) -> Result<Answer, QuotaError> {
        let answer = self.link.run(script, call).await;
        if let Err(QuotaError::NotValidated { .. }) = &answer {
            self.want(tenant).await;
        }
        answer
    }

    /// Runs commands of one reservation, in as few steps as they need.
    async fn commands(
        &self,
        tenant: &TenantId,
        id: ReservationId,
        commands: &[Command],
    ) -> Result<Vec<Reply>, QuotaError> {
        if commands.iter().any(|command| matches!(command, Command::Reserve(_))) {
            self.list(tenant).await?;
        }
        let keys = self.keys(tenant);
        let (operation, known) = match self.recent.take_unanswered(id, commands) {
            Some(unanswered) => (unanswered.operation, unanswered.known),
            None => (self.operation(), self.recent.known(id)),
        };
        let mut turn = Turn { store: self, tenant, id, keys: &keys, known, operation, frees: None };
        let mut replies = Vec::with_capacity(commands.len());
        for _ in 0..ROUNDS.max(2 * commands.len()) {
            if replies.len() == commands.len() {
                return Ok(replies);
            }
            if let Err(error) = turn.step(commands, &mut replies).await {
                if matches!(error, QuotaError::Unavailable { .. }) {
                    let Turn { known, operation, .. } = turn;
                    let unanswered = Unanswered { commands: commands.to_vec(), operation, known };
                    self.recent.note_unanswered(id, unanswered);
                }
                return Err(error);
            }
        }
        Err(QuotaError::Unavailable { reason: format!("reservation {id} is contended") })
    }

    /// Applies a ledger line, whoever has the record.
    async fn corrected(&self, tenant: &TenantId, correction: &Correction) -> Result<Reply, QuotaError> {
        let id = correction.reservation;
        let keys = self.keys(tenant);
        let mut known = self.recent.known(id);
        let operation = self.operation();
        for _ in 0..ROUNDS {
            let (decision, after) = match &known {
                Some(known) => corrected_entry(&known.entry, correction),
                None => {
                    let event = Event::ChargeCorrected { number: correction.number, total: correction.total };
                    (Decision::Change(vec![event]), None)
                }
            };
            let status = after.as_ref().map(|entry| entry.reservation.status());
            let status = status.or_else(|| known.as_ref().map(|known| known.entry.reservation.status()));
            let effect = match (&known, &after) {
                (_, Some(after)) => Effect::Write(after),
                (Some(_), None) => Effect::Look,
                (None, None) => Effect::Charge {
                    counting: &correction.counting,
                    admitted_at_ms: correction.admitted_at_ms,
                    amount: correction.amount,
                },
            };
            let source = Some(correction.source);
            let call = self.plain_step(tenant, id, known.as_ref(), &operation, effect, source).call(&keys)?;
            let answer = self.run(tenant, Script::Apply, &call).await?;
            let reply = |decision, status| Reply {
                reservation: id,
                decision,
                status,
                now_ms: answer.now_ms,
                rates: Default::default(),
            };
            match answer.word.as_str() {
                "done" => {
                    if let Some(entry) = after {
                        self.recent.remember(id, Known { version: operation, entry });
                    }
                    return Ok(reply(decision, status));
                }
                "applied" => return Ok(reply(Decision::NoChange(ReservationStatus::Settled), None)),
                "stale" => known = self.newest(tenant, id, &answer)?,
                _ => return Err(malformed("a known word")),
            }
        }
        Err(QuotaError::Unavailable { reason: format!("reservation {id} is contended") })
    }

    fn plain_step<'a>(
        &self,
        tenant: &'a TenantId,
        id: ReservationId,
        known: Option<&'a Known>,
        operation: &'a str,
        effect: Effect<'a>,
        source: Option<SourcePosition>,
    ) -> Step<'a> {
        let horizon_ms = self.horizon_ms;
        Step {
            tenant,
            id,
            known,
            operation,
            effect,
            question: None,
            creates: None,
            if_over: false,
            frees: None,
            source,
            horizon_ms,
        }
    }

    /// The record that won.
    fn newest(&self, tenant: &TenantId, id: ReservationId, stale: &Answer) -> Result<Option<Known>, QuotaError> {
        self.recent.forget(id);
        match stale.rest(0).bytes() {
            [] => Ok(None),
            record => record::read(tenant, id, record).map(Some),
        }
    }
}

/// What a ledger line makes of a record: the decision and the entry afterwards, if anything of it changes.
fn corrected_entry(entry: &Entry, correction: &Correction) -> (Decision, Option<Entry>) {
    let Correction { number, total, source, .. } = *correction;
    if entry.confirmed_until(number).is_some_and(|offset| offset >= source.offset) {
        return (Decision::NoChange(entry.reservation.status()), None);
    }
    // A line of an earlier place does not stand in its way.
    let mut before = entry.clone();
    before.confirmed.retain(|(confirmed, _)| *confirmed != number);
    let plan = Plan::of(Some(&before), &[Command::Correct { number, total }], 0);
    let decision = plan.decided.into_iter().next().map(|(decision, _)| decision);
    let mut after = plan.after.unwrap_or(before);
    after.confirm(number, source.offset);
    after.leaving = after.may_go();
    (decision.unwrap_or(Decision::NoChange(entry.reservation.status())), Some(after))
}

/// Commands of one reservation on their way through the store.
struct Turn<'a> {
    store: &'a RedisQuota,
    tenant: &'a TenantId,
    id: ReservationId,
    keys: &'a Keys,
    known: Option<Known>,
    operation: String,
    frees: Option<(ReservationId, String)>,
}

impl Turn<'_> {
    /// One call of the store; adds the replies that it settles, none after a lost race.
    async fn step(&mut self, commands: &[Command], replies: &mut Vec<Reply>) -> Result<(), QuotaError> {
        let rest = &commands[replies.len()..];
        let mut plan = Plan::of(self.known.as_ref().map(|known| &known.entry), rest, 0);
        if let Some(after) = plan.after.as_mut().filter(|_| plan.changes) {
            after.leaving = after.may_go();
        }
        let effect = match plan.after.as_ref().filter(|_| plan.changes) {
            Some(after) => Effect::Write(after),
            None => Effect::Look,
        };
        let step = Step {
            question: plan.question.as_ref(),
            creates: plan.creates.as_deref(),
            if_over: plan.if_over,
            frees: self.frees.as_ref(),
            ..self.store.plain_step(self.tenant, self.id, self.known.as_ref(), &self.operation, effect, None)
        };
        let answer = self.store.run(self.tenant, Script::Apply, &step.call(self.keys)?).await?;
        match answer.word.as_str() {
            "done" => self.done(plan, rest, &answer, replies)?,
            "stale" => self.known = self.store.newest(self.tenant, self.id, &answer)?,
            "denied" => replies.push(self.denied(&plan, &rest[0], &answer)?),
            "early" => replies.push(self.decided_again(&rest[0], &answer)),
            "revoked" => replies.extend(plan.creates.as_deref().map(|reserve| self.revoked(reserve, &answer))),
            "held" => replies.extend(self.held(plan.creates.as_deref(), &answer).await?),
            "skewed" => return Err(skew(plan.creates.as_deref(), &answer)),
            _ => return Err(malformed("a known word")),
        }
        Ok(())
    }

    fn done(
        &mut self,
        plan: Plan,
        rest: &[Command],
        answer: &Answer,
        replies: &mut Vec<Reply>,
    ) -> Result<(), QuotaError> {
        // A creation was planned without the store's time; with it the same commands give the events as they are.
        let plan = match plan.creates {
            Some(_) => Plan::of(None, &rest[..plan.taken()], answer.rest(0).number()?),
            None => plan,
        };
        let rates = match &plan.question {
            Some(question) => seen(question, answer.rest(2).list())?.standings(&question.limits, answer.now_ms),
            None => Default::default(),
        };
        for (at, (decision, status)) in plan.decided.into_iter().enumerate() {
            let shows_rates = matches!(
                (at, &rest[at], &decision),
                (0, Command::Reserve(_), Decision::Change(_) | Decision::NoChange(_))
            );
            let rates = if shows_rates { rates } else { Default::default() };
            replies.push(Reply { reservation: self.id, decision, status, now_ms: answer.now_ms, rates });
        }
        if let Some(mut entry) = plan.after.filter(|_| plan.changes) {
            entry.leaving = entry.may_go();
            let operation = self.store.operation();
            let known = Known { version: std::mem::replace(&mut self.operation, operation), entry };
            self.store.recent.remember(self.id, known.clone());
            self.known = Some(known);
        }
        Ok(())
    }

    /// A limit has no room: which one, and for how long, is the domain's to say.
    fn denied(&self, plan: &Plan, command: &Command, answer: &Answer) -> Result<Reply, QuotaError> {
        let question = plan.question.as_ref().ok_or_else(|| malformed("a question"))?;
        let seen = seen(question, answer.rest(0).list())?;
        let state = self.known.as_ref().map(|known| &known.entry.reservation);
        let decision = decide(state, &seen, command, answer.now_ms);
        if !matches!(decision, Decision::Denied(_)) {
            return Err(malformed("the limit that denied"));
        }
        let rates = match command {
            Command::Reserve(_) => seen.standings(&question.limits, answer.now_ms),
            _ => Default::default(),
        };
        Ok(Reply { rates, ..self.reply(decision, answer.now_ms) })
    }

    /// The lease had not ended, by the store's clock.
    fn decided_again(&self, command: &Command, answer: &Answer) -> Reply {
        let state = self.known.as_ref().map(|known| &known.entry.reservation);
        let decision = decide(state, &weir_domain::quota::Seen::default(), command, answer.now_ms);
        self.reply(decision, answer.now_ms)
    }

    fn revoked(&self, reserve: &Reserve, answer: &Answer) -> Reply {
        let denial = Box::new(Denial::revoked(&reserve.created.key));
        self.reply(Decision::Denied(denial), answer.now_ms)
    }

    /// The `Idempotency-Key` is tied to another reservation, unless that one was released or is forgotten.
    async fn held(&mut self, reserve: Option<&Reserve>, answer: &Answer) -> Result<Option<Reply>, QuotaError> {
        let holder: [u8; 16] = answer.rest(0).bytes().try_into().map_err(|_| malformed("the holder of a key"))?;
        let holder = ReservationId::from_bytes(holder);
        let known = self.store.fetch(self.tenant, holder).await?;
        let reserve = reserve.ok_or_else(|| malformed("a reservation"))?;
        let Some(known) = known else {
            self.frees = Some((holder, "-".to_owned()));
            return Ok(None);
        };
        let status = known.entry.reservation.status();
        if status == ReservationStatus::Released {
            self.frees = Some((holder, known.version));
            return Ok(None);
        }
        let is_same = known.entry.reservation.created.fingerprint == reserve.created.fingerprint;
        let decision = if is_same { Decision::NoChange(status) } else { Decision::Conflict(Conflict::Fingerprint) };
        Ok(Some(Reply { reservation: holder, status: Some(status), ..self.reply(decision, answer.now_ms) }))
    }

    fn reply(&self, decision: Decision, now_ms: i64) -> Reply {
        let status = self.known.as_ref().map(|known| known.entry.reservation.status());
        Reply { reservation: self.id, decision, status, now_ms, rates: Default::default() }
    }
}

fn skew(reserve: Option<&Reserve>, answer: &Answer) -> QuotaError {
    let caller_ms = reserve.map_or(answer.now_ms, |reserve| reserve.created.admitted_at_ms);
    QuotaError::ClockSkewed { by_ms: caller_ms.saturating_sub(answer.now_ms) }
}
