//! What every process has, whatever its role: who it is, what it tells, and who owns its tasks.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use weir_domain::policy::Snapshot;
use weir_reconciler::Journal;
use weir_reconciler::presence::owner;
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::SharedEntropy;
use weir_runtime::health::Health;
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::Tasks;
use weir_streams::EventLog;

use crate::config::Config;

/// After the listener's drain, requests that were cut still append their last events.
pub(crate) const FINISH: Duration = Duration::from_secs(5);
/// Longer than any answer of the admin API takes.
pub(crate) const OPERATORS_FINISH: Duration = Duration::from_secs(2);

/// Who owns which tasks, so that each part can be waited for alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Owners {
    /// Connections, requests and their money.
    pub requests: Tasks,
    /// Consumers, the sweep, upkeep.
    pub beside: Tasks,
    /// The admin API, and the probes of roles without another listener.
    pub operators: Tasks,
}

/// What a process is called on the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub role: &'static str,
    pub name: String,
    /// Rises with each start: the time of it, ms.
    pub epoch: u64,
}

impl Identity {
    /// `configured`, or the role and the process's number on this machine.
    pub fn new(role: &'static str, configured: Option<&str>, now_ms: i64) -> Self {
        let name = configured.map_or_else(|| format!("{role}-{}", std::process::id()), str::to_owned);
        Self { role, name, epoch: u64::try_from(now_ms).unwrap_or(0) }
    }

    /// Whose a reservation is that is made here. A restarted process is another owner: what it left behind is nobody's,
    /// and the sweep ends it.
    pub fn owner(&self, journal: &Journal) -> Arc<str> {
        owner(journal.region(), &self.name, self.epoch)
    }
}

/// How far the events of a process that are not on the log yet have come.
pub(crate) trait Spool: std::fmt::Debug + Send + Sync {
    /// The position after the newest event in the spool, and the one up to which it is on the log.
    fn positions(&self) -> (u64, u64);
}

/// What the parts of a process share.
#[derive(Clone, Copy)]
pub(crate) struct Running<'a> {
    pub config: &'a Config,
    pub log: &'a Arc<dyn EventLog>,
    /// Where events wait that are not on the log yet; the embedded log has none.
    pub spool: Option<&'a Arc<dyn Spool>>,
    pub identity: &'a Identity,
    /// The policy in force; empty in a role that needs none.
    pub snapshot: &'a Arc<ArcSwap<Snapshot>>,
    pub health: &'a Health,
    pub metrics: &'a Metrics,
    pub clock: &'a SharedClock,
    pub entropy: &'a SharedEntropy,
    pub owners: &'a Owners,
}
