//! Real Redis servers for these tests, started by the project's own script and stopped with the last test that uses them.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command as Shell;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest as _, Sha256};
use weir_domain::ids::TenantId;
use weir_domain::quota::{Book, BookOptions, Reply};
use weir_domain::reservation::{Command, Decision};
use weir_domain::testing::{LEASE_MS, Request, close_attempt, executed, id, request, start};
use weir_quota::QuotaStore as _;
use weir_quota::redis::{RedisOptions, RedisQuota};
use weir_runtime::entropy::OsEntropy;
use weir_runtime::units::HumanDuration;

/// Running servers; they stop when the last holder lets go.
#[derive(Debug)]
pub struct Servers {
    folder: tempfile::TempDir,
    pub first_port: u16,
    is_cluster: bool,
}

/// What is started once a binary: tests that run at the same time share it.
#[derive(Debug)]
pub struct Shared(Mutex<Weak<Servers>>);

impl Shared {
    pub const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    /// `None` when the real servers are skipped, which the environment has to say.
    pub fn get(&self, layout: &str, environment: &[(&str, &str)]) -> Option<Arc<Servers>> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(servers) = shared.upgrade() {
            return Some(servers);
        }
        let servers = Arc::new(Servers::start(layout, environment)?);
        *shared = Arc::downgrade(&servers);
        Some(servers)
    }
}

impl Servers {
    pub fn start(layout: &str, environment: &[(&str, &str)]) -> Option<Self> {
        if std::env::var("WEIR_SKIP_STACK").is_ok_and(|value| value == "1") {
            eprintln!("skipped: Redis ({layout}), because WEIR_SKIP_STACK=1");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let first_port = free_ports();
        let servers = Self { folder, first_port, is_cluster: layout == "cluster" };
        let owner = std::process::id().to_string();
        let mut command = Shell::new(script());
        command.args(["start", layout]).arg(servers.folder.path()).arg(first_port.to_string()).env("OWNER", owner);
        let output = command.envs(environment.iter().copied()).output().unwrap();
        assert!(output.status.success(), "redis.sh: {}", String::from_utf8_lossy(&output.stderr));
        Some(servers)
    }

    pub fn run(&self, what: &str, node: u16) {
        let output = Shell::new(script()).arg(what).arg(self.folder.path()).arg(node.to_string()).output().unwrap();
        assert!(output.status.success(), "redis.sh {what}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The data of one node.
    pub fn data(&self, node: u16) -> PathBuf {
        self.folder.path().join(node.to_string())
    }

    pub fn options(&self) -> RedisOptions {
        RedisOptions {
            nodes: vec![format!("redis://127.0.0.1:{}", self.first_port)],
            cluster: self.is_cluster,
            patience: HumanDuration::from_secs(10),
            ..RedisOptions::default()
        }
    }

    pub fn quota(&self) -> RedisQuota {
        quota(&self.options())
    }

    /// A plain connection to one node, past Weir.
    pub async fn node(&self, node: u16) -> redis::aio::MultiplexedConnection {
        let address = format!("redis://127.0.0.1:{}", self.first_port + node - 1);
        redis::Client::open(address).unwrap().get_multiplexed_async_connection().await.unwrap()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(Shell::new(script()).arg("stop").arg(self.folder.path()).output());
    }
}

pub fn quota(options: &RedisOptions) -> RedisQuota {
    RedisQuota::new(options, &OsEntropy).unwrap()
}

pub fn empty() -> Book {
    Book::new(BookOptions::default())
}

/// Opens an empty book for a tenant of the test's own.
pub async fn open(quota: &RedisQuota, name: &str) -> TenantId {
    let tenant = TenantId::new(name);
    quota.rebuild(&tenant, &empty(), LEASE_MS).await.unwrap();
    tenant
}

/// Request `n` of a tenant, as a client would send it now.
pub async fn request_now(quota: &RedisQuota, tenant: &TenantId, n: u64) -> Request {
    Request { tenant: tenant.clone(), at_ms: quota.now_ms().await.unwrap(), ..request(n) }
}

/// Reserves, starts and settles request `n` for a cent; every step must change something.
pub async fn live(quota: &RedisQuota, tenant: &TenantId, n: u64) {
    let request = request_now(quota, tenant, n).await;
    let closing = vec![close_attempt(1, executed(7, "0.01")), Command::Close];
    for commands in [vec![request.command()], vec![start(1, request.hold, None)], closing] {
        let replies = quota.execute_all(tenant, id(n), &commands).await.unwrap();
        let is_change = |reply: &Reply| matches!(reply.decision, Decision::Change(_));
        assert!(replies.iter().all(is_change), "{n}: {replies:?}");
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/dev/stack/redis.sh")
}

/// The first of six ports that are free, as are those of the cluster's bus 10000 above. Servers of one binary start at the
/// same time, and binaries run beside each other: hence the two spreads.
fn free_ports() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let spread = u16::try_from(std::process::id() % 500).unwrap();
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let first = 17_000 + (spread + TRIED.fetch_add(1, Ordering::Relaxed)) % 500 * 10;
        if (first..first + 6).all(|port| is_free(port) && is_free(port + 10_000)) {
            return first;
        }
    }
}

/// What every key of a tenant begins with.
pub fn tag(tenant: &str) -> String {
    let digest = Sha256::digest(tenant.as_bytes());
    format!("weir:{{{}}}:", digest[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Every key of a tenant on a single node, without its tag, with its time to live in ms (−1 for none).
pub async fn keys_of(servers: &Servers, tenant: &str) -> BTreeMap<String, i64> {
    let mut node = servers.node(1).await;
    let tag = tag(tenant);
    let (mut cursor, mut found) = (0_u64, BTreeMap::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{tag}*")).arg("COUNT").arg(1000);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut node).await.unwrap();
        for key in keys {
            let ttl_ms: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut node).await.unwrap();
            // A key that expired in between is not there.
            if ttl_ms != -2 {
                found.insert(key[tag.len()..].to_owned(), ttl_ms);
            }
        }
        if next == 0 {
            return found;
        }
        cursor = next;
    }
}
