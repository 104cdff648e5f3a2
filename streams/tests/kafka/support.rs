//! Real brokers for a test binary: started once by `deploy/dev/stack/kafka.sh`, gone when the process is.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use weir_runtime::units::HumanDuration;
use weir_streams::kafka::topics::{Found, apply};
use weir_streams::kafka::{KafkaLog, KafkaOptions};
use weir_streams::{Batch, EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// True, with a line that says so, where somebody decided to do without real servers.
pub fn is_skipped(what: &str) -> bool {
    let skips = std::env::var("WEIR_SKIP_STACK").is_ok_and(|value| value == "1");
    if skips {
        // Not by a macro: what those print of a test that passes is swallowed.
        let _ = writeln!(std::io::stderr(), "SKIPPED, because WEIR_SKIP_STACK=1: {what}");
    }
    skips
}

/// One or three brokers of this process.
#[derive(Debug)]
pub struct Brokers {
    folder: PathBuf,
    port: u16,
    pub addresses: Vec<String>,
}

/// The shared single broker of this binary.
pub fn broker() -> &'static Brokers {
    static ONE: OnceLock<Brokers> = OnceLock::new();
    ONE.get_or_init(|| Brokers::start(1))
}

impl Brokers {
    /// Panics where they do not start: a test without them would prove nothing.
    pub fn start(count: u16) -> Self {
        let folder = tempfile::Builder::new().prefix("weir-kafka-").tempdir().unwrap().keep();
        // Below the ephemeral ports, each time others of this process; another process may have them, so a few are tried.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        for _ in 0..20 {
            let block = u16::try_from(std::process::id() % 250).unwrap() + 7 * NEXT.fetch_add(1, Ordering::SeqCst);
            let port = 20_000 + block % 250 * 40;
            let are_free = (1..=count).all(|node| {
                let of_node = |more: u16| std::net::TcpListener::bind(("127.0.0.1", port + node * 10 + more)).is_ok();
                of_node(0) && of_node(1)
            });
            if !are_free {
                continue;
            }
            let mut brokers = Self { folder: folder.clone(), port, addresses: Vec::new() };
            let printed = brokers.run(&["start", &count.to_string()]);
            let list = printed.trim().strip_prefix("KAFKA_BROKERS=").unwrap();
            brokers.addresses = list.split(',').map(str::to_owned).collect();
            return brokers;
        }
        panic!("no free ports between 20000 and 30000");
    }

    /// One command of the script.
    pub fn run(&self, arguments: &[&str]) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/dev/stack/kafka.sh");
        let output = Command::new(script)
            .arg(&self.folder)
            .args(arguments)
            .env("KAFKA_PORT", self.port.to_string())
            .env("KAFKA_OWNER", std::process::id().to_string())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kafka.sh {arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same without holding up a runtime.
    pub async fn act(&'static self, arguments: &'static [&'static str]) {
        tokio::task::spawn_blocking(|| self.run(arguments)).await.unwrap();
    }

    /// Fresh topics under a prefix of their own.
    pub async fn installation(&self, max_partitions: u32) -> KafkaOptions {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        let options = KafkaOptions {
            brokers: self.addresses.clone(),
            prefix: format!("t{number}."),
            replication: u16::try_from(self.addresses.len()).unwrap(),
            max_partitions: Some(max_partitions),
            session_timeout: HumanDuration::from_secs(6),
            ..KafkaOptions::default()
        };
        let states = apply(&options, &options.topics().unwrap()).await.unwrap();
        assert!(states.iter().all(|state| state.found == Found::Created), "{states:?}");
        options
    }
}

pub fn batch(key: &str, values: &[&str]) -> Batch {
    let values = values.iter().map(|value| Bytes::copy_from_slice(value.as_bytes())).collect();
    Batch::new(Topic::Reservations, Bytes::copy_from_slice(key.as_bytes()), 1_700_000_000_000, values)
}

pub fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Every record of the topic, partition by partition, in order.
pub async fn everything(log: &dyn EventLog, topic: Topic) -> Result<Vec<StoredRecord>, ReadError> {
    let mut all = Vec::new();
    for partition in 0..log.partitions(topic) {
        let offsets = log.offsets(topic, partition).await?;
        let mut offset = offsets.start;
        while offset < offsets.durable {
            let at = Position { topic, partition, offset };
            let read = log.read(at, Limits::default(), Visibility::Durable).await?;
            offset = read.last().map_or(offset, |last| last.offset + 1);
            all.extend(read);
        }
    }
    Ok(all)
}

pub async fn open(options: &KafkaOptions) -> Outcome<Arc<KafkaLog>> {
    Ok(Arc::new(KafkaLog::open(options).await?))
}
