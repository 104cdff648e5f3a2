//! The points as they are when the feature is on: parsed once, counted per point.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::units::HumanDuration;

/// What a point does, from `WEIR_FAILPOINTS`.
#[derive(Debug)]
struct Point {
    act: Act,
    /// The hit at which to act; at each one where absent.
    only_at: Option<u64>,
    hits: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Kill,
    Delay(Duration),
    Fail,
}

static POINTS: LazyLock<HashMap<String, Point>> = LazyLock::new(|| {
    let script = std::env::var("WEIR_FAILPOINTS").unwrap_or_default();
    parse(&script).unwrap_or_else(|wrong| {
        tracing::error!(wrong, "WEIR_FAILPOINTS cannot be read");
        kill()
    })
});

/// The file that must be there before a hit counts, from `WEIR_FAILPOINTS_FROM`.
static FROM: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os("WEIR_FAILPOINTS_FROM").map(PathBuf::from));

/// [`super::clock_ahead_us`], from `WEIR_CLOCK_AHEAD_MS`.
static CLOCK_AHEAD_US: LazyLock<i64> = LazyLock::new(|| {
    let Ok(ms) = std::env::var("WEIR_CLOCK_AHEAD_MS") else { return 0 };
    ms.parse::<i64>().map_or_else(
        |wrong| {
            tracing::error!(%wrong, ms, "WEIR_CLOCK_AHEAD_MS cannot be read");
            kill()
        },
        |ms| ms.saturating_mul(1_000),
    )
});

/// As the environment says.
pub fn clock_ahead_us() -> i64 {
    *CLOCK_AHEAD_US
}

/// Once the file was seen it is not looked for again.
fn is_armed() -> bool {
    static SEEN: AtomicBool = AtomicBool::new(false);
    let Some(file) = FROM.as_deref() else { return true };
    if !SEEN.load(Ordering::SeqCst) && file.exists() {
        SEEN.store(true, Ordering::SeqCst);
    }
    SEEN.load(Ordering::SeqCst)
}

/// Passes a point. `true` asks the caller to fail. A delay blocks the thread: in async code use [`hit_async`].
#[must_use]
pub fn hit(point: &'static str) -> bool {
    match due(point) {
        None => false,
        Some(Act::Kill) => kill(),
        Some(Act::Fail) => true,
        Some(Act::Delay(delay)) => {
            std::thread::sleep(delay);
            false
        }
    }
}

/// [`hit`] for async code: a delay is awaited.
pub async fn hit_async(point: &'static str) -> bool {
    match due(point) {
        None => false,
        Some(Act::Kill) => kill(),
        Some(Act::Fail) => true,
        Some(Act::Delay(delay)) => {
            tokio::time::sleep(delay).await;
            false
        }
    }
}

fn due(name: &str) -> Option<Act> {
    let point = POINTS.get(name)?;
    if is_armed() { point.pass() } else { None }
}

impl Point {
    fn pass(&self) -> Option<Act> {
        let hit = self.hits.fetch_add(1, Ordering::SeqCst) + 1;
        self.only_at.is_none_or(|only| only == hit).then_some(self.act)
    }
}

/// A signal to the own process is delivered before the system call returns, so nothing after this line runs.
fn kill() -> ! {
    let own = rustix::process::getpid();
    let _sent = rustix::process::kill_process(own, rustix::process::Signal::KILL).is_ok();
    loop {
        std::thread::park();
    }
}

fn parse(script: &str) -> Result<HashMap<String, Point>, String> {
    script.split(';').map(str::trim).filter(|part| !part.is_empty()).map(parse_point).collect()
}

fn parse_point(part: &str) -> Result<(String, Point), String> {
    let (name, what) = part.split_once('=').ok_or_else(|| format!("`{part}` is not NAME=ACT"))?;
    let (act, only_at) = match what.split_once('@') {
        Some((act, at)) => (act, Some(at.parse().map_err(|_| format!("`{at}` in `{part}` is not a count"))?)),
        None => (what, None),
    };
    let act = match act.split_once(':') {
        None if act == "kill" => Act::Kill,
        None if act == "fail" => Act::Fail,
        Some(("delay", length)) => {
            let length: HumanDuration = length.parse().map_err(|wrong| format!("{wrong} in `{part}`"))?;
            Act::Delay(length.duration())
        }
        None | Some(_) => return Err(format!("`{act}` in `{part}` is none of kill, fail, delay:DURATION")),
    };
    Ok((name.trim().to_owned(), Point { act, only_at, hits: AtomicU64::new(0) }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_script_is_read_and_counts_its_hits() {
        let points = parse(" relay.before_usage=kill@3 ;x=delay:50ms; y=fail@2;").unwrap();
        assert_eq!((points["relay.before_usage"].act, points["relay.before_usage"].only_at), (Act::Kill, Some(3)));
        assert_eq!(points["x"].act, Act::Delay(Duration::from_millis(50)));
        let passes: Vec<_> = (0..3).map(|_| points["y"].pass()).collect();
        assert_eq!(passes, [None, Some(Act::Fail), None]);
        for wrong in ["x", "x=explode", "x=kill@soon", "x=delay:5", "x=delay"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Runs the test `child` of this very binary as a process of its own, with a script.
    fn run_child(script: &str) -> std::process::ExitStatus {
        child_with(script).status().unwrap()
    }

    fn child_with(script: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "failpoint::scripted::tests::child", "--quiet"])
            .env("WEIR_FAILPOINTS", script)
            .env("WEIR_FAILPOINT_CHILD", "yes");
        command
    }

    #[test]
    fn no_hit_counts_before_the_file_is_there() {
        let script = "fails=fail@2;slow=delay:20ms;dies=kill@3";
        let file = std::env::current_exe().unwrap();
        assert_eq!(child_with(script).env("WEIR_FAILPOINTS_FROM", &file).status().unwrap().signal(), Some(9));
        let nowhere = file.join("nowhere");
        let unarmed = child_with("dies=kill@1").env("WEIR_FAILPOINTS_FROM", nowhere).status().unwrap();
        assert_eq!(unarmed.signal(), None, "it fails at its first assertion instead");
    }

    /// Does nothing in an ordinary run; in the process that `run_child` starts it passes points.
    #[test]
    fn child() {
        if std::env::var_os("WEIR_FAILPOINT_CHILD").is_none() {
            return;
        }
        let started = Instant::now();
        assert_eq!((hit("fails"), hit("fails"), hit("nothing")), (false, true, false));
        assert!(!hit("slow") && started.elapsed() >= Duration::from_millis(20));
        (0..3).for_each(|_| assert!(!hit("dies")));
    }

    #[test]
    fn a_process_is_killed_at_the_hit_that_the_script_names() {
        let script = "fails=fail@2;slow=delay:20ms";
        assert!(run_child(script).success());
        assert_eq!(run_child(&format!("{script};dies=kill@3")).signal(), Some(9));
        assert!(run_child(&format!("{script};dies=kill@4")).success());
        assert_eq!(run_child("no script").signal(), Some(9), "an unreadable script never passes in silence");
    }
}
