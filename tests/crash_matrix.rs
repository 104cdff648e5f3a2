//! SIGKILL at every named step: of a request, of each consumer, of the log's own writes (issue 4.1; I8–I14).
//!
//! One row per point says what a single reservation that met it must have become a lease after the restart. With many
//! in flight the others may stand anywhere; what must hold for all of them is in `weir_tests::crash`: no call and no
//! content without a record, books = fold = counters, and once what is pending was reported, books = bill.
//!
//! `WEIR_CRASH=all` runs every point in every shape, another value those whose name it is in; without it each point runs
//! alone and, in the other shape, with fifty in flight and two attempts.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use weir_tests::crash::{self, After, COVERED, ONE, Seen, Stands, TWO, WITHIN};
use weir_tests::failpoints::{Plan, failpoints_binary};
use weir_tests::{House, PATIENCE};

use Stands::{Absent, Pending, Released, Settled};

/// Who meets a point, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    /// Every request, once.
    Request,
    /// Every attempt, the first one included, which fails where there are two.
    Attempt,
    /// Every request, once, at its end.
    End,
    /// Whoever goes from one attempt to the next.
    Failover,
    /// Every piece of a stream.
    Piece,
    /// Every stream, once.
    Stream,
    /// The log or a consumer: how often depends on what gathers.
    Batch,
}

/// Where the process dies, and what the one reservation that was there has become a lease after the restart.
#[derive(Debug, Clone, Copy)]
struct Row {
    point: &'static str,
    met: Met,
    /// With one attempt.
    one: &'static [Stands],
    /// With a second attempt after one that did not execute.
    two: &'static [Stands],
}

const fn row(point: &'static str, met: Met, one: &'static [Stands], two: &'static [Stands]) -> Row {
    Row { point, met, one, two }
}

/// The life of a request. Before its mark is written a request has left nothing; from then on its provider may have
/// been called, so it is pending until somebody knows; once its closing events are written it needs nobody.
const REQUEST: &[Row] = &[
    row("reserve.after", Met::Request, &[Absent], &[Absent]),
    // What was refused is on the log as that before another attempt is begun.
    row("mark.before_append", Met::Attempt, &[Absent], &[Released]),
    row("mark.after_append", Met::Attempt, &[Pending], &[Pending]),
    row("attempt.before_call", Met::Attempt, &[Pending], &[Pending]),
    row("attempt.after_head", Met::Attempt, &[Pending], &[Pending]),
    row("failover.before_route", Met::Failover, &[], &[Pending]),
    row("relay.before_content", Met::Request, &[Pending], &[Pending]),
    row("relay.piece", Met::Piece, &[Pending], &[Pending]),
    row("relay.after_end", Met::Stream, &[Pending], &[Pending]),
    row("finalize.before_append", Met::End, &[Pending], &[Pending]),
    row("finalize.before_store", Met::End, &[Settled], &[Settled]),
    row("finalize.after_store", Met::End, &[Settled], &[Settled]),
];

const ANY: &[Stands] = &[Absent, Pending, Settled, Released];

/// The log's writes and syncs, its rotation, the consumers behind it. Which of a request's batches is met depends on
/// the hit, so a single reservation may stand anywhere that is honest.
const BEHIND: &[Row] = &[
    row("log.before_write", Met::Batch, ANY, ANY),
    row("log.torn_write", Met::Batch, ANY, ANY),
    row("log.after_write", Met::Batch, ANY, ANY),
    row("log.before_sync", Met::Batch, ANY, ANY),
    row("log.after_sync", Met::Batch, ANY, ANY),
    row("builder.before_store", Met::Batch, ANY, ANY),
    row("builder.before_publish", Met::Batch, ANY, ANY),
    row("builder.before_position", Met::Batch, ANY, ANY),
    row("checkpoint.before_store", Met::Batch, ANY, ANY),
    row("checkpoint.after_store", Met::Batch, ANY, ANY),
    row("corrector.before_store", Met::Batch, ANY, ANY),
    row("corrector.before_position", Met::Batch, ANY, ANY),
];

/// Met when a segment is full: by many requests only.
const ROTATION: &[&str] = &[
    "rotation.before_footer",
    "rotation.torn_footer",
    "rotation.after_footer",
    "rotation.before_header",
    "rotation.torn_header",
    "rotation.after_header",
    "rotation.before_folder_sync",
    "rotation.after_folder_sync",
];

/// Met while the first kill is being repaired: the process dies a second time.
const REPAIR: &[&str] = &["sweep.before_append", "sweep.before_store"];
/// Met when the reports come.
const REPORTS: &[&str] = &["reports.before_append", "reports.before_store", "reports.before_position"];

/// One kill, or two.
#[derive(Debug, Clone)]
struct Case {
    /// Scripts of the processes, in the order of their lives; the last process has none.
    first: String,
    second: Option<String>,
    at_reports: Option<String>,
    is_stream: bool,
    model: &'static str,
    in_flight: usize,
    requests: usize,
    expected: &'static [Stands],
}

impl Case {
    fn of(row: Row, is_stream: bool, model: &'static str, in_flight: usize) -> Self {
        let is_two = model != ONE;
        let at = match (row.met, in_flight) {
            // A connection that breaks has no head.
            (Met::Attempt, 1) if model == COVERED && row.point == "attempt.after_head" => 1,
            (Met::Attempt, _) if model == COVERED && row.point == "attempt.after_head" => 7,
            (Met::Attempt, 1) => 1 + u64::from(is_two),
            (Met::Piece, 1) => 3,
            // What came together is one piece, so a stream has at least one.
            (Met::Piece, _) if is_two => 7,
            (Met::Piece, _) => 25,
            // A fold is copied at most once in many deliveries.
            (Met::Batch, _) if row.point.starts_with("checkpoint.") => 1,
            (Met::Batch, 1) => 2,
            (Met::Batch, _) => 3,
            (Met::Failover | Met::Request | Met::Stream | Met::End, 1) => 1,
            // Where every first attempt fails, few second ones are let through: retries have a budget. They come after
            // all first ones, and whoever gets none ends first.
            (Met::Attempt, _) if is_two => 53,
            (Met::End, _) if is_two => 45,
            (Met::Failover | Met::Request | Met::Stream, _) if is_two => 7,
            (Met::Failover | Met::Request | Met::Stream | Met::Attempt | Met::End, _) => 25,
        };
        Self {
            first: format!("{}=kill@{at}", row.point),
            second: None,
            at_reports: None,
            is_stream,
            model,
            in_flight,
            requests: match (row.met, in_flight) {
                // Enough for several batches and a checkpoint.
                (Met::Batch, 1) => 10,
                (Met::Batch, _) => 4 * in_flight,
                _ => in_flight,
            },
            expected: match model {
                ONE => row.one,
                // The first attempt may have executed, so whatever is known of the second, somebody must report.
                COVERED if row.two == [Settled] || row.two == [Released] => &[Pending],
                _ => row.two,
            },
        }
    }

    fn name(&self) -> String {
        let second = self.second.iter().chain(&self.at_reports).map(|script| format!(", then {script}"));
        format!(
            "{:<34} {:>3} in flight, {}, {}",
            format!("{}{}", self.first, second.collect::<String>()),
            self.in_flight,
            if self.is_stream { "stream" } else { "plain" },
            match self.model {
                TWO => "after a refusal",
                COVERED => "after a broken call",
                _ => "one attempt",
            },
        )
    }
}

fn cases() -> Vec<Case> {
    let which = std::env::var("WEIR_CRASH").unwrap_or_default();
    let is_all = !which.is_empty();
    let mut cases = Vec::new();
    for (nth, row) in REQUEST.iter().chain(BEHIND).enumerate() {
        let alternates = nth % 2 == 0;
        for (is_stream, model, in_flight) in shapes() {
            let streams_only = matches!(row.met, Met::Piece | Met::Stream);
            let is_met = (is_stream || !streams_only) && (model != ONE || row.met != Met::Failover);
            let is_chosen = match (in_flight, row.met) {
                (1, Met::Failover) => model == TWO && is_stream == alternates,
                (1, _) => model == ONE && (streams_only || is_stream == alternates),
                (_, _) => model == TWO && (streams_only || is_stream != alternates),
            } || (model == COVERED && in_flight == 1 && row.met == Met::End && is_stream == alternates);
            if is_met && (is_all || is_chosen) {
                cases.push(Case::of(*row, is_stream, model, in_flight));
            }
        }
    }
    cases.extend(rotations(is_all));
    cases.extend(second_kills(is_all));
    if is_all && which != "all" {
        cases.retain(|case| case.name().contains(&which));
    }
    cases
}

fn shapes() -> impl Iterator<Item = (bool, &'static str, usize)> {
    [1, MANY].into_iter().flat_map(|in_flight| {
        [ONE, TWO, COVERED]
            .into_iter()
            .flat_map(move |model| [false, true].map(|is_stream| (is_stream, model, in_flight)))
    })
}

const MANY: usize = 50;
/// Enough for two segments of the smallest size, with what a request leaves there.
const FILLS_SEGMENTS: usize = 200;

fn rotations(is_all: bool) -> impl Iterator<Item = Case> {
    let points = ROTATION.iter().enumerate();
    points.flat_map(move |(nth, point)| {
        let shapes = [false, true].into_iter().filter(move |is_stream| is_all || *is_stream == (nth % 2 == 0));
        shapes.map(move |is_stream| Case {
            first: format!("{point}=kill@{}", at_rotation(point)),
            second: None,
            at_reports: None,
            is_stream,
            model: ONE,
            in_flight: MANY,
            requests: FILLS_SEGMENTS,
            expected: ANY,
        })
    })
}

/// The hit that a full segment makes: the first files of the topics of requests, lines and usage are made before any
/// is full, and one of operations may be.
fn at_rotation(point: &str) -> u32 {
    match point {
        "rotation.before_footer" | "rotation.torn_footer" | "rotation.after_footer" => 1,
        _ => 5,
    }
}

fn second_kills(is_all: bool) -> impl Iterator<Item = Case> {
    let points = REPAIR.iter().map(|point| (point, true)).chain(REPORTS.iter().map(|point| (point, false)));
    points.enumerate().flat_map(move |(nth, (point, is_repair))| {
        let shapes = [1, MANY].into_iter().filter(move |in_flight| is_all || (*in_flight == 1) == (nth % 2 == 0));
        shapes.map(move |in_flight| {
            // Reports that gather are one delivery.
            let is_first = in_flight == 1 || *point == "reports.before_position";
            let script = format!("{point}=kill@{}", if is_first { 1 } else { 5 });
            Case {
                first: format!("attempt.after_head=kill@{}", if in_flight == 1 { 1 } else { 25 }),
                second: is_repair.then(|| script.clone()),
                at_reports: (!is_repair).then_some(script),
                is_stream: nth % 2 == 0,
                model: ONE,
                in_flight,
                requests: in_flight,
                expected: &[Pending],
            }
        })
    })
}

/// What a case has come to, for the table.
#[derive(Debug)]
struct Found {
    seen_content: usize,
    calls: usize,
    stands: String,
    settled_in: Duration,
}

async fn run(case: &Case) -> Found {
    let plan = Plan::default();
    plan.hold(&case.first);
    let mut house = House::start(crash::setup(&plan, "segment = \"64KiB\"", "")).await;
    plan.arm();
    let client = house.client.clone();
    let seen = crash::send_all(&client, case.model, case.is_stream, case.in_flight, case.requests).await;
    crash::killed(&mut house).await;

    if let Some(script) = &case.second {
        plan.set(script);
        house.restart_unready().await;
        crash::killed(&mut house).await;
    }
    plan.set(case.at_reports.as_deref().unwrap_or_default());
    house.restart().await;
    let restarted = Instant::now();
    let after = After::a_lease(&house, &seen).await;
    let settled_in = restarted.elapsed();
    assert!(settled_in < WITHIN + PATIENCE, "{settled_in:?}");
    check(case, &after, &seen);

    let rows = after.reports(&house).await;
    if !rows.is_empty() {
        let imported = crash::import(&house, &rows);
        if case.at_reports.is_some() {
            crash::killed(&mut house).await;
            plan.set("");
            house.restart().await;
            // Whether the first try was acknowledged or not, the same again is harmless.
            assert!(crash::import(&house, &rows).status.success());
        } else {
            assert!(imported.status.success(), "{imported:?}");
        }
    }
    After::assert_is_the_bill(&house).await;
    // And it works.
    let again = crash::send(house.client.clone(), ONE.to_owned(), case.is_stream).await;
    assert!(again.whole, "{again:?}");
    After::assert_is_the_bill(&house).await;
    Found {
        seen_content: seen.iter().filter(|seen| seen.content).count(),
        calls: after.calls.len(),
        stands: tally(&after),
        settled_in,
    }
}

/// The reservation at the point has become what its row says.
fn check(case: &Case, after: &After, seen: &[Seen]) {
    let mut found: BTreeSet<Stands> = after.stands.values().copied().collect();
    if found.is_empty() {
        found.insert(Absent);
    }
    if case.in_flight == 1 && case.requests == 1 {
        assert!(found.iter().all(|stands| case.expected.contains(stands)), "{found:?}\n{after:#?}\n{seen:?}");
    } else {
        // One of many met the point, and what it became leaves a trace unless it is none.
        let is_there = case.expected.contains(&Absent) || case.expected.iter().any(|stands| found.contains(stands));
        assert!(is_there, "none is {:?}: {found:?}", case.expected);
    }
    assert!(!found.contains(&Stands::Reserved), "{after:#?}");
}

fn tally(after: &After) -> String {
    let count = |stands: Stands| after.stands.values().filter(|found| **found == stands).count();
    let counts = [(Pending, "pending"), (Settled, "settled"), (Released, "released"), (Absent, "absent")];
    let words = counts.into_iter().filter(|(stands, _)| count(*stands) > 0);
    let words: Vec<String> = words.map(|(stands, word)| format!("{} {word}", count(stands))).collect();
    if words.is_empty() { "no trace".to_owned() } else { words.join(", ") }
}

/// Most of a case is waiting for a lease, so several run beside each other.
const AT_ONCE: usize = 8;

#[test]
fn killed_at_every_step_everything_ends_and_the_books_are_the_bill() {
    // Built before the clock runs.
    assert!(failpoints_binary().is_file());
    let started = Instant::now();
    let cases: Mutex<VecDeque<Case>> = Mutex::new(cases().into());
    let (table, failures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().pop_front() else { return };
                    let outcome = catch_unwind(AssertUnwindSafe(|| {
                        let runtime =
                            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
                        runtime.unwrap().block_on(run(&case))
                    }));
                    let line = match outcome {
                        Ok(Found { seen_content, calls, stands, settled_in }) => format!(
                            "ok     {}: {calls} calls, {seen_content} seen; {stands}; at rest after {:.1} s",
                            case.name(),
                            settled_in.as_secs_f32()
                        ),
                        Err(panic) => {
                            let why = panic.downcast_ref::<String>().map_or("?", String::as_str);
                            failures.lock().unwrap().push(format!("{}\n{why}", case.name()));
                            format!("FAILED {}", case.name())
                        }
                    };
                    table.lock().unwrap().push(line);
                }
            });
        }
    });
    let (table, failures) = (table.into_inner().unwrap(), failures.into_inner().unwrap());
    println!("{}\n{} cases in {:.0} s", table.join("\n"), table.len(), started.elapsed().as_secs_f32());
    assert!(failures.is_empty(), "{} failed:\n\n{}", failures.len(), failures.join("\n\n"));
}
