//! `weir gateway`: the request path, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpListener;

use weir_providers::Upstream;
use weir_quota::{QuotaStore, Trust};
use weir_reconciler::rebuild::{Holder, Questions};
use weir_runtime::listener::serve;
use weir_runtime::story::story;
use weir_runtime::tls;
use weir_streams::spool::SpooledLog;
use weir_streams::{EventLog, Topic};

use crate::process::{FINISH, Running, Spool};
use crate::up::{admission, heart};

use super::RoleError;
use super::ground::{Door, Ground, Stop};
use super::rebuilder::speaker;
use super::watch::Watch;

pub(super) async fn run(ground: &Ground, listener: TcpListener, stop: &Stop) -> Result<(), RoleError> {
    let config = &ground.config;
    let trust = tls::client_config(config.upstream.ca_file.as_deref())?;
    let upstream = Upstream::new(&trust, config.upstream.options());
    let pepper = ground.secrets.gateway_pepper()?;
    let server = crate::up::edges::server_tls(config)?;
    let door = Door::open(ground, listener)?;

    let Some(spooled) = ground.spooled_log(stop).await? else { return Ok(()) };
    let spool: Arc<dyn Spool> = Arc::<SpooledLog>::clone(&spooled);
    let log: Arc<dyn EventLog> = Arc::<SpooledLog>::clone(&spooled) as _;
    let Some(quota) = ground.quota(stop).await? else { return end(ground, &log).await };
    let quota: Arc<dyn QuotaStore> = quota;

    let policy = ground.policy(&log)?;
    let running = ground.running(&log, Some(&spool), &policy.snapshot);
    let trust = Arc::new(Trust::default());
    answer_rebuilds(&running, Holds { spooled: Arc::clone(&spooled), trust: Arc::clone(&trust) });
    heart::start(&running);
    if !is_known(&running, &spooled, stop).await {
        return end(ground, &log).await;
    }
    Watch::default().log(&running).quota(&running, Arc::clone(&quota)).policy(&running, &policy).start(&running).await;
    // Without a policy every key is unknown, and a client would take that for the last word.
    if !policy.came(stop).await {
        return end(ground, &log).await;
    }
    let gateway = admission::gateway(&running, &quota, &trust, pepper, upstream);
    drop(serve(door.hand_over().await?, server, config.listener.clone(), gateway, &ground.owners.requests));

    stop.asked().await;
    tracing::info!("stopping: no new requests");
    let cut = ground.owners.requests.stop(config.listener.drain.duration().saturating_add(FINISH)).await;
    if !cut.is_empty() {
        tracing::warn!(cut = %cut, "requests were cut; the reconciler ends their reservations");
    }
    end(ground, &log).await
}

async fn end(ground: &Ground, log: &Arc<dyn EventLog>) -> Result<(), RoleError> {
    ground.end(Some(log)).await;
    Ok(())
}

/// Whoever rebuilds lost counters asks those who live, so this process is on the log before it is admitted to anything.
/// `false` when it is to end before that.
async fn is_known(running: &Running<'_>, spooled: &SpooledLog, stop: &Stop) -> bool {
    loop {
        tokio::select! {
            () = stop.asked() => return false,
            beat = heart::beat(running) => match beat {
                Ok(()) => break,
                Err(error) => {
                    tracing::warn!(error = story(&error), "not known to the others yet");
                    tokio::time::sleep(RETRY).await;
                }
            },
        }
    }
    tokio::select! {
        () = stop.asked() => false,
        () = spooled.confirmed(Topic::Operations) => true,
    }
}

/// Between two tries to be known.
const RETRY: Duration = Duration::from_secs(1);

/// What this process may spend by the word of a quota store that lost its data (I15).
#[derive(Debug)]
struct Holds {
    spooled: Arc<SpooledLog>,
    trust: Arc<Trust>,
}

#[async_trait]
impl Holder for Holds {
    fn doubt(&self) {
        self.trust.doubt();
    }

    async fn on_log(&self) {
        self.spooled.confirmed(Topic::Reservations).await;
    }
}

fn answer_rebuilds(running: &Running<'_>, holds: Holds) {
    let (questions, tasks) = (Arc::new(Questions::default()), &running.owners.beside);
    for partition in 0..running.log.partitions(Topic::Operations) {
        let (listening, log, stopping) = (Arc::clone(&questions), Arc::clone(running.log), tasks.stopping());
        drop(tasks.spawn("questions", async move {
            if let Err(error) = listening.listen(log, partition, stopping).await {
                tracing::error!(error = story(&error), "rebuilds are not answered any more");
            }
        }));
    }
    let (speaker, stopping) = (speaker(running), tasks.stopping());
    drop(tasks.spawn("answers", async move { questions.answer(&holds, &speaker, stopping).await }));
}

impl Spool for SpooledLog {
    /// Over all topics: what matters is whether they are the same.
    fn positions(&self) -> (u64, u64) {
        let heads = self.status().heads;
        let sum = |of: fn(&(weir_streams::Topic, u64, u64)) -> u64| heads.iter().map(of).sum();
        (sum(|(_, _, end)| *end), sum(|(_, forwarded, _)| *forwarded))
    }
}
