//! What is under the log goes wrong: damage while nobody looks, a disk that is full or may not be written, a second
//! process. Admission closes and says why, or the start refuses and says what; nothing is silently shorter.

#![expect(clippy::expect_used, reason = "helpers of tests panic with what they saw, as tests do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use weir_domain::ledger::LineKey;
use weir_tests::catalog::TENANT;
use weir_tests::client::chat;
use weir_tests::crash::{self, After, ONE, Seen, refusal_to_start};
use weir_tests::failpoints::Plan;
use weir_tests::random::{Random, seed};
use weir_tests::{House, PATIENCE, eventually};

/// Damage and truncation at random bytes of the newest segments, with and without the ledger that was derived from them:
/// the start refuses and names the file, or everything that was ever confirmed is there.
#[test]
fn a_damaged_or_shortened_log_is_refused_or_whole_again() {
    let seed = seed();
    println!("WEIR_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    run(async move {
        let plan = Plan::default();
        let mut house = House::start(crash::setup(&plan, "", "")).await;
        let known = killed_in_the_middle(&mut house, &plan).await;
        let kept = tempfile::tempdir().expect("a folder can be made");
        copy(&house.data(), kept.path());
        let trials = if std::env::var_os("WEIR_CRASH").is_some() { 200 } else { 24 };
        let (mut refused, mut whole) = (0, 0);
        for trial in 0..trials {
            fs::remove_dir_all(house.data()).expect("a data folder can be removed");
            copy(kept.path(), &house.data());
            // The first is only the kill itself.
            let damage = (trial > 0).then(|| Damage::pick(&mut random, &house.data()));
            let what = damage.map_or("nothing".to_owned(), |damage| damage.inflict(&mut random));
            // Without the ledger's file only the log can know.
            if random.below(2) == 0 {
                forget_ledger(&house.data());
            }
            if let Some(said) = refusal_to_start(&house) {
                assert!(trial > 0, "a killed process cannot start again: {said}");
                assert!(said.contains(".seg") || said.contains("/log/"), "{trial}: {what}: names no file: {said}");
                refused += 1;
                continue;
            }
            house.restart().await;
            let after = After::damage(&house, &known.seen).await;
            known.is_in(&after, &format!("{trial}: {what}"));
            house.process.kill();
            whole += 1;
        }
        println!("{trials} damaged logs: {refused} refused, {whole} whole");
        assert!(refused > 0, "not one damage was of what had been confirmed");
        assert!(whole > 1, "not one damage was of what nobody had confirmed");
    });
}

/// What had been confirmed before the kill.
struct Known {
    seen: Vec<Seen>,
    lines: Vec<LineKey>,
}

impl Known {
    /// No line is missing; what a client saw was looked at before.
    fn is_in(&self, after: &After, what: &str) {
        for key in &self.lines {
            assert!(after.rest.lines.iter().any(|line| line.key == *key), "{what}: {key:?} is gone");
        }
    }
}

/// Syncs are slow, so that at the kill much is written of which nobody was told.
async fn killed_in_the_middle(house: &mut House, plan: &Plan) -> Known {
    let mut seen = crash::send_all(&house.client, ONE, true, 10, 30).await;
    let lines = house.at_rest(TENANT, PATIENCE).await.lines.iter().map(|line| line.key).collect();
    plan.set("log.before_sync=delay:150ms");
    house.restart().await;
    plan.set("");
    let client = house.client.clone();
    let more = weir_runtime::tasks::Tasks::new()
        .spawn("clients", async move { crash::send_all(&client, ONE, true, 20, 60).await });
    tokio::time::sleep(Duration::from_millis(700)).await;
    house.process.kill();
    seen.extend(more.await.expect("clients do not panic"));
    crash::provider_is_quiet(house).await;
    Known { seen, lines }
}

enum Damage {
    Flip { file: PathBuf, at: u64 },
    Truncate { file: PathBuf, at: u64 },
    Zero { file: PathBuf, from: u64 },
    Remove { file: PathBuf },
}

impl Damage {
    fn pick(random: &mut Random, data: &Path) -> Self {
        let topic = *random.pick(&["reservations", "reservations", "ledger"]);
        let mut segments: Vec<PathBuf> = fs::read_dir(data.join("log").join(topic))
            .expect("the topic has a folder")
            .map(|entry| entry.expect("an entry can be read").path())
            .collect();
        segments.sort();
        let file = segments.pop().expect("the topic has a segment");
        let len = file.metadata().expect("a file has a length").len();
        // Half of them near the end, where not all was confirmed.
        let at = if random.below(2) == 0 { len - 1 - random.below(len.min(4_000)) } else { random.below(len) };
        match random.below(8) {
            0..=2 => Self::Flip { file, at },
            3..=5 => Self::Truncate { file, at },
            6 => Self::Zero { file, from: at },
            _ => Self::Remove { file },
        }
    }

    fn inflict(self, random: &mut Random) -> String {
        let name = |file: &Path| file.strip_prefix("/").unwrap_or(file).display().to_string();
        match self {
            Self::Flip { file, at } => {
                change(&file, |bytes| bytes[usize::try_from(at).expect("small")] ^= 1 << random.below(8));
                format!("a bit flipped at {at} of {}", name(&file))
            }
            Self::Truncate { file, at } => {
                let open = fs::OpenOptions::new().write(true).open(&file).expect("a file can be opened");
                open.set_len(at).expect("a file can be cut");
                format!("cut at {at} of {}", name(&file))
            }
            Self::Zero { file, from } => {
                change(&file, |bytes| bytes[usize::try_from(from).expect("small")..].fill(0));
                format!("zeros from {from} of {}", name(&file))
            }
            Self::Remove { file } => {
                fs::remove_file(&file).expect("a file can be removed");
                format!("without {}", name(&file))
            }
        }
    }
}

fn change(file: &Path, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(file).expect("a file can be read");
    change(&mut bytes);
    fs::write(file, bytes).expect("a file can be written");
}

fn forget_ledger(data: &Path) {
    for name in ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"] {
        // The last two may not be there.
        let _removed = fs::remove_file(data.join(name)).is_ok();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for entry in fs::read_dir(from).expect("a folder can be listed") {
        let (path, into) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).expect("an entry can be read");
        if path.is_dir() {
            copy(&path, &into);
        } else {
            fs::copy(&path, &into).expect("a file can be copied");
        }
    }
}

/// A disk that is full while requests run: nobody is admitted whose events could be lost, the probe says why, and with
/// room again everything is exact.
#[test]
fn a_full_disk_closes_admission_and_nothing_is_counted_twice_afterwards() {
    run(async {
        let plan = Plan::default();
        let mut house = House::start(crash::setup(&plan, "", "")).await;
        let seen = crash::send_all(&house.client, ONE, true, 10, 20).await;
        assert!(seen.iter().all(|seen| seen.whole));
        let running = crash::send_all(&house.client, ONE, true, 10, 10);
        // No file of the process may grow any further: what a full disk is to a write.
        let filled = async { may_not_grow(&house) };
        let (mut seen, ()) = tokio::join!(running, filled);
        seen.extend(admission_closes(&house, "too large").await);
        house.process.kill();
        crash::provider_is_quiet(&house).await;
        house.restart().await;
        is_exact_again(&house, &seen).await;
    });
}

/// The same on a file system that is really full, where this machine lets us mount one.
#[test]
fn a_full_file_system_closes_admission() {
    run(async {
        let plan = Plan::default();
        let mut house = House::start(crash::setup(&plan, "", "")).await;
        let mut seen = crash::send_all(&house.client, ONE, true, 10, 20).await;
        house.stop().await;
        let small = match SmallDisk::mount() {
            Ok(small) => small,
            Err(why) => return println!("no file system of a test's own: {why}"),
        };
        small.takes(&house.data());
        house.restart().await;
        let filler = small.0.path().join("filler");
        small.fill(&filler, 40_000);
        seen.extend(admission_closes(&house, "no space left").await);
        house.process.kill();
        crash::provider_is_quiet(&house).await;
        // As long as there is no room a start says so instead of going on without its log.
        let said = refusal_to_start(&house);
        fs::remove_file(&filler).expect("the filler can be removed");
        assert!(said.is_none_or(|said| said.to_lowercase().contains("space") || said.contains("full")));
        house.restart().await;
        is_exact_again(&house, &seen).await;
        house.process.kill();
        small.remount("ro");
        let said = refusal_to_start(&house).expect("a folder that cannot be written is refused");
        assert!(said.contains("cannot be written") && said.contains("--data"), "{said}");
        small.remount("rw");
        house.restart().await;
        After::assert_is_the_bill(&house).await;
        house.process.kill();
    });
}

/// A file system in memory, of eight megabytes.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Result<Self, String> {
        let folder = tempfile::tempdir().expect("a folder can be made");
        mount(&["-t", "tmpfs", "-o", "size=8m", "tmpfs"], folder.path()).map(|()| Self(folder))
    }

    fn remount(&self, how: &str) {
        mount(&["-o", &format!("remount,{how}")], self.0.path()).expect("it is ours to remount");
    }

    /// Moves a data folder here, with a link where it was.
    fn takes(&self, data: &Path) {
        let here = self.0.path().join("data");
        copy(data, &here);
        fs::remove_dir_all(data).expect("a data folder can be removed");
        std::os::unix::fs::symlink(&here, data).expect("a link can be made");
    }

    /// Leaves about `left` bytes free.
    fn fill(&self, filler: &Path, left: usize) {
        let mut bytes = Vec::new();
        while fs::write(filler, &bytes).is_ok() {
            bytes.resize(bytes.len() + 16 * 1024, 1);
        }
        let most = bytes.len().saturating_sub(16 * 1024 + left);
        fs::write(filler, &bytes[..most]).expect("a smaller file fits");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that is just being killed may still be in it.
        let _unmounted = Command::new("umount").arg("--lazy").arg(self.0.path()).status().is_ok();
    }
}

fn mount(arguments: &[&str], on: &Path) -> Result<(), String> {
    let output = Command::new("mount").args(arguments).arg(on).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// `RLIMIT_FSIZE` a little above what the newest segment of the reservations has: the launcher lets the process ignore
/// the signal, so writes beyond fail as they do on a full disk. (It needs no
/// rights that a CI machine would not give.)
fn may_not_grow(house: &House) {
    let newest = fs::read_dir(house.data().join("log/reservations"))
        .expect("the topic has a folder")
        .map(|entry| entry.and_then(|entry| entry.metadata()).expect("a file has a length").len())
        .max();
    let limit = newest.expect("the topic has a segment") + 3_000;
    let status =
        Command::new("prlimit").args([&format!("--pid={}", house.process.pid()), &format!("--fsize={limit}")]).status();
    assert!(status.is_ok_and(|status| status.success()), "prlimit is part of util-linux");
}

/// The same where the system says that files may not be written.
#[test]
fn a_disk_that_turns_read_only_closes_admission() {
    run(async {
        let plan = Plan::default();
        plan.set("log.read_only=fail@12");
        let mut house = House::start(crash::setup(&plan, "", "")).await;
        let mut seen = crash::send_all(&house.client, ONE, false, 2, 20).await;
        seen.extend(admission_closes(&house, "read-only").await);
        plan.set("");
        house.process.kill();
        crash::provider_is_quiet(&house).await;
        house.restart().await;
        is_exact_again(&house, &seen).await;
    });
}

/// A sync that fails: what was written and not confirmed may be gone, so nothing more is taken.
#[test]
fn a_failed_sync_closes_admission() {
    run(async {
        let plan = Plan::default();
        plan.set("log.before_sync=fail@9");
        let mut house = House::start(crash::setup(&plan, "", "")).await;
        let mut seen = crash::send_all(&house.client, ONE, true, 4, 20).await;
        seen.extend(admission_closes(&house, "sync").await);
        plan.set("");
        house.process.kill();
        crash::provider_is_quiet(&house).await;
        house.restart().await;
        is_exact_again(&house, &seen).await;
    });
}

/// Sends until a request is refused because of the log; `/readyz` then names the log and `reason`.
async fn admission_closes(house: &House, reason: &str) -> Vec<Seen> {
    let mut seen = Vec::new();
    let refused = eventually("a refusal", PATIENCE, async || {
        let answer = house.client.chat(&chat(ONE, false, &json!({}))).await;
        seen.push(Seen {
            status: Some(answer.status.as_u16()),
            reservation: answer.reservation().and_then(|id| id.parse().ok()),
            content: answer.status.is_success(),
            whole: answer.status.is_success(),
        });
        (!answer.status.is_success()).then_some(answer)
    })
    .await;
    assert_eq!(refused.status.as_u16(), 503, "{}", refused.text());
    assert!(refused.text().contains("log_unavailable"), "{}", refused.text());
    // From now on none is admitted, and none reaches the provider.
    let calls = house.stub.totals().requests;
    for stream in [false, true] {
        let again = house.client.chat(&chat(ONE, stream, &json!({}))).await.expect(503);
        assert!(again.text().contains("log_unavailable"), "{}", again.text());
    }
    assert_eq!(house.stub.totals().requests, calls, "the provider was called for what cannot be recorded");
    let probe = eventually("a probe that says no", PATIENCE, async || {
        let answer = house.client.get("/readyz").await;
        let text = answer.text();
        // The ledger may be the first to notice; what closes admission follows.
        (answer.status.as_u16() == 503 && text.contains("\"condition\":\"log\"")).then_some(text)
    })
    .await;
    assert!(probe.to_lowercase().contains(reason), "{probe}");
    seen
}

async fn is_exact_again(house: &House, seen: &[Seen]) {
    let after = After::a_lease(house, seen).await;
    let rows = after.reports(house).await;
    assert!(rows.is_empty() || crash::import(house, &rows).status.success());
    After::assert_is_the_bill(house).await;
    assert!(crash::send(house.client.clone(), ONE.to_owned(), true).await.whole);
    After::assert_is_the_bill(house).await;
}

/// The data folder has one owner: the second process is refused by name, and the first does not notice.
#[test]
fn a_second_process_on_the_same_data_is_refused() {
    run(async {
        let plan = Plan::default();
        let house = House::start(crash::setup(&plan, "", "")).await;
        assert!(crash::send(house.client.clone(), ONE.to_owned(), false).await.whole);
        let said = refusal_to_start(&house).expect("a second process is refused");
        assert!(said.contains(&format!("in use by process {}", house.process.pid())), "{said}");
        assert!(crash::send(house.client.clone(), ONE.to_owned(), true).await.whole);
        After::assert_is_the_bill(&house).await;
    });
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be built").block_on(test);
}
