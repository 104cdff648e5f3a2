//! `weir control`: the admin API, and the policy on its way to the gateways.
//!
//! The control store is a file in the data folder, held by a lock: one control plane a folder. Gateways do not need it
//! to run.

use std::fs::File;
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
use crate::up::policy::{self, CatalogSource};
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
    let _lock = lock(ground)?;
    let control = policy::open_control(&ground.data, &ground.secrets, &ground.clock, &ground.entropy)?;
    let source = catalog.map_or(CatalogSource::Stored, CatalogSource::File);
    policy::bring_catalog(&control, &source, None, &ground.data, ground.entropy.as_ref())?;
    let door = Door::open(ground, listener)?;

    let Some(log) = ground.log(stop).await? else { return Ok(()) };
    let snapshot = Arc::new(ArcSwap::new(control.current()));
    let running = ground.running(&log, None, &snapshot);
    follow_snapshots(&*control, &snapshot, &ground.owners.beside);
    // The policy does not wait for the stores that operators look at.
    let _publisher = publish(&running, &control, Some(CONFIRM_EVERY));
    heart::start(&running);
    let Some(quota) = ground.quota(stop).await? else { return end(ground, &log).await };
    let Some(ledger) = ground.ledger(stop).await? else { return end(ground, &log).await };

    let derived = Derived {
        ledger,
        quota: Arc::<RedisQuota>::clone(&quota) as Arc<dyn QuotaStore>,
        books: Arc::clone(&control) as Arc<dyn PriceBooks>,
    };
    Watch::default().log(&running).quota(&running, Arc::clone(&derived.quota)).start(&running).await;
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

fn lock(ground: &Ground) -> Result<File, RoleError> {
    let file = File::create(ground.data.path().join("control.lock"))?;
    let folder = ground.data.path().to_owned();
    file.try_lock().map_err(|_| RoleError::SecondControl { folder })?;
    Ok(file)
}
