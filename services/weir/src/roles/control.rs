//! `weir control`: the admin API, and the policy on its way to the gateways.
//!
//! Any number of control planes share their store, and each publishes what any of them wrote. Gateways need none to run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;

use weir_control::SnapshotSource as _;
use weir_quota::QuotaStore;
use weir_quota::redis::RedisQuota;
use weir_streams::EventLog;

use crate::events::EventSource;
use crate::up::consumers::{self, Derived};
use crate::up::heart;
use crate::up::operators::{Desk, serve_admin};
use crate::up::policy::CatalogSource;
use crate::up::prices::PriceBooks;
use crate::up::upkeep::{follow_snapshots, publish};

use super::RoleError;
use super::ground::{Door, Ground, Stop};
use super::rebuilder::Rebuilder;
use super::watch::Watch;

/// How often gateways hear that the control plane lives: well below what an operator may set as the oldest policy.
const CONFIRM_EVERY: Duration = Duration::from_secs(10);

pub(super) async fn run(
    ground: &Ground,
    listener: TcpListener,
    catalog: Option<PathBuf>,
    stop: &Stop,
) -> Result<(), RoleError> {
    let source = catalog.map_or(CatalogSource::Stored, CatalogSource::File);
    let door = Door::open(ground, listener)?;

    let Some(control) = ground.control(&source, stop).await? else { return Ok(()) };
    let Some(log) = ground.log(stop).await? else { return Ok(()) };
    let snapshot = Arc::new(ArcSwap::new(control.current()));
    let running = ground.running(&log, None, &snapshot);
    follow_snapshots(&*control, &snapshot, &ground.owners.beside);
    // The policy does not wait for the stores that operators look at.
    let publisher = publish(&running, &control, Some(CONFIRM_EVERY));
    heart::start(&running);
    let Some(quota) = ground.quota(stop).await? else { return end(ground, &log).await };
    let Some(ledger) = ground.ledger(stop).await? else { return end(ground, &log).await };

    let derived = Derived {
        ledger,
        quota: Arc::<RedisQuota>::clone(&quota) as Arc<dyn QuotaStore>,
        books: Arc::clone(&control) as Arc<dyn PriceBooks>,
    };
    let watch = Watch::default().log(&running).quota(&running, Arc::clone(&derived.quota));
    watch.publisher(&running, publisher).start(&running).await;
    ground.health.ready(crate::up::upkeep::conditions::LEDGER);
    let rebuilder = Rebuilder::new(&running, &derived, &quota, &consumers::presence(&running));
    let desk = Desk {
        control: &control,
        derived: &derived,
        events: EventSource::Log(Arc::clone(&log)),
        rebuild: Arc::new(rebuilder),
        topic_prefix: &ground.stores.kafka.prefix,
    };
    serve_admin(door.hand_over().await?, &running, desk);

    stop.asked().await;
    end(ground, &log).await
}

async fn end(ground: &Ground, log: &Arc<dyn EventLog>) -> Result<(), RoleError> {
    ground.end(Some(log)).await;
    Ok(())
}
