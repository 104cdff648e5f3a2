//! The reconciler on real stores: the segment log and the SQLite ledger in a folder, the memory quota, a clock that the
//! test moves. Consumers are pumped by hand, so that a test says who has come how far, and can lose any of them.

mod compare_tests;
mod corrector_tests;
mod reports_tests;
mod simulation_tests;
mod sweep_tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tempfile::TempDir;

use weir_domain::attempt::AttemptNumber;
use weir_domain::fold::Fold;
use weir_domain::ids::{KeyId, PriceVersion, Region, ReservationId, TenantId};
use weir_domain::ledger::SourcePosition;
use weir_domain::money::Amounts;
use weir_domain::price::{Price, PriceBook, PriceEntry};
use weir_domain::quota::{Book, BookOptions, Correction, Reply};
use weir_domain::reconcile::CeilingPolicy;
use weir_domain::reservation::{Closing, Command, Decision, Event, Reservation, ReservationStatus, apply};
use weir_domain::testing::{LEASE_MS, NOON_MS, Request, target};
use weir_domain::usage::{Meter, Usage};
use weir_ledger::builder::{LedgerBuilder, subscription};
use weir_ledger::checkpoint::CheckpointOptions;
use weir_ledger::contract::LedgerStore;
use weir_ledger::sqlite::SqliteLedger;
use weir_quota::{MemoryQuota, QuotaError, QuotaStore, TenantReading};
use weir_runtime::clock::{Clock as _, ManualClock, SharedClock};
use weir_runtime::units::HumanDuration;
use weir_schemas::reservation_event::ReservationEvent;
use weir_schemas::usage_report::{Correlation, CorrelationKind, ReportGrain, ReportOutcome, ReportSource, UsageReport};
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{
    Delivery, Effect, EffectError, EventLog, Limits, Position, StoredRecord, Subscription, Topic, Visibility,
};

use crate::compare::compare;
use crate::corrector::{self, Corrector};
use crate::index::RecentCorrelations;
use crate::journal::Journal;
use crate::metrics::ReconcilerMetrics;
use crate::options::ReconcilerOptions;
use crate::projection::Projection;
use crate::reports::{self, Prices, ReportPorts, Reports};
use crate::sweep::Sweep;

pub(super) const HOUR_MS: i64 = 60 * 60 * 1000;

pub(super) fn tenant() -> TenantId {
    TenantId::new("acme")
}

/// Everything of one machine but the gateway.
pub(super) struct House {
    pub clock: Arc<ManualClock>,
    pub log: Arc<dyn EventLog>,
    pub store: Arc<dyn LedgerStore>,
    pub memory: Arc<MemoryQuota>,
    /// The memory quota, until a test lets it fail.
    pub quota: Arc<Flaky>,
    pub metrics: ReconcilerMetrics,
    pub policy: CeilingPolicy,
    pub index: Arc<RecentCorrelations>,
    builder: Option<LedgerBuilder>,
    _folder: TempDir,
}

impl House {
    pub async fn open() -> Self {
        let folder = TempDir::new().unwrap();
        let clock = Arc::new(ManualClock::at_ms(NOON_MS));
        let log: Arc<dyn EventLog> =
            Arc::new(SegmentLog::open(SegmentOptions::new(folder.path().join("log"))).unwrap());
        let store: Arc<dyn LedgerStore> = Arc::new(SqliteLedger::open(&folder.path().join("ledger.sqlite")).unwrap());
        let memory = Arc::new(MemoryQuota::new(Arc::clone(&clock) as SharedClock, BookOptions::default()));
        memory.open(HashMap::new(), LEASE_MS);
        let mut house = Self {
            clock,
            log,
            store,
            quota: Arc::new(Flaky { inner: Arc::clone(&memory), calls_left: AtomicI64::new(i64::MAX) }),
            memory,
            metrics: ReconcilerMetrics::default(),
            policy: CeilingPolicy::Person,
            index: Arc::default(),
            builder: None,
            _folder: folder,
        };
        house.restart_builder().await;
        house
    }

    pub fn journal(&self) -> Journal {
        Journal::new(Arc::clone(&self.log), Arc::clone(&self.clock) as SharedClock, Region::new("eu"))
    }

    pub fn projection(&self) -> Projection {
        Projection::new(Arc::clone(&self.store), Arc::clone(&self.log), Duration::ZERO)
    }

    /// A sweep as a process that has just started.
    pub fn sweep(&self) -> Sweep {
        let quota = Arc::clone(&self.quota) as Arc<dyn QuotaStore>;
        let options = ReconcilerOptions { pending_period: HumanDuration::from_ms(0), ..ReconcilerOptions::default() };
        let policies = Arc::new(self.policy);
        Sweep::new(quota, self.projection(), self.journal(), policies, self.metrics.clone(), options)
    }

    pub fn reports(&self) -> Reports {
        let ports = ReportPorts {
            quota: Arc::clone(&self.quota) as Arc<dyn QuotaStore>,
            projection: self.projection(),
            journal: self.journal(),
            prices: Arc::new(TestPrices::new()),
            index: Arc::clone(&self.index) as _,
        };
        Reports::new(ports, self.metrics.clone(), ReconcilerOptions::default())
    }

    /// A builder as a process that has just started: whatever the last one had in memory is gone.
    pub async fn restart_builder(&mut self) {
        let started = weir_ledger::start::start(&*self.log, &self.store, BookOptions::default()).await.unwrap();
        let (log, store) = (Arc::clone(&self.log), Arc::clone(&self.store));
        let clock = Arc::clone(&self.clock) as SharedClock;
        let builder = LedgerBuilder::new(started.at_builder, log, store, clock, CheckpointOptions::default());
        self.builder = Some(builder);
    }

    /// The whole process is killed and starts again: the books come from the log.
    pub async fn restart(&mut self) {
        self.memory.fence();
        let started = weir_ledger::start::start(&*self.log, &self.store, BookOptions::default()).await.unwrap();
        self.memory.open(started.books_at_end, LEASE_MS);
        self.restart_builder().await;
    }

    /// Lets `effect` read everything there is; `keeps` says whether it lives long enough to store its position.
    pub async fn pump(&self, effect: &dyn Effect, subscription: &Subscription, keeps: bool) -> Result<(), EffectError> {
        loop {
            let next = self.store.load(subscription).await.unwrap().unwrap_or(0);
            let records = self.read_from(subscription.topic, next).await;
            let Some(last) = records.last() else { return Ok(()) };
            let after = last.offset + 1;
            effect.apply(Delivery { subscription, records: &records, position: Some(after) }).await?;
            if !keeps {
                return Ok(());
            }
            self.store.store(subscription, after).await.unwrap();
        }
    }

    pub async fn read_from(&self, topic: Topic, offset: u64) -> Vec<StoredRecord> {
        let (at, limits) = (Position { topic, partition: 0, offset }, Limits::default());
        self.log.read(at, limits, Visibility::Durable).await.unwrap()
    }

    pub async fn build(&self) {
        let builder = self.builder.as_ref().unwrap();
        self.pump(builder, &subscription(0), true).await.unwrap();
    }

    pub async fn correct(&self) {
        self.pump(&self.corrector(), &of_corrector(), true).await.unwrap();
    }

    pub fn corrector(&self) -> Corrector {
        Corrector::new(Arc::clone(&self.quota) as Arc<dyn QuotaStore>, self.metrics.clone())
    }

    pub async fn take_reports(&self, reports: &Reports) {
        self.pump(reports, &of_reports(), true).await.unwrap();
    }

    /// Everybody does what there is to do, until nobody has anything left.
    pub async fn settle(&self) {
        let (sweep, reports) = (self.sweep(), self.reports());
        for _ in 0..10 {
            self.build().await;
            self.correct().await;
            self.take_reports(&reports).await;
            reports.retry_parked().await.unwrap();
            // A round with a builder that lags would only wait.
            self.build().await;
            self.correct().await;
            let round = sweep.round().await.unwrap();
            if round.acted == 0 {
                return;
            }
        }
        panic!("the sweep finds no rest");
    }

    pub async fn find(&self, id: ReservationId) -> Option<Reservation> {
        self.memory.find(&tenant(), id).await.unwrap()
    }

    pub async fn status(&self, id: ReservationId) -> Option<ReservationStatus> {
        self.find(id).await.map(|reservation| reservation.status())
    }

    /// The kinds of the events of `id` on the log, in order, with the attempt.
    pub async fn told(&self, id: ReservationId) -> Vec<String> {
        let events = self.events().await.into_iter().filter(|event| event.header().reservation == id);
        events.map(|event| format!("{} {}", event.kind().as_str(), event.event().attempt())).collect()
    }

    pub async fn events(&self) -> Vec<ReservationEvent> {
        let mut all = Vec::new();
        loop {
            let records = self.read_from(Topic::Reservations, all.len() as u64).await;
            if records.is_empty() {
                return all;
            }
            all.extend(records.iter().map(|record| ReservationEvent::decode(&record.value).unwrap()));
        }
    }

    /// The fold of the whole log, from nothing (I13). It forgets nothing, so that it needs no store to be reminded by.
    pub async fn replay(&self) -> Book {
        let mut fold = Fold::new(BookOptions { retry_horizon_ms: 1_000 * 365 * 24 * HOUR_MS });
        for (event, offset) in self.events().await.iter().zip(0..) {
            let (header, source) = (event.header(), SourcePosition { partition: 0, offset });
            fold.absorb(source, header.reservation, event.event(), header.recorded_at_ms()).unwrap();
        }
        fold.book(&tenant()).cloned().unwrap_or_default()
    }

    /// At rest the store, the ledger and a replay of the log say the same, to the last unit (I12, I13).
    pub async fn assert_agrees(&self, what: &str) {
        let comparison = compare(&*self.memory, &self.store, &tenant()).await.unwrap();
        assert!(comparison.agrees(), "{what}: {comparison:#?}");
        assert_eq!(comparison.held_by_log, comparison.held_in_store, "{what}");
        let reading = self.memory.read(&tenant()).await.unwrap();
        assert_eq!(self.replay().await.counters(), reading.counters, "{what}: a replay against the store");
    }
}

pub(super) fn of_corrector() -> Subscription {
    Subscription { consumer: Arc::from(corrector::CONSUMER), topic: Topic::Ledger, partition: 0 }
}

pub(super) fn of_reports() -> Subscription {
    Subscription { consumer: Arc::from(reports::CONSUMER), topic: Topic::UsageReports, partition: 0 }
}

/// A gateway's side of one request. It may be forgotten at any step, which is its death, or go on late.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub id: ReservationId,
    state: Option<Reservation>,
    unwritten: Vec<Event>,
}

impl Call {
    pub async fn reserve(house: &House, request: &Request) -> Self {
        let mut call = Self { id: request.id, state: None, unwritten: Vec::new() };
        let at = Request { at_ms: house.clock.now_ms(), ..request.clone() };
        assert!(call.ask(house, &at.command()).await, "{}", request.id);
        call
    }

    /// Runs a command; whether it changed something, or had done so before.
    pub async fn ask(&mut self, house: &House, command: &Command) -> bool {
        let reply = house.memory.execute(&tenant(), self.id, command).await.unwrap();
        match reply.decision {
            Decision::Change(events) => {
                self.fold(events);
                true
            }
            Decision::NoChange(_) => true,
            Decision::Denied(_) | Decision::Refused(_) | Decision::Conflict(_) => false,
        }
    }

    fn fold(&mut self, events: Vec<Event>) {
        for event in events {
            self.state = apply(self.state.take(), &event);
            if event.kind().is_some() {
                self.unwritten.push(event);
            }
        }
    }

    /// Marks an attempt at `deployment`.
    pub async fn start(
        &mut self,
        house: &House,
        number: AttemptNumber,
        deployment: &str,
        hold: Amounts,
        previous: Option<Closing>,
    ) -> bool {
        let target = target(deployment);
        self.ask(house, &Command::StartAttempt { number, hold, target, previous }).await
    }

    pub async fn append(&mut self, house: &House) {
        let Some(state) = &self.state else { return };
        let events = std::mem::take(&mut self.unwritten);
        house.journal().tell(&state.created, events).await.unwrap();
    }

    /// What closing comes to, appended; the commands are for the store afterwards.
    pub async fn append_closing(&mut self, house: &House, number: AttemptNumber, closing: Closing) -> [Command; 2] {
        let commands = [Command::CloseAttempt { number, closing }, Command::Close];
        let state = self.state.clone().unwrap();
        let events = crate::rehearsal::rehearse(&state, &commands, house.clock.now_ms());
        self.fold(events);
        self.append(house).await;
        commands
    }

    pub async fn close_store(&mut self, house: &House, commands: &[Command]) {
        house.memory.execute_all(&tenant(), self.id, commands).await.unwrap();
    }

    /// A whole orderly end.
    pub async fn finish(&mut self, house: &House, number: AttemptNumber, closing: Closing) {
        let commands = self.append_closing(house, number, closing).await;
        self.close_store(house, &commands).await;
    }
}

/// `primary` costs 10 and 30 dollars per million, `secondary` 1 and 2, in the only catalog there is.
#[derive(Debug)]
pub(super) struct TestPrices(PriceBook);

impl TestPrices {
    pub fn new() -> Self {
        let entries: Vec<PriceEntry> = serde_json::from_str(
            r#"[{"name": "primary", "terms": [{"rates": {"in.uncached": "10", "out.visible": "30"}}]},
                {"name": "secondary", "terms": [{"rates": {"in.uncached": "1", "out.visible": "2"}}]}]"#,
        )
        .unwrap();
        Self(PriceBook::new(&entries, |_| PriceVersion::new("prices-1")).unwrap())
    }
}

impl Prices for TestPrices {
    fn price(&self, version: &PriceVersion, name: &str, at_ms: i64) -> Option<Arc<Price>> {
        let is_kept = version == self.0.version();
        is_kept.then(|| self.0.price(name, at_ms).ok().cloned()).flatten()
    }
}

/// What the provider says of attempt `number`: some input, some output.
pub(super) fn report(id: ReservationId, number: AttemptNumber, input: i64, output: i64) -> UsageReport {
    UsageReport {
        report_id: format!("r-{id}-{number}"),
        revision: 1,
        adapter: "test".to_owned(),
        source: ReportSource::RequestLog,
        grain: ReportGrain::Attempt,
        provider: "".into(),
        correlation: Some(Correlation {
            kind: CorrelationKind::GatewayAttempt,
            value: crate::claim::correlation(id, number),
            reservation: None,
            attempt: None,
        }),
        window_start_ms: None,
        window_end_ms: None,
        occurred_at_ms: None,
        fetched_at_ms: NOON_MS,
        model_requested: None,
        model_reported: None,
        service_tier: None,
        request_count: None,
        meters: usage(input, output),
        cost_usd: None,
        outcome: ReportOutcome::Completed,
        reporter: "test".to_owned(),
        reason: String::new(),
    }
}

pub(super) fn usage(input: i64, output: i64) -> Usage {
    Usage::new([(Meter::InUncached, input), (Meter::OutVisible, output)]).unwrap()
}

impl House {
    pub async fn give(&self, report: UsageReport) {
        crate::import::append(&self.journal(), vec![report]).await.unwrap();
    }
}

/// A quota store that dies in the middle: after `calls_left` changes it answers no more.
#[derive(Debug)]
pub(super) struct Flaky {
    inner: Arc<MemoryQuota>,
    calls_left: AtomicI64,
}

impl Flaky {
    pub fn die_after(&self, calls: i64) {
        self.calls_left.store(calls, Ordering::SeqCst);
    }

    pub fn revive(&self) {
        self.die_after(i64::MAX);
    }

    fn pass(&self) -> Result<(), QuotaError> {
        if self.calls_left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        Err(QuotaError::Unavailable { reason: "killed by the test".to_owned() })
    }
}

#[async_trait]
impl QuotaStore for Flaky {
    async fn execute(&self, tenant: &TenantId, id: ReservationId, command: &Command) -> Result<Reply, QuotaError> {
        self.pass()?;
        self.inner.execute(tenant, id, command).await
    }

    async fn execute_all(
        &self,
        tenant: &TenantId,
        id: ReservationId,
        commands: &[Command],
    ) -> Result<Vec<Reply>, QuotaError> {
        self.pass()?;
        self.inner.execute_all(tenant, id, commands).await
    }

    async fn correct(&self, tenant: &TenantId, correction: &Correction) -> Result<Reply, QuotaError> {
        self.pass()?;
        self.inner.correct(tenant, correction).await
    }

    async fn due(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        self.inner.due(most).await
    }

    async fn pending(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        self.inner.pending(most).await
    }

    async fn find(&self, tenant: &TenantId, id: ReservationId) -> Result<Option<Reservation>, QuotaError> {
        self.inner.find(tenant, id).await
    }

    async fn read(&self, tenant: &TenantId) -> Result<TenantReading, QuotaError> {
        self.inner.read(tenant).await
    }

    async fn revoke(&self, tenant: &TenantId, key: &KeyId) -> Result<(), QuotaError> {
        self.inner.revoke(tenant, key).await
    }

    async fn now_ms(&self) -> Result<i64, QuotaError> {
        self.inner.now_ms().await
    }
}
