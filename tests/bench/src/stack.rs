//! The same on Kafka, a CQL server and Redis, each role in a process of its own.
//!
//! What the drivers can do alone comes first, from the examples of the crates that use them: every rate below is then a
//! share of something. While the gateway is measured nothing consumes, because on two cores a consumer would take the
//! time of what is measured; the backlog that grows meanwhile is what builder and corrector are measured with, one after
//! the other, and at last what replays it.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use crate::case::Case;
use crate::cost::{Machine, Used};
use crate::error::BenchError;
use crate::load::as_f64;
use crate::report::{Metric, Mode, Report};
use crate::run::Field;
use crate::subject::{self, Process};
use crate::table;

#[derive(Debug, Args)]
pub(crate) struct StackArgs {
    /// `host:port`, separated by commas, as `make stack-up` prints them.
    #[arg(long)]
    kafka: String,
    #[arg(long)]
    cql: String,
    /// Of the cluster.
    #[arg(long)]
    redis: String,
    /// A Redis node beside the cluster, whose data are replaced: for the rates of bare calls.
    #[arg(long)]
    redis_alone: String,
    #[arg(long, value_name = "FILE", default_value = "target/release/weir")]
    weir: PathBuf,
    /// Where the examples are that measure the drivers.
    #[arg(long, value_name = "DIR", default_value = "target/release/examples")]
    examples: PathBuf,
    /// Where the report goes, and beside it, while it runs, configuration and logs.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    folder: PathBuf,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Of one round.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
}

/// Its name and unit.
type Figure = (&'static str, &'static str);

const ADMIN_TOKEN: &str = "an admin token for a bench, drawn by nobody";
/// What a request leaves on the log when it ends well.
const EVENTS_PER_REQUEST: f64 = 6.0;
/// For a backlog of some ten thousand requests.
const CATCHES_UP_WITHIN: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &StackArgs) -> Result<(), BenchError> {
    let started = Instant::now();
    let work = args.folder.join("work").join("stack");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(BenchError::io("data of an earlier run"))?;
    }
    fs::create_dir_all(&work).map_err(BenchError::io("the run's folder"))?;
    let work = std::path::absolute(&work).map_err(BenchError::io("the run's folder"))?;
    let mut bench = Bench {
        args,
        weir: std::path::absolute(&args.weir).map_err(BenchError::io("weir"))?,
        work,
        report: Report::new(Mode::Stack),
    };
    bench.drivers()?;
    bench.roles()?;
    let json = args.folder.join("report.json");
    bench.report.write(&json)?;
    println!("{}", table::of(&bench.report));
    println!("{} after {} s", json.display(), started.elapsed().as_secs());
    fs::remove_dir_all(&bench.work).map_err(BenchError::io("the run's data"))
}

struct Bench<'a> {
    args: &'a StackArgs,
    weir: PathBuf,
    work: PathBuf,
    report: Report,
}

impl Bench<'_> {
    fn metric(&mut self, metric: &'static str, value: f64, unit: &'static str) {
        println!("   {metric} {value:.1} {unit}");
        self.report.metrics.push(Metric { metric, value, unit });
    }

    /// What the drivers do without Weir.
    fn drivers(&mut self) -> Result<(), BenchError> {
        let first = |list: &str| list.split(',').next().unwrap_or_default().to_owned();
        let runs: [(&str, String, &[Figure]); 3] = [
            (
                "kafka_speed",
                first(&self.args.kafka),
                &[
                    ("kafka_bare_produced", "pairs of records/s"),
                    ("kafka_produced", "pairs of records/s"),
                    ("kafka_alone_p50", "µs"),
                ],
            ),
            (
                "cql_speed",
                first(&self.args.cql),
                &[("cql_conditional_inserts", "/s"), ("cql_plain_inserts", "/s"), ("cql_builder_alone", "lines/s")],
            ),
            (
                "redis_speed",
                format!("redis://{}", self.args.redis_alone),
                &[
                    ("redis_bare_calls", "/s"),
                    ("redis_bare_call", "µs of the server"),
                    ("redis_reserve", "µs of the server"),
                    ("redis_start", "µs of the server"),
                    ("redis_close", "µs of the server"),
                ],
            ),
        ];
        for (example, address, metrics) in runs {
            println!("== {example} {address}");
            let output = Command::new(self.args.examples.join(example)).arg(address).output();
            let output = output.map_err(BenchError::io(example))?;
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(BenchError::unexpected(example, format!("{}\n{printed}{said}", output.status)));
            }
            for (metric, unit) in metrics {
                let told = printed
                    .lines()
                    .find_map(|line| line.strip_prefix("figure ")?.strip_prefix(metric)?.strip_prefix(' '));
                let value = told.and_then(|told| told.parse().ok());
                let value = value.ok_or_else(|| BenchError::unexpected(format!("{example}: {metric}"), &printed))?;
                self.metric(metric, value, unit);
            }
        }
        Ok(())
    }

    fn roles(&mut self) -> Result<(), BenchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(BenchError::io("a runtime"))?;
        let work = self.work.clone();
        let provider = subject::provider(&work)?;
        let bare = subject::bare(provider.target.address, &work)?;
        self.configure(provider.target.address)?;
        self.command(&["topics", "apply"])?;
        self.command(&["migrate"])?;
        let (control, reconciler) = (self.role("control")?, self.role("reconciler")?);
        // A gateway is ready once there is a key.
        let key = subject::create_key(&format!("http://{}", control.target.address), ADMIN_TOKEN)?;
        let mut gateway = self.role("gateway")?;
        gateway.target.authorization = format!("Bearer {key}");
        let body = Case::all()[0].body();
        let (url, bearer) = (format!("http://{}/v1/chat/completions", gateway.target.address), format!("Bearer {key}"));
        // A tenant's counters are built at its first request.
        let ask =
            || ureq::post(&url).header("authorization", &bearer).header("content-type", "application/json").send(&body);
        gateway.wait_for("a first answer", || ask().ok().map(drop))?;
        // From here on nobody consumes.
        reconciler.stop()?;

        let field = Field { runtime: &runtime, weir: &gateway, bare: &bare, provider: &provider, work: &work };
        let round = Duration::from_secs(self.args.seconds);
        for case in Case::quick().into_iter().filter(Case::is_usual_pair) {
            let rounds = field.measure(&case, self.args.rounds, round)?;
            self.report.add(&rounds);
        }
        gateway.stop()?;
        bare.stop()?;
        provider.stop()?;
        self.consumers()?;
        control.stop()
    }

    /// Each on the backlog that the load has left, alone.
    fn consumers(&mut self) -> Result<(), BenchError> {
        println!("== what follows the log");
        let builder = self.catches_up("ledger")?;
        self.metric("ledger_builder_backlog", builder.records / EVENTS_PER_REQUEST, "lines");
        self.metric("ledger_builder_rate", builder.rate / EVENTS_PER_REQUEST, "lines/s");
        self.metric("ledger_builder_cpu", builder.cpu_us * EVENTS_PER_REQUEST, "µs a line");
        self.metric("ledger_builder_machine_busy", builder.busy, "%");
        let corrector = self.catches_up("reconciler")?;
        self.metric("corrector_backlog", corrector.records, "lines");
        self.metric("corrector_rate", corrector.rate, "lines/s");
        self.metric("corrector_cpu", corrector.cpu_us, "µs a line");
        self.metric("corrector_machine_busy", corrector.busy, "%");
        let began = Instant::now();
        let replayed = self.command(&["replay", "--verify", "--without-counters", "--json"])?;
        let seconds = began.elapsed().as_secs_f64();
        let replayed: Value =
            serde_json::from_str(&replayed).map_err(|error| BenchError::unexpected("replay --verify", error))?;
        if replayed["agrees"] != true {
            return Err(BenchError::unexpected("replay --verify", replayed));
        }
        let events = replayed["events"].as_f64().unwrap_or_default();
        self.metric("replay_verify_rate", events / seconds, "events/s");
        Ok(())
    }

    /// Starts a consumer, and waits until it has applied what was before it.
    ///
    /// It says once a second how many are left, so the rate is at least what is found: up to a second of waiting for that
    /// word is in it.
    fn catches_up(&self, role: &'static str) -> Result<CaughtUp, BenchError> {
        let process = self.role(role)?;
        let url = format!("http://{}/metrics", process.target.address);
        let look = |left| {
            let (used, machine) = (Used::of(process.pid())?, Machine::now()?);
            Ok::<_, BenchError>(Look { at: Instant::now(), left, used, machine })
        };
        let mut began: Option<Look> = None;
        let until = Instant::now() + CATCHES_UP_WITHIN;
        while Instant::now() < until {
            let left = lag(&url)?.unwrap_or_default();
            match &began {
                Some(first) if left == 0.0 => {
                    let caught_up = CaughtUp::between(first, &look(left)?);
                    process.stop()?;
                    return Ok(caught_up);
                }
                // Partitions are given out one after another: more is before it than it knew.
                Some(first) if first.left < left => began = Some(look(left)?),
                None if left > 0.0 => began = Some(look(left)?),
                Some(_) | None => {}
            }
            std::thread::sleep(LOOK);
        }
        let most = began.map_or(0.0, |first| first.left);
        Err(BenchError::Late {
            what: format!("the end of the backlog of {role}, {most} records"),
            seconds: CATCHES_UP_WITHIN.as_secs(),
            log: self.work.join(format!("{role}.log")).display().to_string(),
        })
    }

    fn configure(&self, upstream: SocketAddr) -> Result<(), BenchError> {
        let write = |name: &str, text: &str| {
            let path = self.work.join(name);
            fs::write(&path, text).map_err(BenchError::io(name.to_owned())).map(|()| path.display().to_string())
        };
        let quoted = |list: &str, before: &str| {
            list.split(',').map(|each| format!("\"{before}{each}\"")).collect::<Vec<_>>().join(", ")
        };
        let name = format!("bench{}", std::process::id());
        let secrets = [
            ("pepper", "a pepper of a bench, drawn by nobody at all"),
            ("master_key", "a master key of a bench, drawn by nobody"),
            ("admin_token", ADMIN_TOKEN),
        ];
        let mut text = format!(
            "[process]\nworker_threads = 1\n[log.kafka]\nbrokers = [{}]\nprefix = \"{name}.\"\nreplication = 1\n\
             max_partitions = 4\n[ledger.cql]\nnodes = [{}]\nkeyspace = \"{name}\"\nreplicas = 1\n[quota.redis]\n\
             nodes = [{}]\ncluster = true\nprefix = \"{name}\"\n[secrets]\n",
            quoted(&self.args.kafka, ""),
            quoted(&self.args.cql, ""),
            quoted(&self.args.redis, "redis://"),
        );
        for (name, secret) in secrets {
            text += &format!("{name} = \"file:{}\"\n", write(name, secret)?);
        }
        write("weir.toml", &text)?;
        let credential = format!("file:{}", write("provider.key", "nobody's secret")?);
        write("catalog.toml", &subject::catalog(upstream, &credential)).map(drop)
    }

    fn role(&self, role: &'static str) -> Result<Process, BenchError> {
        let address = subject::free_port()?;
        let mut command = Command::new(&self.weir);
        command.args([role, "--config", "weir.toml", "--listen", &address.to_string(), "--name", role, "--data"]);
        command.arg(self.work.join(role)).current_dir(&self.work);
        if role == "control" {
            command.args(["--catalog", "catalog.toml"]);
        }
        let mut process = Process::start(role, command, &self.work)?;
        process.listening(address)?;
        let ready = format!("http://{address}/readyz");
        process.wait_for("readiness", || ureq::get(&ready).call().ok().map(drop))?;
        Ok(process)
    }

    /// Its standard output.
    fn command(&self, arguments: &[&str]) -> Result<String, BenchError> {
        let mut command = Command::new(&self.weir);
        command.args(arguments).args(["--config", "weir.toml"]).current_dir(&self.work);
        if arguments[0] == "replay" {
            command.arg("--data").arg(self.work.join("control"));
        }
        let output = command.output().map_err(BenchError::io("weir"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(BenchError::unexpected(format!("weir {}", arguments.join(" ")), said));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// A look at a consumer that catches up.
#[derive(Debug)]
struct Look {
    at: Instant,
    /// Records before it.
    left: f64,
    used: Used,
    machine: Machine,
}

/// How a consumer caught up.
#[derive(Debug)]
struct CaughtUp {
    /// That were before it.
    records: f64,
    /// A second.
    rate: f64,
    /// Of its process, a record.
    cpu_us: f64,
    /// How much of all cores was in use meanwhile, by anybody, per cent.
    busy: f64,
}

impl CaughtUp {
    fn between(first: &Look, last: &Look) -> Self {
        let records = first.left - last.left;
        Self {
            records,
            rate: records / (last.at - first.at).as_secs_f64(),
            cpu_us: as_f64(last.used.since(&first.used)) / 1e3 / records,
            busy: last.machine.busy_since(first.machine),
        }
    }
}

/// Records before all consumers of a process; `None` while it has none.
fn lag(url: &str) -> Result<Option<f64>, BenchError> {
    let page = ureq::get(url).call().and_then(|mut answer| answer.body_mut().read_to_string());
    let page = page.map_err(|error| BenchError::unexpected("metrics", error))?;
    let samples = page.lines().filter(|line| line.starts_with("weir_consumer_lag_records{"));
    let lags: Vec<f64> = samples.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    Ok((!lags.is_empty()).then(|| lags.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_what_was_seen_to_shrink() {
        let (began, machine) = (Instant::now(), Machine::now().unwrap());
        let look =
            |ms: u64, left: f64| Look { at: began + Duration::from_millis(ms), left, used: Used::default(), machine };
        let seen = CaughtUp::between(&look(0, 9_000.0), &look(4_500, 0.0));
        assert!((seen.records - 9_000.0).abs() < 1e-9 && (seen.rate - 2_000.0).abs() < 1e-9, "{seen:?}");
    }
}
