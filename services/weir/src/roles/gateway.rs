//! `weir gateway`: the request path, and nothing else.

use std::sync::Arc;

use tokio::net::TcpListener;

use weir_providers::Upstream;
use weir_quota::QuotaStore;
use weir_runtime::listener::serve;
use weir_runtime::tls;
use weir_streams::EventLog;
use weir_streams::spool::SpooledLog;

use crate::process::{FINISH, Spool};
use crate::up::{admission, heart};

use super::RoleError;
use super::ground::{Door, Ground, Stop};
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
    let log: Arc<dyn EventLog> = spooled;
    let Some(quota) = ground.quota(stop).await? else { return end(ground, &log).await };
    let quota: Arc<dyn QuotaStore> = quota;

    let policy = ground.policy(&log)?;
    let running = ground.running(&log, Some(&spool), &policy.snapshot);
    heart::start(&running);
    Watch::default().log(&running).quota(&running, Arc::clone(&quota)).policy(&running, &policy).start(&running).await;
    let gateway = admission::gateway(&running, &quota, pepper, upstream);
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

impl Spool for SpooledLog {
    /// Over all topics: what matters is whether they are the same.
    fn positions(&self) -> (u64, u64) {
        let heads = self.status().heads;
        let sum = |of: fn(&(weir_streams::Topic, u64, u64)) -> u64| heads.iter().map(of).sum();
        (sum(|(_, _, end)| *end), sum(|(_, forwarded, _)| *forwarded))
    }
}
