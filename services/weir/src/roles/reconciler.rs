//! `weir reconciler`: ends what did not end by itself, and brings ledger and reports back to the counters.

use std::sync::Arc;

use tokio::net::TcpListener;

use weir_quota::QuotaStore;
use weir_quota::redis::RedisQuota;
use weir_reconciler::{Corrector, RecentCorrelations, ReconcilerMetrics, corrector, reports};
use weir_runtime::story::story;
use weir_streams::{EventLog, Topic};

use crate::process::Running;
use crate::up::consumers::{self, Derived};
use crate::up::heart;
use crate::up::prices::PriceBooks;

use super::RoleError;
use super::ground::{Ground, Policy, Stop};
use super::groups::{Shared, join};
use super::rebuilder::Rebuilder;
use super::watch::Watch;

/// Whether the consumers of this role follow what they were given.
pub(super) const CONSUMERS: &str = "consumers";

pub(super) async fn run(ground: &Ground, listener: TcpListener, stop: &Stop) -> Result<(), RoleError> {
    ground.serve_probes(listener, &ground.owners.operators);
    let Some(log) = ground.log(stop).await? else { return Ok(()) };
    let Some(ledger) = ground.ledger(stop).await? else { return end(ground, &log).await };
    let Some(quota) = ground.quota(stop).await? else { return end(ground, &log).await };

    let policy = ground.policy(&log)?;
    let running = ground.running(&log, None, &policy.snapshot);
    let Policy { follower, .. } = &policy;
    let derived = Derived {
        ledger,
        quota: Arc::<RedisQuota>::clone(&quota) as Arc<dyn QuotaStore>,
        books: Arc::clone(follower) as Arc<dyn PriceBooks>,
    };
    heart::start(&running);
    let tasks = &ground.owners.beside;
    let presence = consumers::presence(&running);
    let rebuilder = Rebuilder::new(&running, &derived, &quota, &presence);
    drop(tasks.spawn("rebuilder", rebuilder.run(tasks.clone())));

    let counted = ReconcilerMetrics::declare(&ground.metrics);
    let matching = consumers::reports(&running, &derived, &counted, followed_correlations(&running));
    let correcting = Corrector::new(Arc::clone(&derived.quota), counted.clone());
    let of = |effect| Arc::new(Shared { effect, ledger: Arc::clone(&derived.ledger) });
    let groups = vec![
        join(ground, &running, reports::CONSUMER, Topic::UsageReports, of(Arc::clone(&matching) as _))?,
        join(ground, &running, corrector::CONSUMER, Topic::Ledger, of(Arc::new(correcting) as _))?,
    ];
    drop(tasks.spawn("parked reports", matching.run(tasks.clone())));
    let sweep = consumers::sweep(&running, &derived, counted).minding(presence);
    drop(tasks.spawn("sweep", Arc::new(sweep).run(tasks.clone())));
    Watch::default()
        .log(&running)
        .quota(&running, Arc::clone(&derived.quota))
        .groups(&running, CONSUMERS, groups)
        .start(&running)
        .await;
    // The ledger's store was opened; whether it still answers shows in the consumers.
    ground.health.ready(crate::up::upkeep::conditions::LEDGER);

    stop.asked().await;
    end(ground, &log).await
}

/// The newest provider ids, followed from the log: for a process without a builder.
fn followed_correlations(running: &Running<'_>) -> Arc<RecentCorrelations> {
    let (index, tasks) = (Arc::new(RecentCorrelations::default()), &running.owners.beside);
    for partition in 0..running.log.partitions(Topic::Reservations) {
        let (following, log, stopping) = (Arc::clone(&index), Arc::clone(running.log), tasks.stopping());
        drop(tasks.spawn("correlations", async move {
            if let Err(error) = following.follow(log, partition, stopping).await {
                tracing::error!(error = story(&error), "provider ids are not followed any more");
            }
        }));
    }
    index
}

async fn end(ground: &Ground, log: &Arc<dyn EventLog>) -> Result<(), RoleError> {
    ground.end(Some(log)).await;
    Ok(())
}
