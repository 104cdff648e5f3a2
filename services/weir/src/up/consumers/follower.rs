//! One consumer as a task that can be asked how it is, and be let finish.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use weir_ledger::contract::LedgerStore;
use weir_runtime::story::story;
use weir_runtime::tasks::{Task, Tasks};
use weir_streams::consumer::{Consumer, ConsumerError, ConsumerOptions, Effect, Subscription};
use weir_streams::{EventLog, OnPoison, Topic};

/// What a delivery that began may still take once its consumer was told to stop.
const LAST_DELIVERY: Duration = Duration::from_secs(5);

/// A consumer that runs.
#[derive(Debug)]
pub(crate) struct Follower {
    pub consumer: Arc<Consumer>,
    stop: watch::Sender<bool>,
    task: Task<Result<(), ConsumerError>>,
    /// Why it ended although nobody stopped it.
    ended: Arc<watch::Sender<Option<String>>>,
}

impl Follower {
    pub fn start(
        name: &'static str,
        topic: Topic,
        effect: Arc<dyn Effect>,
        log: &Arc<dyn EventLog>,
        ledger: &Arc<dyn LedgerStore>,
        tasks: &Tasks,
    ) -> Self {
        // The embedded log has one partition, and only money topics are followed here.
        let subscription = Subscription { consumer: Arc::from(name), topic, partition: 0 };
        let options = ConsumerOptions::new(OnPoison::ParkKey);
        let (positions, parking) = (Arc::clone(ledger) as _, Arc::clone(ledger) as _);
        let log = Arc::clone(log);
        let consumer = Arc::new(Consumer::new(subscription, log, effect, positions, parking, options));
        let (stop, mut stopping) = watch::channel(false);
        let ended = Arc::new(watch::Sender::new(None));
        let (running, ending) = (Arc::clone(&consumer), Arc::clone(&ended));
        let task = tasks.spawn(name, async move {
            let stopped = async move {
                // An error means that whoever would say so is gone.
                let _told = stopping.wait_for(|told| *told).await.is_ok();
            };
            let result = running.run(stopped).await;
            if let Err(error) = &result {
                let (consumer, error) = (running.subscription(), story(error));
                tracing::error!(%consumer, error, "consumer ended: a person is needed");
                ending.send_replace(Some(error));
            }
            result
        });
        Self { consumer, stop, task, ended }
    }

    /// A handle for whoever looks after it.
    pub fn pulse(&self) -> Pulse {
        Pulse { consumer: Arc::clone(&self.consumer), ended: Arc::clone(&self.ended) }
    }

    /// Lets it read to the end of the log as it is now, then stops it. `false` where it did not get there.
    pub async fn finish(self, log: &dyn EventLog, deadline: Instant) -> bool {
        let Subscription { topic, partition, .. } = *self.consumer.subscription();
        let has_read_all = match log.offsets(topic, partition).await {
            Err(_) => false,
            Ok(_) if self.task.is_finished() => false,
            Ok(offsets) => timeout_at(deadline, self.consumer.reached(offsets.written)).await.is_ok(),
        };
        self.stop.send_replace(true);
        let ended = timeout_at(deadline.max(Instant::now() + LAST_DELIVERY), self.task).await;
        has_read_all && matches!(ended, Ok(Ok(Ok(()))))
    }
}

/// How a consumer is.
#[derive(Debug)]
pub(crate) struct Pulse {
    pub consumer: Arc<Consumer>,
    ended: Arc<watch::Sender<Option<String>>>,
}

impl Pulse {
    /// Why it makes no progress, if it makes none.
    pub fn trouble(&self) -> Option<String> {
        let ended = self.ended.borrow().as_ref().map(|reason| format!("{reason}; restart after repairing it"));
        ended.or_else(|| self.consumer.trouble().map(|reason| format!("{}: {reason}", self.consumer.subscription())))
    }
}
