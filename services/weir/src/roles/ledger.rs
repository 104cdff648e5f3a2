//! `weir ledger`: from events to lines.
//!
//! A builder a partition, so that partitions do not wait for each other and each can go to another process alone. Each
//! takes checkpoints of its partition; whoever takes it over, and a rebuild of counters, folds on from the newest.

use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio::net::TcpListener;

use weir_domain::policy::Snapshot;
use weir_domain::price::PriceBook;
use weir_domain::quota::BookOptions;
use weir_ledger::contract::LedgerStore;
use weir_ledger::{CheckpointOptions, LedgerBuilder};
use weir_runtime::clock::SharedClock;
use weir_runtime::story::story;
use weir_streams::consumer::{Effect, Positions};
use weir_streams::kafka::{Assignee, Work};
use weir_streams::{EventLog, Subscription, Topic};

use crate::up::heart;
use crate::up::upkeep::conditions;

use super::RoleError;
use super::ground::{Ground, Stop};
use super::groups::{join, work};
use super::watch::Watch;

pub(super) async fn run(ground: &Ground, listener: TcpListener, stop: &Stop) -> Result<(), RoleError> {
    ground.serve_probes(listener, &ground.owners.operators);
    let Some(log) = ground.log(stop).await? else { return Ok(()) };
    let Some(ledger) = ground.ledger(stop).await? else { return end(ground, &log).await };

    // No policy is asked here: what was locked at admission is on the log.
    let nothing = Snapshot::empty(Arc::new(PriceBook::new(&[], |_| "".into())?));
    let snapshot = Arc::new(ArcSwap::from_pointee(nothing));
    let running = ground.running(&log, None, &snapshot);
    heart::start(&running);
    let builders = Builders {
        log: Arc::clone(&log),
        ledger,
        clock: Arc::clone(&ground.clock),
        book: ground.config.book(),
        checkpoints: ground.config.ledger.checkpoints(),
    };
    let group = join(ground, &running, weir_ledger::CONSUMER, Topic::Reservations, Arc::new(builders))?;
    Watch::default().log(&running).groups(&running, conditions::LEDGER, vec![group]).start(&running).await;

    stop.asked().await;
    end(ground, &log).await
}

async fn end(ground: &Ground, log: &Arc<dyn EventLog>) -> Result<(), RoleError> {
    ground.end(Some(log)).await;
    Ok(())
}

/// Makes the builder of a partition when it comes, and lets go of it when it goes.
struct Builders {
    log: Arc<dyn EventLog>,
    ledger: Arc<dyn LedgerStore>,
    clock: SharedClock,
    book: BookOptions,
    checkpoints: CheckpointOptions,
}

#[async_trait]
impl Assignee for Builders {
    async fn take(&self, of: &Subscription, _: Arc<dyn Positions>) -> Result<Work, String> {
        let folded = weir_ledger::start::partition(&*self.log, &self.ledger, of.partition, self.book).await;
        let folded = folded.map_err(|error| story(&error))?;
        tracing::info!(partition = of.partition, replayed = folded.replayed_events, "partition taken over");
        let (log, ledger, clock) = (Arc::clone(&self.log), Arc::clone(&self.ledger), Arc::clone(&self.clock));
        let builder: Arc<dyn Effect> = Arc::new(LedgerBuilder::new(folded, log, ledger, clock, self.checkpoints));
        Ok(work(builder, &self.ledger))
    }

    async fn give_up(&self, _: &Subscription) {}
}
