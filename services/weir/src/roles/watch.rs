//! Readiness of a role apart: looks at its stores and consumers again and again.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use weir_control::Publisher;
use weir_quota::{MOST_CLOCK_SKEW_MS, QuotaError, QuotaStore};
use weir_streams::kafka::Group;
use weir_streams::{EventLog, Health as LogHealth};

use crate::process::Running;
use crate::up::upkeep::{LagMetrics, conditions};

use super::ground::{Policy, report};

/// How often the conditions are looked at: a probe asks every few seconds, and each look asks the stores.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What of a process is looked at.
#[derive(Default)]
pub(super) struct Watch {
    looks: Vec<Look>,
}

/// A consumer group by its name.
pub(super) type Member = (&'static str, Arc<Group>);

type Look = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl Watch {
    /// The log takes new events.
    pub fn log(mut self, running: &Running<'_>) -> Self {
        let (log, health) = (Arc::clone(running.log), running.health.clone());
        self.looks.push(Box::new(move || {
            let trouble = trouble_of(&*log);
            report(&health, conditions::LOG, trouble);
            Box::pin(std::future::ready(()))
        }));
        self
    }

    /// The quota store answers, and its clock is near enough for it to admit what comes from here.
    pub fn quota(mut self, running: &Running<'_>, quota: Arc<dyn QuotaStore>) -> Self {
        let (health, clock) = (running.health.clone(), Arc::clone(running.clock));
        self.looks.push(Box::new(move || {
            let (quota, health, clock) = (Arc::clone(&quota), health.clone(), Arc::clone(&clock));
            Box::pin(async move {
                let trouble = match quota.now_ms().await {
                    Ok(store_ms) => skew_of(clock.now_ms(), store_ms),
                    Err(error) => Some(error),
                };
                report(&health, conditions::QUOTA, trouble);
            })
        }));
        self
    }

    /// There is a policy, and it is young enough.
    pub fn policy(mut self, running: &Running<'_>, policy: &Policy) -> Self {
        let (follower, snapshot) = (Arc::clone(&policy.follower), Arc::clone(&policy.snapshot));
        let health = running.health.clone();
        self.looks.push(Box::new(move || {
            let trouble = follower.trouble().or_else(|| crate::up::upkeep::has_policy(&snapshot.load()).err());
            report(&health, conditions::CATALOG, trouble);
            Box::pin(std::future::ready(()))
        }));
        self
    }

    /// What the control store has is on its way to the gateways.
    pub fn publisher(mut self, running: &Running<'_>, publisher: Arc<Publisher>) -> Self {
        let health = running.health.clone();
        self.looks.push(Box::new(move || {
            report(&health, conditions::CONTROL, publisher.trouble());
            Box::pin(std::future::ready(()))
        }));
        self
    }

    /// Consumers follow what they were given, and how far they are.
    pub fn groups(mut self, running: &Running<'_>, condition: &'static str, groups: Vec<Member>) -> Self {
        let (health, clock) = (running.health.clone(), Arc::clone(running.clock));
        let (lag, groups) = (Arc::new(LagMetrics::declare(running.metrics)), Arc::new(groups));
        self.looks.push(Box::new(move || {
            let (health, lag, groups, now_ms) = (health.clone(), Arc::clone(&lag), Arc::clone(&groups), clock.now_ms());
            Box::pin(async move {
                report(&health, condition, groups.iter().flat_map(|(_, group)| group.troubles()).next());
                for (name, group) in groups.iter() {
                    let mut lags = Vec::new();
                    for consumer in group.consumers() {
                        lags.extend(consumer.lag().await);
                    }
                    lag.note(name, &lags, now_ms);
                }
            })
        }));
        self
    }

    /// Looks once, then until the tasks stop.
    pub async fn start(self, running: &Running<'_>) {
        let stopping = running.owners.beside.stopping();
        self.look().await;
        drop(running.owners.beside.spawn("watch", async move {
            tokio::pin!(stopping);
            loop {
                tokio::select! {
                    () = &mut stopping => return,
                    () = tokio::time::sleep(LOOK_EVERY) => self.look().await,
                }
            }
        }));
    }

    async fn look(&self) {
        for look in &self.looks {
            look().await;
        }
    }
}

fn skew_of(now_ms: i64, store_ms: i64) -> Option<QuotaError> {
    let by_ms = now_ms.saturating_sub(store_ms);
    (by_ms.abs() > MOST_CLOCK_SKEW_MS).then_some(QuotaError::ClockSkewed { by_ms })
}

fn trouble_of(log: &dyn EventLog) -> Option<String> {
    match log.health() {
        LogHealth::Accepting => None,
        LogHealth::Closed(closed) => Some(closed.to_string()),
    }
}
