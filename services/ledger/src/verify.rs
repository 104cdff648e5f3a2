//! `replay --verify`: the log folded from its first record, compared with what is stored (I13).
//!
//! Nothing of the builder's state is used: every line, every row and every counter is made again from the events and
//! compared to the last unit. It reads segment files and the ledger's file beside the running process; what the builder
//! has not reached yet is folded for the counters and not looked for in the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::Path;

use bytes::Bytes;
use thiserror::Error;

use weir_domain::calendar::{Window, WindowKind};
use weir_domain::fold::Fold;
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::ledger::{LedgerLine, LineKey, SourcePosition};
use weir_domain::money::Amounts;
use weir_domain::quota::{Book, BookOptions, Counter, CounterReading, Scope};
use weir_streams::consumer::StoreError;
use weir_streams::segment::{OpenError, read_folder};
use weir_streams::{EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

use crate::builder::subscription;
use crate::contract::{Change, Count, LedgerError, LedgerStore, StoredReservation, first_difference};
use crate::projection::{AbsorbError, Projection};

/// Counters as a quota store reports them, by tenant.
pub type Counters = HashMap<TenantId, Vec<CounterReading>>;

/// What is verified, and how much is told.
#[derive(Debug, Clone, Copy)]
pub struct VerifyOptions<'a> {
    /// Those that the process runs with.
    pub book: BookOptions,
    /// Compared with the fold at the end of the log; take them while nothing is admitted.
    pub counters: Option<&'a Counters>,
    /// How many differences are kept for printing; the others are counted.
    pub most_differences: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    pub events: u64,
    pub reservations: u64,
    /// Lines that the log makes, up to where the builder stands.
    pub lines: u64,
    pub charged: Amounts,
    pub counters: u64,
    /// Records that were left out: parked, skipped, or damaged beyond reading.
    pub left_out: u64,
    /// Records behind the builder's position.
    pub not_built_yet: u64,
    /// The first differences, in the order of the log.
    pub differences: Vec<Difference>,
    pub more_differences: u64,
}

/// Where the store and the log disagree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Difference {
    ReservationMissing(ReservationId),
    LineMissing(LineKey),
    LineNotInLog(LineKey),
    Line {
        key: LineKey,
        field: &'static str,
    },
    Reservation {
        id: ReservationId,
        field: &'static str,
    },
    EventMissing {
        id: ReservationId,
        source: SourcePosition,
    },
    EventNotInLog {
        id: ReservationId,
        source: SourcePosition,
    },
    /// The stored rows are more or fewer than the log makes.
    Count {
        stored: Count,
        reservations: u64,
        lines: u64,
    },
    /// The lines do not sum to the counter (I12).
    Sum {
        tenant: TenantId,
        scope: Scope,
        window: Window,
        lines: Amounts,
        counter: Amounts,
    },
    Counter {
        tenant: TenantId,
        scope: Scope,
        window: Window,
        folded: Box<Counter>,
        given: Box<Counter>,
    },
}

/// Why the log could not be verified to its end.
#[derive(Debug, Error)]
pub enum VerifyError {
    #[error("the log cannot be read")]
    Log(#[from] OpenError),
    #[error("the log cannot be read")]
    Read(#[from] ReadError),
    #[error("the ledger cannot be read")]
    Store(#[from] LedgerError),
    #[error("the ledger's positions cannot be read")]
    Positions(#[from] StoreError),
}

/// Records folded between two comparisons: bounds memory, and looks each reservation up about once.
const CHUNK: usize = 8192;
/// The embedded log has one partition.
const PARTITION: u32 = 0;

/// Verifies the log by its contract, whatever keeps it: what is built of every partition first, then the rest, so that
/// what nobody has stored yet is looked for nowhere.
///
/// # Errors
/// [`VerifyError`].
pub async fn verify_log(
    log: &dyn EventLog,
    store: &dyn LedgerStore,
    options: VerifyOptions<'_>,
) -> Result<VerifyReport, VerifyError> {
    let partitions = log.partitions(Topic::Reservations);
    let mut verifier = Verifier::new(store, partitions, options).await?;
    let mut ends = Vec::new();
    for partition in 0..partitions {
        let offsets = log.offsets(Topic::Reservations, partition).await?;
        let built_until = verifier.built_until(partition).clamp(offsets.start, offsets.durable);
        verifier.take_all(log, partition, offsets.start..built_until).await?;
        verifier.compare_pending().await?;
        ends.push(built_until..offsets.durable);
    }
    for (partition, rest) in (0..).zip(ends) {
        verifier.take_all(log, partition, rest).await?;
    }
    verifier.finish().await
}

/// Verifies the embedded log in `log_folder`, which may be in use.
///
/// # Errors
/// [`VerifyError`].
pub async fn verify_folder(
    log_folder: &Path,
    store: &dyn LedgerStore,
    options: VerifyOptions<'_>,
) -> Result<VerifyReport, VerifyError> {
    // The position first: every record before it is in the files by then.
    let mut verifier = Verifier::new(store, 1, options).await?;
    for frame in read_folder(log_folder, Topic::Reservations)? {
        let frame = frame?;
        for (offset, value) in (frame.base_offset..).zip(frame.values) {
            let key = frame.key.clone();
            verifier.take(StoredRecord { partition: PARTITION, offset, key, value, time_ms: frame.time_ms }).await?;
        }
    }
    verifier.finish().await
}

struct Verifier<'a> {
    store: &'a dyn LedgerStore,
    options: VerifyOptions<'a>,
    projection: Projection,
    /// Where the builder stood at the beginning.
    built_until: Vec<u64>,
    parked: HashMap<Bytes, u64>,
    since_comparison: usize,
    /// The offsets since then.
    chunk: RangeInclusive<i64>,
    sums: HashMap<TenantId, BTreeMap<(Scope, Window), Amounts>>,
    report: VerifyReport,
}

impl<'a> Verifier<'a> {
    async fn new(store: &'a dyn LedgerStore, partitions: u32, options: VerifyOptions<'a>) -> Result<Self, VerifyError> {
        let (mut built_until, mut parked) = (Vec::new(), HashMap::new());
        for partition in 0..partitions {
            let of = subscription(partition);
            built_until.push(store.load(&of).await?.unwrap_or(0));
            parked.extend(store.list(&of).await?.into_iter().map(|parked| (parked.key, parked.offset)));
        }
        Ok(Self {
            store,
            options,
            projection: Projection::new(Fold::new(options.book), i64::MIN),
            built_until,
            parked,
            since_comparison: 0,
            chunk: 0..=0,
            sums: HashMap::new(),
            report: VerifyReport::default(),
        })
    }

    fn built_until(&self, partition: u32) -> u64 {
        usize::try_from(partition).ok().and_then(|at| self.built_until.get(at)).copied().unwrap_or(0)
    }

    async fn take_all(&mut self, log: &dyn EventLog, partition: u32, range: Range<u64>) -> Result<(), VerifyError> {
        let mut offset = range.start;
        while offset < range.end {
            let at = Position { topic: Topic::Reservations, partition, offset };
            let records = log.read(at, Limits::default(), Visibility::Durable).await?;
            let Some(last) = records.last() else { break };
            offset = last.offset + 1;
            for record in records.into_iter().filter(|record| record.offset < range.end) {
                self.take(record).await?;
            }
        }
        Ok(())
    }

    async fn take(&mut self, record: StoredRecord) -> Result<(), VerifyError> {
        let is_built = record.offset < self.built_until(record.partition);
        if self.since_comparison >= CHUNK || !is_built {
            self.compare_pending().await?;
        }
        self.report.not_built_yet += u64::from(!is_built);
        if self.parked.get(&record.key).is_some_and(|from| record.offset >= *from) {
            self.report.left_out += 1;
            return Ok(());
        }
        match self.projection.absorb(self.store, &record).await {
            Ok(is_first) => {
                self.report.events += 1;
                self.report.reservations += u64::from(is_first);
            }
            Err(AbsorbError::Poison(_)) => self.report.left_out += 1,
            Err(AbsorbError::Store(error)) => return Err(error.into()),
        }
        // What is not built stays pending to the end: nobody has stored it, and a later event may ask for it.
        if is_built {
            let offset = i64::try_from(record.offset).unwrap_or(i64::MAX);
            self.chunk = if self.since_comparison == 0 { offset..=offset } else { *self.chunk.start()..=offset };
            self.since_comparison += 1;
        }
        Ok(())
    }

    async fn compare_pending(&mut self) -> Result<(), VerifyError> {
        if self.since_comparison == 0 {
            return Ok(());
        }
        self.since_comparison = 0;
        let chunk = self.chunk.clone();
        for change in self.projection.take_changes().iter() {
            let id = change.reservation.created.id;
            self.add_up(change);
            let mut found = |difference| self.report.add(difference, self.options);
            match self.store.find(id).await? {
                Some(stored) => compare(change, &stored, &chunk, &mut found),
                None => found(Difference::ReservationMissing(id)),
            }
        }
        self.projection.stored();
        Ok(())
    }

    fn add_up(&mut self, change: &Change) {
        for line in &change.lines {
            self.report.lines += 1;
            self.report.charged += line.amount;
            let counting = &line.created.counting;
            let sums = self.sums.entry(line.created.tenant.clone()).or_default();
            for (scope, window) in counting.counters() {
                *sums.entry((scope.clone(), window)).or_default() += line.amount;
            }
        }
    }

    async fn finish(mut self) -> Result<VerifyReport, VerifyError> {
        self.compare_pending().await?;
        if self.report.not_built_yet == 0 {
            self.compare_count().await?;
        }
        let rest = self.projection.take_changes();
        rest.iter().for_each(|change| self.add_up(change));
        let fold = self.projection.into_fold();
        for (tenant, book) in fold.books() {
            let newest = newest_windows(book);
            let sums = self.sums.get(tenant);
            for reading in book.counters().into_iter().filter(|reading| is_kept(reading, &newest)) {
                self.report.counters += 1;
                let CounterReading { scope, window, counter } = reading;
                let key = (scope, window);
                let lines = sums.and_then(|sums| sums.get(&key)).copied().unwrap_or_default();
                if lines != counter.charged {
                    let ((scope, window), counter) = (key, counter.charged);
                    let difference = Difference::Sum { tenant: tenant.clone(), scope, window, lines, counter };
                    self.report.add(difference, self.options);
                }
            }
        }
        if let Some(given) = self.options.counters {
            compare_counters(&fold, given, &mut |difference| self.report.add(difference, self.options));
        }
        Ok(self.report)
    }

    /// Only at rest: a running builder adds rows while this reads.
    async fn compare_count(&mut self) -> Result<(), VerifyError> {
        let stored = self.store.count().await?;
        let mut built_until = Vec::new();
        for (partition, _) in (0..).zip(&self.built_until) {
            built_until.push(self.store.load(&subscription(partition)).await?.unwrap_or(0));
        }
        let (reservations, lines) = (self.report.reservations, self.report.lines);
        let is_equal =
            (stored.reservations, stored.lines, stored.charged) == (reservations, lines, self.report.charged);
        if built_until == self.built_until && !is_equal {
            self.report.add(Difference::Count { stored, reservations, lines }, self.options);
        }
        Ok(())
    }
}

/// Compares what the log made of a reservation in one chunk with what is stored of it.
fn compare(
    change: &Change,
    stored: &StoredReservation,
    chunk: &RangeInclusive<i64>,
    found: &mut dyn FnMut(Difference),
) {
    let id = change.reservation.created.id;
    for line in &change.lines {
        match stored.lines.iter().find(|stored| stored.key == line.key) {
            None => found(Difference::LineMissing(line.key)),
            Some(stored) => {
                if let Some(field) = first_difference(stored, line) {
                    found(Difference::Line { key: line.key, field });
                }
            }
        }
    }
    let sources: BTreeSet<SourcePosition> = change.events.iter().map(|event| event.source).collect();
    let is_made = |line: &LedgerLine| change.lines.iter().any(|made| made.key == line.key);
    for line in stored.lines.iter().filter(|line| sources.contains(&line.source) && !is_made(line)) {
        found(Difference::LineNotInLog(line.key));
    }
    for event in change.events.iter().filter(|event| !stored.events.contains(event)) {
        found(Difference::EventMissing { id, source: event.source });
    }
    let within = stored.events.iter().filter(|event| chunk.contains(&event.source.offset));
    for event in within.filter(|event| !sources.contains(&event.source)) {
        found(Difference::EventNotInLog { id, source: event.source });
    }
    // The row shows the newest state: comparable once its last event is the one that was folded.
    if stored.events.last().map(|event| event.source) == change.last_source()
        && let Some(field) = differing_state(change, stored)
    {
        found(Difference::Reservation { id, field });
    }
}

fn differing_state(change: &Change, stored: &StoredReservation) -> Option<&'static str> {
    let folded = &change.reservation;
    let fields = [
        ("created", *folded.created == *stored.created),
        ("status", folded.status() == stored.status),
        ("due", folded.due_ms == stored.due_ms),
        ("held", folded.held() == stored.held),
        ("attempts", folded.attempts == stored.attempts),
        ("escalated", folded.escalated == stored.escalated),
        ("flagged", folded.flagged == stored.flagged),
    ];
    fields.into_iter().find(|(_, is_equal)| !is_equal).map(|(name, _)| name)
}

type NewestWindows = HashMap<(Scope, WindowKind), i32>;

fn newest_windows(book: &Book) -> NewestWindows {
    let mut newest = NewestWindows::new();
    for CounterReading { scope, window, .. } in book.counters() {
        let ordinal = newest.entry((scope, window.kind)).or_insert(window.ordinal);
        *ordinal = window.ordinal.max(*ordinal);
    }
    newest
}

/// A book keeps the current window and the one before; of older ones it may have forgotten a part.
fn is_kept(reading: &CounterReading, newest: &NewestWindows) -> bool {
    let CounterReading { scope, window, .. } = reading;
    newest.get(&(scope.clone(), window.kind)).is_none_or(|ordinal| window.ordinal >= ordinal - 1)
}

fn compare_counters(fold: &Fold, given: &Counters, found: &mut dyn FnMut(Difference)) {
    let tenants: BTreeSet<&TenantId> = fold.books().map(|(tenant, _)| tenant).chain(given.keys()).collect();
    for tenant in tenants {
        let book = fold.book(tenant);
        let newest = book.map(newest_windows).unwrap_or_default();
        let kept = |reading: &&CounterReading| is_kept(reading, &newest);
        let mut counters: BTreeMap<(Scope, Window), (Counter, Counter)> = BTreeMap::new();
        for CounterReading { scope, window, counter } in
            book.map(Book::counters).unwrap_or_default().iter().filter(kept)
        {
            counters.entry((scope.clone(), *window)).or_default().0 = *counter;
        }
        for CounterReading { scope, window, counter } in given.get(tenant).into_iter().flatten().filter(kept) {
            counters.entry((scope.clone(), *window)).or_default().1 = *counter;
        }
        for ((scope, window), (folded, given)) in counters.into_iter().filter(|(_, (folded, given))| folded != given) {
            let (folded, given) = (Box::new(folded), Box::new(given));
            found(Difference::Counter { tenant: tenant.clone(), scope, window, folded, given });
        }
    }
}

impl VerifyReport {
    #[must_use]
    pub const fn agrees(&self) -> bool {
        self.differences.is_empty() && self.more_differences == 0
    }

    fn add(&mut self, difference: Difference, options: VerifyOptions<'_>) {
        if self.differences.len() < options.most_differences {
            self.differences.push(difference);
        } else {
            self.more_differences += 1;
        }
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, reservations, lines, counters, left_out, not_built_yet, .. } = self;
        writeln!(f, "{events} events of {reservations} reservations make {lines} lines, {} USD", self.charged.usd)?;
        if *left_out > 0 {
            writeln!(f, "{left_out} records are left out: parked, skipped or unreadable")?;
        }
        if *not_built_yet > 0 {
            writeln!(f, "{not_built_yet} records are not in the ledger yet")?;
        }
        for difference in &self.differences {
            writeln!(f, "DIFFERS  {difference}")?;
        }
        if self.more_differences > 0 {
            writeln!(f, "… and {} more", self.more_differences)?;
        }
        if self.agrees() { write!(f, "ledger and {counters} counters agree with the log") } else { Ok(()) }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |key: &LineKey| format!("line {}/{}/{}", key.reservation, key.attempt, key.seq);
        match self {
            Self::ReservationMissing(id) => write!(f, "reservation {id} is not in the ledger"),
            Self::LineMissing(key) => write!(f, "{} is not in the ledger", line(key)),
            Self::LineNotInLog(key) => write!(f, "{} does not follow from the log", line(key)),
            Self::Line { key, field } => write!(f, "{} has another {field} than the log gives it", line(key)),
            Self::Reservation { id, field } => write!(f, "reservation {id} has another {field} than the log gives it"),
            Self::EventMissing { id, source } => {
                write!(f, "reservation {id} lacks its event at {}/{}", source.partition, source.offset)
            }
            Self::EventNotInLog { id, source } => {
                write!(
                    f,
                    "reservation {id} names an event at {}/{} that is not its own",
                    source.partition, source.offset
                )
            }
            Self::Count { stored, reservations, lines } => write!(
                f,
                "the ledger has {} reservations and {} lines ({} USD), the log makes {reservations} and {lines}",
                stored.reservations, stored.lines, stored.charged.usd
            ),
            Self::Sum { tenant, scope, window, lines, counter } => write!(
                f,
                "{tenant}, {scope}, {window}: the lines sum to {} USD and {} tokens, the counter to {} and {}",
                lines.usd, lines.tokens, counter.usd, counter.tokens
            ),
            Self::Counter { tenant, scope, window, folded, given } => write!(
                f,
                "{tenant}, {scope}, {window}: the log charges {} USD and holds {}, the counter has {} and {}",
                folded.charged.usd, folded.held.usd, given.charged.usd, given.held.usd
            ),
        }
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
