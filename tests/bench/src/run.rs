//! The order of a run: memory of idle streams on fresh processes, then every case in alternating rounds, then what the
//! log that came of it costs to fold and to start from.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::runtime::Runtime;

use crate::case::{Case, Shape};
use crate::error::BenchError;
use crate::load::{Seen, as_f64, stream, wrk};
use crate::report::{Measured, Metric, Mode, Report, Rounds, Subject};
use crate::slow::Slow;
use crate::subject::{self, Process, Target};
use crate::{cost, fold, idle, table};

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Only the rows that have a target, in about a minute.
    #[arg(long)]
    quick: bool,
    /// Only thousands of clients that hardly read: three minutes.
    #[arg(long, conflicts_with = "quick")]
    slow: bool,
    /// How many of those clients.
    #[arg(long, default_value_t = 5_400)]
    slow_readers: usize,
    /// The gateway to measure.
    #[arg(long, value_name = "FILE", default_value = "target/release/weir")]
    weir: PathBuf,
    /// Where the report goes, and beside it, while it runs, data and logs.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    folder: PathBuf,
    /// Rounds of each case, for each subject.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of one round.
    #[arg(long)]
    seconds: Option<u64>,
    /// Only cases whose name contains this, such as `plain 6 KB`.
    #[arg(long)]
    only: Option<String>,
}

/// How long and how often.
#[derive(Debug)]
struct Plan {
    cases: Vec<Case>,
    rounds: usize,
    round: Duration,
    idle_streams: usize,
}

impl Plan {
    fn of(args: &RunArgs) -> Self {
        let (cases, rounds, seconds, idle_streams) =
            if args.quick { (Case::quick(), 3, 1, 1_500) } else { (Case::all(), 5, 2, 1_500) };
        let wanted = |case: &Case| args.only.as_ref().is_none_or(|only| case.to_string().contains(only.as_str()));
        Self {
            cases: cases.into_iter().filter(wanted).collect(),
            rounds: args.rounds.unwrap_or(rounds),
            round: Duration::from_secs(args.seconds.unwrap_or(seconds)),
            idle_streams,
        }
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<(), BenchError> {
    let plan = Plan::of(args);
    let started = Instant::now();
    std::fs::create_dir_all(&args.folder).map_err(BenchError::io("the report's folder"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(BenchError::io("a runtime"))?;
    let mut bench = Bench { args, runtime, report: Report::new(Mode::Embedded) };

    if args.slow {
        bench.slow_readers()?;
    } else {
        bench.idle_streams(&plan)?;
        let work = bench.fresh("rounds")?;
        bench.cases(&plan, &work)?;
        bench.log(&work)?;
    }
    let json = args.folder.join("report.json");
    bench.report.write(&json)?;
    println!("{}", table::of(&bench.report));
    println!("{} after {} s", json.display(), started.elapsed().as_secs());
    // Hundreds of megabytes that tell nothing more; after a failure they stay, to be looked at.
    std::fs::remove_dir_all(args.folder.join("work")).map_err(BenchError::io("the run's data"))
}

struct Bench<'a> {
    args: &'a RunArgs,
    runtime: Runtime,
    report: Report,
}

impl Bench<'_> {
    /// An empty folder for processes that are to begin empty.
    fn fresh(&self, name: &str) -> Result<PathBuf, BenchError> {
        let folder = self.args.folder.join("work").join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(BenchError::io("data of an earlier run"))?;
        }
        std::fs::create_dir_all(&folder).map_err(BenchError::io("data of this run"))?;
        std::path::absolute(&folder).map_err(BenchError::io("data of this run"))
    }

    fn metric(&mut self, metric: &'static str, value: f64, unit: &'static str) {
        self.report.metrics.push(Metric { metric, value, unit });
    }

    fn idle_streams(&mut self, plan: &Plan) -> Result<(), BenchError> {
        println!("== memory of {} idle streams", plan.idle_streams);
        let work = self.fresh("idle")?;
        let provider = subject::provider(&work)?;
        let upstream = provider.target.address;
        let bare = subject::bare(upstream, &work)?;
        let weir = subject::weir(&self.args.weir, upstream, &work)?;
        for (process, metric) in [(&bare, "idle_stream_memory_bare"), (&weir, "idle_stream_memory_weir")] {
            let kib = self.runtime.block_on(idle::kib_per_stream(process, plan.idle_streams))?;
            self.metric(metric, kib, "KiB");
        }
        // The streams are gone; nothing of this run is needed any more.
        drop((weir, bare, provider));
        Ok(())
    }

    fn slow_readers(&mut self) -> Result<(), BenchError> {
        println!("== {} clients that hardly read, then not at all", self.args.slow_readers);
        let work = self.fresh("slow")?;
        let provider = subject::provider(&work)?;
        let weir = subject::weir(&self.args.weir, provider.target.address, &work)?;
        let slow = Slow { process: &weir, readers: self.args.slow_readers, data: &work.join("data") };
        self.runtime.block_on(slow.measure(&mut self.report))
    }

    fn cases(&mut self, plan: &Plan, work: &Path) -> Result<(), BenchError> {
        let provider = subject::provider(work)?;
        let upstream = provider.target.address;
        let bare = subject::bare(upstream, work)?;
        let weir = subject::weir(&self.args.weir, upstream, work)?;
        let field = Field { runtime: &self.runtime, weir: &weir, bare: &bare, provider: &provider, work };
        for case in &plan.cases {
            self.report.add(&field.measure(case, plan.rounds, plan.round)?);
        }
        weir.stop()?;
        bare.stop()?;
        provider.stop()
    }

    /// What the run's own log costs: to fold, and to start from.
    fn log(&mut self, work: &Path) -> Result<(), BenchError> {
        println!("== the log that came of it");
        let (rate, events) = self.runtime.block_on(fold::events_per_s(&work.join("data/log")))?;
        self.metric("fold_rate", rate, "events/s");
        self.metric("folded_events", as_f64(events), "events");
        // A provider that does not run is no reason not to start.
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
        let started = Instant::now();
        let weir = subject::weir(&self.args.weir, nowhere, work)?;
        self.metric("start_on_this_log", started.elapsed().as_secs_f64(), "s");
        weir.stop()
    }
}

/// Everything that a case needs while it is measured.
#[derive(Debug)]
pub(crate) struct Field<'a> {
    pub runtime: &'a Runtime,
    pub weir: &'a Process,
    pub bare: &'a Process,
    pub provider: &'a Process,
    pub work: &'a Path,
}

impl Field<'_> {
    /// Alternating rounds of both subjects, and of the provider itself where latencies are compared.
    pub(crate) fn measure(&self, case: &Case, rounds: usize, round: Duration) -> Result<Rounds, BenchError> {
        println!("== {case}");
        let mut measured = Rounds::new(*case);
        self.load(case, &self.weir.target, WARM_UP)?;
        self.load(case, &self.bare.target, WARM_UP)?;
        for nth in 0..rounds {
            let mut order = [(Subject::Weir, self.weir), (Subject::Bare, self.bare)];
            // Whatever else the machine does favours neither the first nor the second.
            if nth % 2 == 1 {
                order.reverse();
            }
            for (subject, process) in order {
                measured.push(subject, self.measured(case, process, round)?);
            }
            if case.shows_added_latency() {
                measured.direct.push(self.load(case, &self.provider.target, round)?);
            }
        }
        Ok(measured)
    }

    fn measured(&self, case: &Case, process: &Process, time: Duration) -> Result<Measured, BenchError> {
        let before = cost::at_rest(process.pid())?;
        let seen = self.load(case, &process.target, time)?;
        let after = cost::at_rest(process.pid())?;
        let threads = after.by_thread(&before);
        let threads = threads.into_iter().map(|(name, ns)| (name.to_owned(), ns)).collect();
        Ok(Measured { seen, cpu_ns: after.since(&before), rss_kib: cost::rss_kib(process.pid())?, threads })
    }

    pub(crate) fn load(&self, case: &Case, target: &Target, time: Duration) -> Result<Seen, BenchError> {
        match case.shape {
            Shape::Plain => wrk::run(target, case, time, self.work),
            Shape::Stream => self.runtime.block_on(stream::run(target, case, time)),
        }
    }
}

/// Connections and caches, not figures.
const WARM_UP: Duration = Duration::from_secs(1);
