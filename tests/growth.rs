//! From one tenant to many, from an empty ledger to a large one: a start, `weir show`, the first page of an export and
//! the processor time of a request stay what they are.
//!
//! `GROWTH=100000,10000000` makes it that many tenants and lines (`make bench GROWTH=1` does, on release builds, and
//! keeps the figures); without, it is what CI has the time for.
#![cfg(test)]

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use weir_domain::ids::{KeyId, TenantId};
use weir_tests::catalog::Catalog;
use weir_tests::client::Client;
use weir_tests::growth::{self, Grown};
use weir_tests::{House, Setup};

/// What a person takes for "at once", and for a start that nobody notices.
const START: Duration = Duration::from_secs(10);
const FIRST_PAGE: Duration = Duration::from_secs(1);
const SHOW: Duration = Duration::from_millis(500);
/// Requests of one round, one after the other, and rounds, of which the best counts: others use the machine too.
const REQUESTS: u64 = 100;
const ROUNDS: u64 = 8;
/// How much more processor time a request may take: caches of a larger process, and neighbours on the same machine, which
/// once made 155 of it. What grows with tenants or lines grows tenfold here.
const NOISE_PERCENT: u64 = 200;

/// Tenants and lines.
fn size() -> (u64, u64) {
    let asked = std::env::var("GROWTH").ok();
    let asked = asked.as_deref().and_then(|asked| asked.split_once(','));
    asked.map_or((300, 3_000), |(tenants, lines)| (tenants.parse().unwrap(), lines.parse().unwrap()))
}

/// What was measured.
#[derive(Debug)]
struct Figures {
    tenants: u64,
    lines: u64,
    grew: Duration,
    started: Duration,
    first_page: Duration,
    shown: Duration,
    request_us: (u64, u64),
    resident_mib: (u64, u64),
}

#[test]
fn a_start_a_request_an_export_and_a_story_do_not_grow_with_the_ledger() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (tenants, lines) = size();
    let figures = runtime.block_on(measure(tenants, lines));
    let _ = writeln!(std::io::stderr(), "growth: {figures:?}");
    if let Some(file) = std::env::var_os("GROWTH_REPORT") {
        figures.write(Path::new(&file));
    }
    assert!(figures.started <= START, "a start takes {:?}", figures.started);
    assert!(figures.first_page <= FIRST_PAGE, "the first page of an export takes {:?}", figures.first_page);
    assert!(figures.shown <= SHOW, "a story takes {:?}", figures.shown);
    let (before, after) = figures.request_us;
    assert!(after * 100 <= before * NOISE_PERCENT, "a request takes {before} µs before and {after} µs after");
}

async fn measure(tenants: u64, lines: u64) -> Figures {
    // A house of its own: requests of now before those of a month ago would make each of these look forgotten.
    let mut empty = House::start(Setup::default()).await;
    let request_before = processor_time(&empty, 0).await;
    let resident_before = resident_mib(&empty);
    empty.stop().await;

    let mut house = House::start(Setup::default()).await;
    let catalog = Catalog::default().and(&growth::tenants(tenants));
    house.apply(&catalog).await;
    house.stop().await;

    let begun = Instant::now();
    let Grown { oldest, newest, lines } = growth::grow(&house.data(), &owners(&house.data()), lines).await;
    let grew = begun.elapsed();
    let begun = Instant::now();
    house.restart().await;
    let started = begun.elapsed();
    let first_page = best(|| first_page(&house, &growth::tenant(0)));
    let shown = best(|| show(&house, &oldest.to_string())).max(best(|| show(&house, &newest.to_string())));
    let request_after = processor_time(&house, tenants).await;
    let resident_mib = (resident_before, resident_mib(&house));
    let request_us = (request_before, request_after);
    Figures { tenants, lines, grew, started, first_page, shown, request_us, resident_mib }
}

/// Of some tries: a neighbour that keeps the machine busy for a second says nothing about the ledger's size.
fn best(mut look: impl FnMut() -> Duration) -> Duration {
    const TRIES: u32 = 5;
    (0..TRIES).map(|_| look()).min().unwrap_or_default()
}

impl Figures {
    /// Rows as `make bench` writes them.
    fn write(&self, file: &Path) {
        let seconds = |duration: Duration| duration.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let rows = [
            ("growth_tenants", self.tenants as f64, "tenants"),
            ("growth_lines", self.lines as f64, "lines"),
            ("growth_generation", seconds(self.grew), "s"),
            ("growth_start", seconds(self.started), "s"),
            ("growth_first_page", seconds(self.first_page), "s"),
            ("growth_show", seconds(self.shown), "s"),
            ("growth_request_empty", self.request_us.0 as f64, "us"),
            ("growth_request_grown", self.request_us.1 as f64, "us"),
            ("growth_memory_empty", self.resident_mib.0 as f64, "MiB"),
            ("growth_memory_grown", self.resident_mib.1 as f64, "MiB"),
        ];
        let rows = rows.map(|(metric, value, unit)| json!({"metric": metric, "value": value, "unit": unit}));
        std::fs::write(file, serde_json::to_string_pretty(&rows).unwrap()).unwrap();
    }
}

/// Every tenant of the catalog's growth with its key, by the ids that control gave them.
fn owners(data: &Path) -> Vec<(TenantId, KeyId)> {
    let control = rusqlite::Connection::open(data.join("control.sqlite")).unwrap();
    let sql = "SELECT t.id, k.id FROM tenants t JOIN keys k ON k.tenant_id = t.id WHERE t.name LIKE 'tenant-%' ORDER BY t.name";
    let mut statement = control.prepare(sql).unwrap();
    let owner = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(TenantId, KeyId)> {
        Ok((TenantId::from(row.get::<_, String>(0)?), KeyId::from(row.get::<_, String>(1)?)))
    };
    statement.query_map([], owner).unwrap().map(Result::unwrap).collect()
}

/// Processor time of the whole process per request, µs, of the best round. With `tenants`, each request is another's.
async fn processor_time(house: &House, tenants: u64) -> u64 {
    let mut best = u64::MAX;
    for round in 0..ROUNDS {
        let begun = spent_us(house);
        for n in 0..REQUESTS {
            let client = client_of(house, round * REQUESTS + n, tenants);
            let ask = json!({"model": "fast", "messages": [{"role": "user", "content": "hi"}]});
            let answer = client.chat(&ask).await;
            assert!(answer.status.is_success(), "{}", answer.text());
        }
        best = best.min((spent_us(house) - begun) / REQUESTS);
    }
    best
}

fn client_of(house: &House, request: u64, tenants: u64) -> Client {
    /// A prime, so that every tenant has its turn.
    const STRIDE: u64 = 7_919;
    match tenants {
        0 => house.client.clone(),
        tenants => house.client.with_key(&growth::key(request * STRIDE % tenants)),
    }
}

/// From the scheduler's own account of every thread.
fn spent_us(house: &House) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{}/task", house.process.pid())).unwrap();
    let of_thread = |folder: std::path::PathBuf| -> u64 {
        let account = std::fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
        account.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
    };
    threads.map(|thread| of_thread(thread.unwrap().path())).sum::<u64>() / 1000
}

fn resident_mib(house: &House) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", house.process.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Until the first line of a tenant's export is there.
fn first_page(house: &House, tenant: &str) -> Duration {
    let begun = Instant::now();
    let mut export = Command::new(house.binary())
        .args(["ledger", "export", "--tenant", tenant, "--format", "jsonl", "--data"])
        .arg(house.data())
        .current_dir(house.folder())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    export.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let took = begun.elapsed();
    // It ends by itself when nobody reads any more.
    let _ = export.wait();
    took
}

fn show(house: &House, reservation: &str) -> Duration {
    let begun = Instant::now();
    let story = house.show(reservation);
    assert_eq!(story["status"], "settled", "{story}");
    begun.elapsed()
}
