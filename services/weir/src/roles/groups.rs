//! Consumers as members of groups: which process follows which partition is the brokers' to say.

use std::sync::Arc;

use async_trait::async_trait;

use weir_ledger::contract::LedgerStore;
use weir_runtime::story::story;
use weir_streams::consumer::{ConsumerOptions, Effect, Positions};
use weir_streams::kafka::{Assignee, Group, GroupError, Work};
use weir_streams::{OnPoison, Subscription, Topic};

use crate::process::Running;

use super::ground::Ground;
use super::watch::Member;

/// Joins a group and follows what it is given until the tasks stop. Only money topics are followed, so poison parks its
/// key.
pub(super) fn join(
    ground: &Ground,
    running: &Running<'_>,
    name: &'static str,
    topic: Topic,
    assignee: Arc<dyn Assignee>,
) -> Result<Member, GroupError> {
    let options = ConsumerOptions::new(OnPoison::ParkKey);
    let group = Group::new(&ground.stores.kafka, name, topic, Arc::clone(running.log), assignee, options)?;
    let (member, stopping) = (Arc::clone(&group), running.owners.beside.stopping());
    drop(running.owners.beside.spawn(name, async move {
        if let Err(error) = member.run(stopping).await {
            tracing::error!(group = name, error = story(&error), "group left: a person is needed");
        }
    }));
    Ok((name, group))
}

/// One effect for all partitions; positions and parked keys in the ledger's store.
pub(super) struct Shared {
    pub effect: Arc<dyn Effect>,
    pub ledger: Arc<dyn LedgerStore>,
}

#[async_trait]
impl Assignee for Shared {
    async fn take(&self, _: &Subscription, _: Arc<dyn Positions>) -> Result<Work, String> {
        Ok(work(Arc::clone(&self.effect), &self.ledger))
    }

    async fn give_up(&self, _: &Subscription) {}
}

pub(super) fn work(effect: Arc<dyn Effect>, ledger: &Arc<dyn LedgerStore>) -> Work {
    Work { effect, positions: Arc::clone(ledger) as _, parking: Arc::clone(ledger) as _ }
}
