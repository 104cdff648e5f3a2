//! What a process, and the whole machine, has used, as the kernel counts it.
//!
//! `/proc/PID/stat` counts in hundredths of a second, too coarse for a short round, so the figure is the sum of the
//! threads' run times, in nanoseconds. A thread that ended meanwhile would be missing there; then the coarse one counts.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::load::as_f64;

/// CPU time since the process began.
#[derive(Debug, Clone, Default)]
pub(crate) struct Used {
    /// By thread: its name and nanoseconds.
    threads: BTreeMap<u32, (String, u64)>,
    /// Of all threads that ever were, in ticks of 10 ms.
    ticks: u64,
}

const NS_PER_TICK: u64 = 10_000_000;

impl Used {
    pub(crate) fn of(pid: u32) -> Result<Self, BenchError> {
        let gone = |what: &str| BenchError::io(format!("{what} of process {pid}"));
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task")).map_err(gone("threads"))? {
            let path = entry.map_err(gone("threads"))?.path();
            let Some(tid) = path.file_name().and_then(|name| name.to_str()?.parse().ok()) else { continue };
            // A thread may end between the two reads.
            let (Ok(name), Ok(times)) =
                (fs::read_to_string(path.join("comm")), fs::read_to_string(path.join("schedstat")))
            else {
                continue;
            };
            let ns = times.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
            threads.insert(tid, (name.trim().to_owned(), ns));
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(gone("times"))?;
        Ok(Self { threads, ticks: ticks(&stat) })
    }

    /// Nanoseconds between `before` and this.
    pub(crate) fn since(&self, before: &Self) -> u64 {
        let exact: u64 = self.by_thread(before).values().sum();
        let is_whole = before.threads.keys().all(|tid| self.threads.contains_key(tid));
        if is_whole { exact } else { exact.max(self.ticks.saturating_sub(before.ticks) * NS_PER_TICK) }
    }

    /// The same by the names of threads.
    pub(crate) fn by_thread(&self, before: &Self) -> BTreeMap<&str, u64> {
        let mut by_name = BTreeMap::new();
        for (tid, (name, ns)) in &self.threads {
            let earlier = before.threads.get(tid).map_or(0, |(_, ns)| *ns);
            *by_name.entry(name.as_str()).or_default() += ns.saturating_sub(earlier);
        }
        by_name
    }
}

/// `utime` and `stime`: the 12th and 13th field after the command's name, which may itself hold spaces.
fn ticks(stat: &str) -> u64 {
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Ticks of all cores since the machine began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Machine {
    idle: u64,
    all: u64,
}

impl Machine {
    pub(crate) fn now() -> Result<Self, BenchError> {
        Ok(Self::of(&fs::read_to_string("/proc/stat").map_err(BenchError::io("the machine's times"))?))
    }

    /// The first line of `/proc/stat`: `cpu`, then user, nice, system, idle, waiting for a disk, interrupts, stolen; what
    /// guests took is in the first two again.
    fn of(stat: &str) -> Self {
        let first = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|each| each.parse().ok()).collect();
        Self { idle: ticks.iter().skip(3).take(2).sum(), all: ticks.iter().sum() }
    }

    /// Per cent of all cores that did something since `before`.
    pub(crate) fn busy_since(self, before: Self) -> f64 {
        let (all, idle) = (self.all.saturating_sub(before.all), self.idle.saturating_sub(before.idle));
        100.0 * as_f64(all.saturating_sub(idle)) / as_f64(all.max(1))
    }
}

/// Resident memory, KiB.
pub(crate) fn rss_kib(pid: u32) -> Result<u64, BenchError> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(BenchError::io("resident memory"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| BenchError::unexpected("resident memory", "no VmRSS line"))
}

/// Waits until the process has nothing left to do for the load that ended, so that what Weir derives afterwards counts
/// as its cost. Bounded: a process that never rests is measured as it is.
pub(crate) fn at_rest(pid: u32) -> Result<Used, BenchError> {
    const LOOK: Duration = Duration::from_millis(100);
    const RESTING: u64 = 4_000_000;
    const AT_MOST: Duration = Duration::from_secs(10);
    let until = Instant::now() + AT_MOST;
    let mut before = Used::of(pid)?;
    loop {
        std::thread::sleep(LOOK);
        let now = Used::of(pid)?;
        if now.since(&before) < RESTING || Instant::now() > until {
            return Ok(now);
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_a_name_with_spaces_and_brackets() {
        let stat = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 4";
        assert_eq!(ticks(stat), 300);
    }

    #[test]
    fn a_machine_is_busy_but_for_idling_and_waiting() {
        let before = Machine::of("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 1 1 1\n");
        let now = Machine::of("cpu  160 0 70 810 60 0 0 0 9 0\n");
        assert!((now.busy_since(before) - 80.0).abs() < 1e-9, "{now:?}");
    }

    #[test]
    fn an_ended_thread_makes_the_coarse_figure_count() {
        let used = |threads: &[(u32, u64)], ticks| Used {
            threads: threads.iter().map(|(tid, ns)| (*tid, ("t".to_owned(), *ns))).collect(),
            ticks,
        };
        let before = used(&[(1, 1_000), (2, 500)], 10);
        assert_eq!(used(&[(1, 4_000), (2, 600), (3, 7)], 10).since(&before), 3_107);
        assert_eq!(used(&[(1, 4_000)], 13).since(&before), 3 * NS_PER_TICK);
    }
}
