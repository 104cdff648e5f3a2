//! O47, O48 and S06: clients that hardly read, and providers that hang up on idle connections.

#![cfg(test)]

#[expect(dead_code, reason = "each program uses its own part of the harness")]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::provider::{After, SocketProvider};
use support::raw::{CHAT, Raw, head};
use support::{House, PATIENCE, Setup, body, resident_bytes, tenant};
use tokio::sync::Mutex;
use tokio::time::{Duration, Instant, sleep};
use weir_domain::registry::{Deadlines, LogicalModel};
use weir_domain::reservation::ReservationStatus;
use weir_providers::UpstreamOptions;
use weir_quota::QuotaStore;
use weir_runtime::listener::ListenerOptions;
use weir_runtime::units::ByteSize;
use weir_stub::journal::State;
use weir_stub::script::{ReportUsage, Script, UsageScript};

/// Memory is the process's, so these tests take turns.
static TURN: Mutex<()> = Mutex::const_new(());

const READERS: usize = 200;
/// What a provider would push to each if it could.
const STREAM_BYTES: u64 = 5_000_000;
/// What one stream may hold in this process: the gateway's buffers, and those of client and provider, which run here
/// too.
const MOST_BYTES_A_STREAM: u64 = 512 * 1024;

fn torrent() -> Script {
    let usage = UsageScript { prompt: Some(20), completion: Some(5_000), ..UsageScript::default() };
    Script { chunks: 5_000, chunk_bytes: Some(1_000), usage, ..Script::default() }
}

async fn reader(house: &House) -> Raw {
    let mut raw = Raw::connect_receiving(house.gateway, 4_096).await;
    let request = body(true);
    let length = format!("content-length: {}", request.len());
    raw.send(head(CHAT, &["content-type: application/json", &length]) + &request).await.unwrap();
    raw
}

/// Waits until the sum of what the provider could write does not grow any more.
async fn until_stalled(house: &House) -> Vec<u64> {
    let deadline = Instant::now() + 3 * PATIENCE;
    let mut before = Vec::new();
    loop {
        let written: Vec<u64> = house.stubs[0].journal().iter().map(|entry| entry.bytes_written).collect();
        if written.len() >= READERS && written == before {
            return written;
        }
        assert!(Instant::now() < deadline, "{} streams, still flowing", written.len());
        before = written;
        sleep(Duration::from_millis(250)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o47_slow_readers_hold_back_the_provider_and_disturb_nobody() {
    let _turn = TURN.lock().await;
    let house = Arc::new(House::of(torrent()).await);
    let quick = Script { text: Some("quick".to_owned()), ..Script::default() };
    house.stubs[0].queue("vendor/model-0", vec![quick.clone()]).unwrap();
    assert_eq!(house.post(body(true)).await.content(), "quick");
    let before = resident_bytes();
    let mut readers = Vec::with_capacity(READERS);
    for _ in 0..READERS {
        readers.push(reader(&house).await);
    }
    let reading = Arc::new(AtomicBool::new(true));
    let drip = house.tasks.spawn("drip", drip(readers, Arc::clone(&reading)));
    let written = until_stalled(&house).await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown / READERS as u64 <= MOST_BYTES_A_STREAM, "{} KiB a stream", (grown / READERS as u64) >> 10);
    // The journal's first entry is the quick one.
    let most = written[1..].iter().max().unwrap();
    assert!(*most < STREAM_BYTES / 2, "the provider wrote {most} of {STREAM_BYTES} bytes: nothing held it back");

    // Others are served as ever.
    house.stubs[0].queue("vendor/model-0", vec![quick; 20]).unwrap();
    let mut waits = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        let read = house.post(body(true)).await;
        waits.push(started.elapsed());
        assert_eq!(read.content(), "quick");
    }
    waits.sort();
    assert!(waits[10] < Duration::from_millis(500), "half of the others waited longer than {:?}", waits[10]);

    reading.store(false, Ordering::Release);
    let readers = drip.await.unwrap();
    drop(readers);
    house.assert_at_rest().await;
    // What a client left behind may have been executed: it waits for the provider's word, at its worst case.
    let read = house.quota.read(&tenant()).await.unwrap();
    assert_eq!((read.reserved, read.pending), (0, READERS as u64));
}

/// S06 at the size of a test; `make bench SLOW=1` has it whole, on a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s06_readers_that_stop_end_pending_beside_slow_ones_that_go_on() {
    const EACH: usize = 100;
    let _turn = TURN.lock().await;
    let house = Arc::new(House::of(torrent()).await);
    let mut slow = Vec::with_capacity(EACH);
    for _ in 0..EACH {
        slow.push(reader(&house).await);
    }
    let reading = Arc::new(AtomicBool::new(true));
    until_reserved(&house, EACH).await;
    let drip = house.tasks.spawn("drip", drip(slow, Arc::clone(&reading)));
    // Whoever comes from now on may stop for half a second.
    house.publish(|snapshot| {
        for model in snapshot.models.values_mut() {
            let deadlines = Deadlines { write_stall_ms: 500, ..model.deadlines };
            *model = Arc::new(LogicalModel { deadlines, ..LogicalModel::clone(model) });
        }
    });
    let before = resident_bytes();
    let mut stopped = Vec::with_capacity(EACH);
    for _ in 0..EACH {
        stopped.push(reader(&house).await);
    }
    let deadline = Instant::now() + 3 * PATIENCE;
    let read = loop {
        let read = house.quota.read(&tenant()).await.unwrap();
        if read.pending == EACH as u64 {
            break read;
        }
        assert!(Instant::now() < deadline, "{} pending, {} reserved", read.pending, read.reserved);
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(read.reserved, EACH as u64, "who still reads, however slowly, is not ended");
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown / EACH as u64 <= MOST_BYTES_A_STREAM, "{} KiB a stream", (grown / EACH as u64) >> 10);
    for reader in &mut stopped {
        assert!(ended_by_reset(reader).await, "the dead reader is told by a reset");
    }
    let cancelled = house.stubs[0].journal().iter().filter(|entry| entry.state == State::Cancelled).count();
    assert_eq!(cancelled, EACH, "the provider is hung up on for each of them, and for nobody else");

    reading.store(false, Ordering::Release);
    drop(drip.await.unwrap());
    house.assert_at_rest().await;
    assert_eq!(house.quota.read(&tenant()).await.unwrap().pending, 2 * EACH as u64);
}

async fn until_reserved(house: &House, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while house.quota.read(&tenant()).await.unwrap().reserved < count as u64 {
        assert!(Instant::now() < deadline, "not all are admitted");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Each reader takes a byte now and then.
async fn drip(mut readers: Vec<Raw>, reading: Arc<AtomicBool>) -> Vec<Raw> {
    use tokio::io::AsyncReadExt;
    while reading.load(Ordering::Acquire) {
        for reader in &mut readers {
            let mut byte = [0];
            let _ = tokio::time::timeout(Duration::from_millis(1), reader.stream().read(&mut byte)).await;
        }
        sleep(Duration::from_millis(500)).await;
    }
    readers
}

/// Twelve kilobytes a second, where the bound of a stall is three seconds. Between two moments at which a blocked socket
/// takes anything from here lie several kilobytes; were the stall counted from when the body is asked for more, and not
/// from those moments, this client would be cut although it reads all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s06_a_client_that_takes_little_is_not_ended_while_it_takes_some() {
    use tokio::io::AsyncReadExt;
    const TICK: Duration = Duration::from_millis(50);
    const SIP_BYTES: usize = 600;
    const TICKS: u32 = 160;
    let _turn = TURN.lock().await;
    let deadlines = Deadlines { write_stall_ms: 3_000, ..Deadlines::default() };
    let house = House::build(Setup { tiers: vec![torrent()], deadlines, ..Setup::default() }).await;
    let mut raw = reader(&house).await;
    let started = Instant::now();
    let mut sip = [0; SIP_BYTES];
    for tick in 1..=TICKS {
        let read = tokio::time::timeout(PATIENCE, raw.stream().read_exact(&mut sip)).await;
        read.expect("bytes are there").unwrap_or_else(|error| panic!("cut at sip {tick}: {error}"));
        tokio::time::sleep_until(started + TICK * tick).await;
    }
    let read = house.quota.read(&tenant()).await.unwrap();
    assert_eq!((read.reserved, read.pending), (1, 0));
    // Now it takes nothing.
    let deadline = Instant::now() + 3 * PATIENCE;
    while house.quota.read(&tenant()).await.unwrap().pending == 0 {
        assert!(Instant::now() < deadline, "a client that stopped is not ended");
        sleep(Duration::from_millis(20)).await;
    }
    assert!(ended_by_reset(&mut raw).await);
    house.assert_at_rest().await;
}

/// The bound over all streams is met by a few of them: whoever is behind waits, others are served, and when those who
/// read nothing are gone the waiting ones go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s06_beyond_the_bound_over_all_streams_those_who_are_behind_wait() {
    use tokio::io::AsyncReadExt;
    const DEAD: usize = 16;
    let _turn = TURN.lock().await;
    let listener = ListenerOptions { max_unwritten: ByteSize::kib(32), ..ListenerOptions::default() };
    let house = House::build(Setup { tiers: vec![torrent()], listener, ..Setup::default() }).await;
    let mut dead = Vec::new();
    for _ in 0..DEAD {
        dead.push(reader(&house).await);
    }
    until_reserved(&house, DEAD).await;
    let mut behind = reader(&house).await;
    until_reserved(&house, DEAD + 1).await;
    // It gets what was on its way, and then nothing while the dead hold everything.
    let mut got = 0;
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(read) = tokio::time::timeout(Duration::from_secs(3), behind.stream().read(&mut bytes)).await {
        got += read.unwrap();
        assert!(got < 1_000_000, "nothing holds it back");
    }
    let quick = Script { text: Some("quick".to_owned()), ..Script::default() };
    house.stubs[0].queue("vendor/model-0", vec![quick]).unwrap();
    assert_eq!(house.post(body(true)).await.content(), "quick");
    drop(dead);
    while got < 1_000_000 {
        let read = tokio::time::timeout(PATIENCE, behind.stream().read(&mut bytes)).await;
        got += read.expect("it goes on").unwrap();
    }
    drop(behind);
    house.assert_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o47_a_reader_that_stopped_is_reset_and_the_usage_seen_before_is_not_lost() {
    let _turn = TURN.lock().await;
    let deadlines = Deadlines { write_stall_ms: 400, ..Deadlines::default() };
    // A provider that repeats its running usage in every chunk, then floods.
    let chunk = |content: &str, usage: &str| {
        format!(
            r#"data: {{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":null}}],"usage":{usage}}}"#
        ) + "\n\n"
    };
    let running = r#"{"prompt_tokens":17,"completion_tokens":3,"total_tokens":20}"#;
    let mut raw = chunk("a", running) + "¦";
    for _ in 0..400 {
        raw.push_str(&chunk(&"x".repeat(10_000), running));
        raw.push('¦');
    }
    let usage = UsageScript { report: ReportUsage::Always, ..UsageScript::default() };
    let script = Script { raw: Some(raw), usage, ..Script::default() };
    let house = House::build(Setup { tiers: vec![script], deadlines, ..Setup::default() }).await;
    let mut stopped = reader(&house).await;
    let id = loop {
        if let Some((id, _)) = house.events().await.first() {
            break *id;
        }
        sleep(Duration::from_millis(5)).await;
    };
    let reservation = house.settled(id).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    assert!(!reservation.slot, "its slot is free");
    // Input is known exactly; output may still be up to the cap of 100.
    assert_eq!(reservation.held().tokens, 117, "the usage that was seen tightened the hold");
    let kinds = house.kinds().await;
    assert!(kinds.contains(&"UsageBounded") && !kinds.contains(&"UsageRecorded"), "a bound is no bill: {kinds:?}");
    // The provider's side is closed too: nobody pays for what nobody reads.
    let deadline = Instant::now() + PATIENCE;
    while house.stubs[0].journal()[0].state == State::Running {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(5)).await;
    }
    assert!(ended_by_reset(&mut stopped).await, "the dead reader is told by a reset");
    house.assert_at_rest().await;
}

/// Reads everything that was on its way and says whether a reset came after it.
async fn ended_by_reset(raw: &mut Raw) -> bool {
    use tokio::io::AsyncReadExt;
    let mut bytes = vec![0; 64 * 1024];
    loop {
        match raw.stream().read(&mut bytes).await {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Requests come at about the moment at which the provider closes idle connections. The pool keeps them for a shorter
/// time, so none is reused then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o48_a_pool_that_is_quicker_than_the_provider_never_meets_its_close() {
    const IDLE: Duration = Duration::from_millis(160);
    let _turn = TURN.lock().await;
    let (house, provider) = closing(IDLE, IDLE / 2).await;
    for number in 0..40 {
        send_once(&house, number).await;
        // Spread around the moment of the close, never exactly the same.
        sleep(IDLE - Duration::from_millis(10) + Duration::from_millis(u64::from(number % 21))).await;
    }
    assert_executed_once_each(&house, &provider, 40).await;
}

/// The provider's close has arrived before the request is written: it was provably not sent, and goes out on another
/// connection as the same attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o48_a_request_on_a_connection_that_was_closed_meanwhile_is_unsent() {
    const IDLE: Duration = Duration::from_millis(5);
    let _turn = TURN.lock().await;
    let (house, provider) = closing(IDLE, Duration::from_secs(60)).await;
    for number in 0..40 {
        send_once(&house, number).await;
        sleep(IDLE * 8).await;
    }
    assert_eq!(provider.connections(), 40, "each connection was closed after one request");
    assert_executed_once_each(&house, &provider, 40).await;
}

async fn closing(provider_idle: Duration, pool_idle: Duration) -> (House, SocketProvider) {
    let provider = SocketProvider::start(After::CloseIdle(provider_idle)).await;
    let upstream = UpstreamOptions { idle_timeout: pool_idle, ..UpstreamOptions::default() };
    let setup = Setup { tiers: Vec::new(), providers: vec![provider.url()], upstream, ..Setup::default() };
    (House::build(setup).await, provider)
}

async fn send_once(house: &House, number: u32) {
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 200, "request {number}: {}", read.text());
    assert_eq!(read.header("x-weir-attempts"), "1", "an unsent request is the same attempt");
}

async fn assert_executed_once_each(house: &House, provider: &SocketProvider, count: usize) {
    assert_eq!(provider.seen().len(), count, "each request was executed once");
    house.assert_at_rest().await;
    assert_eq!(house.quota.read(&tenant()).await.unwrap().pending, 0);
}

/// The request went out and the connection broke before an answer: it may have been executed. That is said, held and
/// not repeated where nobody covers it; the breaker does not open because of a few.
#[tokio::test]
async fn o48_a_reused_connection_that_is_reset_under_the_request_is_never_free() {
    let _turn = TURN.lock().await;
    let provider = SocketProvider::start(After::ResetOnReuse).await;
    let setup = Setup { tiers: Vec::new(), providers: vec![provider.url()], ..Setup::default() };
    let house = House::build(setup).await;
    assert_eq!(house.post(body(false)).await.status, 200);
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.header("x-should-retry")), (502, "false"), "{}", read.text());
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    assert!(!reservation.held().is_zero());
    assert_eq!(house.post(body(false)).await.status, 200, "the breaker is closed");
    house.assert_at_rest().await;

    // Where another deployment can be asked and the limits cover both, the client sees nothing of it.
    let (breaking, other) =
        (SocketProvider::start(After::ResetOnReuse).await, SocketProvider::start(After::Keep).await);
    let providers = vec![breaking.url(), other.url()];
    let house = House::build(Setup { tiers: Vec::new(), providers, ..Setup::default() }).await;
    for attempts in ["1", "2"] {
        let read = house.post(body(false)).await;
        assert_eq!((read.status.as_u16(), read.header("x-weir-attempts")), (200, attempts), "{}", read.text());
    }
    assert_eq!((breaking.seen().len(), other.seen().len()), (1, 1));
}
