//! The spool beside a real broker that is killed: nothing confirmed is lost, nothing overtakes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use weir_runtime::units::ByteSize;
use weir_streams::kafka::{KafkaOptions, SpoolOptions};
use weir_streams::spool::{SpoolError, SpoolMetrics, SpooledLog, adopt};
use weir_streams::{AppendError, CloseCause, EventLog, Health, Topic};

use crate::support::{Brokers, Outcome, batch, everything, is_skipped, text};

const PATIENCE: Duration = Duration::from_secs(90);
const CHILD: &str = "WEIR_TEST_SPOOL_CHILD";

/// A broker that these tests kill, so they take turns.
async fn mortal() -> (&'static Brokers, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::const_new(());
    static BROKER: OnceLock<Brokers> = OnceLock::new();
    let turn = TURN.lock().await;
    (BROKER.get_or_init(|| Brokers::start(1)), turn)
}

async fn spooled(options: &KafkaOptions, folder: &Path) -> Outcome<Arc<SpooledLog>> {
    Ok(Arc::new(SpooledLog::open(options, folder, SpoolMetrics::default()).await?))
}

/// The values of each key in the order in which each came first, and how many records there are.
async fn firsts(log: &dyn EventLog) -> Outcome<(BTreeMap<String, Vec<u32>>, usize)> {
    let mut by_key: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let all = everything(log, Topic::Reservations).await?;
    for record in &all {
        let value = text(&record.value).trim_start().parse()?;
        let values = by_key.entry(text(&record.key)).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }
    Ok((by_key, all.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_absorbed_and_forwarded_in_order() -> Outcome {
    const KEYS: u32 = 10;
    if is_skipped("outage with spool") {
        return Ok(());
    }
    let (broker, _turn) = mortal().await;
    let options = broker.installation(3).await;
    let folder = tempfile::tempdir()?;
    let log = spooled(&options, folder.path()).await?;
    let mut waits = JoinSet::new();
    let mut rounds = 0;
    let append_for = async |rounds: &mut u32, waits: &mut JoinSet<Result<Duration, AppendError>>, time: Duration| {
        let until = Instant::now() + time;
        while Instant::now() < until {
            for key in 0..KEYS {
                let (append, since) = (log.append(batch(&format!("k{key}"), &[&rounds.to_string()])), Instant::now());
                waits.spawn(async move { append.durable().await.map(|_| since.elapsed()) });
            }
            *rounds += 1;
            sleep(Duration::from_millis(10)).await;
        }
    };
    append_for(&mut rounds, &mut waits, Duration::from_secs(1)).await;
    broker.act(&["kill", "1"]).await;
    append_for(&mut rounds, &mut waits, Duration::from_secs(3)).await;
    let spooled = log.status();
    assert!(spooled.records > 100 && spooled.bytes > 0 && spooled.age.is_some(), "{spooled:?}");
    assert_eq!(log.health(), Health::Accepting);
    broker.act(&["restart", "1"]).await;
    let before = log.status().heads;
    // Whoever waits for what was appended so far is not held up by what comes after it.
    let confirmed = timeout(PATIENCE, log.confirmed(before[0].0));
    let (confirmed, ()) = tokio::join!(confirmed, append_for(&mut rounds, &mut waits, Duration::from_secs(2)));
    confirmed?;
    let after = log.status().heads;
    assert!(after.is_empty() || after[0].1 >= before[0].2, "{before:?} {after:?}");

    let mut slowest = Duration::ZERO;
    while let Some(waited) = timeout(PATIENCE, waits.join_next()).await? {
        slowest = slowest.max(waited??);
    }
    timeout(PATIENCE, log.drained()).await?;
    assert_eq!(log.status().records, 0);
    let (by_key, records) = firsts(log.as_ref()).await?;
    assert_eq!(by_key.len(), KEYS as usize);
    for (key, values) in by_key {
        assert_eq!(values, (0..rounds).collect::<Vec<_>>(), "{key}");
    }
    // Nothing crashed, so nothing was sent twice; and a lane that is empty is direct again.
    assert_eq!(records, (rounds * KEYS) as usize);
    let placed = timeout(PATIENCE, async {
        loop {
            let placed = log.append(batch("after", &["0"])).durable().await?;
            if !placed.in_spool {
                return Ok::<_, AppendError>(placed);
            }
        }
    });
    placed.await??;
    eprintln!("outage: {records} records, {} spooled at its end, slowest confirmation {slowest:?}", spooled.records);
    log.close().await;
    Ok(())
}

/// More waits than may be on its way to the brokers at once: what comes meanwhile stays behind all of it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_overtakes_a_backlog_that_is_longer_than_the_window() -> Outcome {
    const KEYS: u32 = 4;
    /// Batches of each key; of all, 2,048 may be on their way.
    const BACKLOG: u32 = 4_000;
    if is_skipped("a long backlog") {
        return Ok(());
    }
    let (broker, _turn) = mortal().await;
    let options = broker.installation(3).await;
    let folder = tempfile::tempdir()?;
    let log = spooled(&options, folder.path()).await?;
    // Neighbours of different keys, so that each is a batch of its own.
    let append_round = |round: u32| {
        let all = (0..KEYS).map(|key| log.append(batch(&format!("k{key}"), &[&round.to_string()])));
        all.collect::<Vec<_>>()
    };
    broker.act(&["kill", "1"]).await;
    for round in 0..BACKLOG {
        for append in append_round(round).into_iter().filter(|_| round % 50 == 0) {
            append.durable().await?;
        }
    }
    let waiting = log.status().records;
    assert!(waiting > 2 * 2_048, "{waiting} wait");
    broker.act(&["restart", "1"]).await;
    let (mut round, until) = (BACKLOG, Instant::now() + PATIENCE);
    let mut last = append_round(round);
    while log.status().records > 0 && Instant::now() < until {
        sleep(Duration::from_millis(1)).await;
        round += 1;
        last = append_round(round);
    }
    for append in last {
        append.durable().await?;
    }
    timeout(PATIENCE, log.drained()).await?;
    let (by_key, records) = firsts(log.as_ref()).await?;
    for (key, values) in by_key {
        let overtaken = values.iter().zip(0..).find(|(value, place)| *value != place);
        assert_eq!(overtaken, None, "{key}: what came at the place of another");
        assert_eq!(values.len(), (round + 1) as usize, "{key}");
    }
    eprintln!("{waiting} waited, {} came while they were forwarded: {records} records", (round - BACKLOG) * KEYS);
    log.close().await;
    Ok(())
}

/// In a child process: appends for ever, and prints each round that is durable.
#[tokio::test(flavor = "multi_thread")]
async fn child_that_appends() -> Outcome {
    let Ok(given) = std::env::var(CHILD) else { return Ok(()) };
    let (folder, options) = given.split_once('\n').ok_or("two lines")?;
    let options: KafkaOptions = serde_json::from_str(options)?;
    let log = spooled(&options, Path::new(folder)).await?;
    for round in 0u32.. {
        let appends: Vec<_> = (0..5).map(|key| log.append(batch(&format!("k{key}"), &[&round.to_string()]))).collect();
        for append in appends {
            append.durable().await?;
        }
        println!("durable {round}");
    }
    Ok(())
}

struct Appending {
    child: Child,
    lines: std::sync::mpsc::Receiver<u32>,
}

impl Appending {
    fn start(options: &KafkaOptions, folder: &Path) -> Outcome<Self> {
        let given = format!("{}\n{}", folder.display(), serde_json::to_string(options)?);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["spool::child_that_appends", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, given)
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().ok_or("no stdout")?;
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let round = line.split_once("durable ").and_then(|(_, round)| round.parse().ok());
                if round.is_some_and(|round| sender.send(round).is_err()) {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    fn reach(&self, round: u32) -> Outcome {
        while self.lines.recv_timeout(PATIENCE)? < round {}
        Ok(())
    }

    /// SIGKILL; the last round that it had called durable.
    fn kill(mut self, at_least: u32) -> Outcome<u32> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.lines.try_iter().max().unwrap_or(at_least))
    }
}

/// The gateway is killed in the middle of the outage, which is what the spool is on disk for.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_outage_loses_nothing_that_was_confirmed() -> Outcome {
    /// Values from here on are not the dead process's.
    const MARK: u32 = 1_000_000;
    if is_skipped("SIGKILL in an outage") {
        return Ok(());
    }
    let (broker, _turn) = mortal().await;
    for adopts in [false, true] {
        let options = broker.installation(3).await;
        let folder = tempfile::tempdir()?;
        let mut marks = 0;
        let appending = Appending::start(&options, folder.path())?;
        appending.reach(20)?;
        broker.act(&["kill", "1"]).await;
        appending.reach(60)?;
        let in_use = adopt(&options, folder.path()).await;
        assert!(matches!(in_use, Err(SpoolError::Kafka(_))), "no broker, no adoption: {in_use:?}");
        let confirmed = appending.kill(60)?;
        broker.act(&["restart", "1"]).await;

        let log = if adopts {
            let adopted = adopt(&options, folder.path()).await?;
            assert!(adopted.records >= 5, "{adopted:?}");
            assert_eq!(adopt(&options, folder.path()).await?.records, 0, "a second time there is nothing to do");
            let empty = tempfile::tempdir()?;
            assert!(matches!(adopt(&options, empty.path()).await, Err(SpoolError::Absent { .. })));
            let log = spooled(&options, folder.path()).await?;
            let twice = adopt(&options, folder.path()).await;
            assert!(matches!(twice, Err(SpoolError::Segment { .. })), "a folder in use is refused: {twice:?}");
            log
        } else {
            let log = spooled(&options, folder.path()).await?;
            assert!(log.status().records >= 5, "{:?}", log.status());
            // While what the dead process left is forwarded: behind it, and never before it.
            while marks == 0 || (log.status().records > 0 && marks < 2000) {
                for key in 0..5 {
                    log.append(batch(&format!("k{key}"), &[&(MARK + marks).to_string()])).durable().await?;
                }
                marks += 1;
            }
            log
        };
        timeout(PATIENCE, log.drained()).await?;
        let (by_key, records) = firsts(log.as_ref()).await?;
        for (key, mut values) in by_key {
            let marked = values.split_off(values.len() - marks as usize);
            assert_eq!(marked, (MARK..MARK + marks).collect::<Vec<_>>(), "{key}");
            assert!(values.len() > confirmed as usize, "{key}: {} of {confirmed}", values.len());
            assert_eq!(values, (0..u32::try_from(values.len())?).collect::<Vec<_>>(), "{key}");
        }
        eprintln!("killed after round {confirmed}: {records} records in the log, {marks} marks");
        log.close().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_spool_refuses_new_work_and_still_takes_what_closes() -> Outcome {
    if is_skipped("full spool") {
        return Ok(());
    }
    let (broker, _turn) = mortal().await;
    let spool = SpoolOptions { max: ByteSize::kib(64), reserve: ByteSize::kib(32), ..SpoolOptions::default() };
    let options = KafkaOptions { spool, ..broker.installation(1).await };
    let folder = tempfile::tempdir()?;
    let log = spooled(&options, folder.path()).await?;
    log.append(batch("k", &["0"])).durable().await?;
    broker.act(&["kill", "1"]).await;
    let mut accepted = 1;
    let (mut opened, mut closing) = (0, 0);
    loop {
        let admits = log.health() == Health::Accepting;
        // Padded in front, so that it is still a number.
        match log.append(batch("k", &[&format!("{accepted:>1000}")])).durable().await {
            Ok(_) if admits => opened += 1,
            Ok(_) => closing += 1,
            Err(AppendError::Busy { .. }) => break,
            Err(error) => return Err(error.into()),
        }
        accepted += 1;
    }
    let Health::Closed(closed) = log.health() else { return Err("full and open".into()) };
    assert_eq!(closed.cause, CloseCause::SpoolFull);
    assert!(opened >= 20 && closing >= 20, "{opened} while open, {closing} after");
    broker.act(&["restart", "1"]).await;
    timeout(PATIENCE, log.drained()).await?;
    assert_eq!(log.health(), Health::Accepting, "it opens again by itself");
    let (by_key, _) = firsts(log.as_ref()).await?;
    assert_eq!(by_key["k"], (0..accepted).collect::<Vec<_>>());
    log.close().await;
    Ok(())
}
