//! A consumer group: which process follows which partition of a topic.
//!
//! ```text
//!   group thread   poll ── assigned ──▶ take the work of each partition ──▶ a `Consumer` for each
//!                       └─ revoked ───▶ stop them, wait until they have ended ──▶ let go
//! ```
//!
//! The member client of the library only learns partitions and commits positions; its partitions are paused, and
//! records come by the log's own cursors, so that a partition is followed by the same loop as everywhere else.
//!
//! **Handing over.** A partition is let go of only when its consumer has ended: the delivery that began is finished and
//! its position stored, or, after `revoke_timeout`, abandoned without a position. Either way the next owner begins at
//! the first record whose effect was not confirmed. The callback blocks the group's thread meanwhile, which is what
//! keeps the group waiting; heartbeats are sent by the library's own threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::{ClientContext, config::RDKafkaLogLevel, error::KafkaError as LibraryError};
use thiserror::Error;
use tokio::sync::{mpsc as async_mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use weir_runtime::story::story;

use super::client::{self, CALL_TIMEOUT, KafkaError};
use super::options::KafkaOptions;
use crate::consumer::{Consumer, ConsumerOptions, Effect, Lag, Parking, Positions, StoreError, Subscription};
use crate::contract::{EventLog, ReadError};
use crate::topics::Topic;

const POLL: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What follows one partition.
pub struct Work {
    pub effect: Arc<dyn Effect>,
    /// The store that the effect shares, or [`Group::positions`].
    pub positions: Arc<dyn Positions>,
    /// Parked keys belong to a partition's records, so they must be where the next owner finds them.
    pub parking: Arc<dyn Parking>,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

/// Who makes the work of a partition: its state is loaded when the partition comes, and dropped when it goes.
#[async_trait]
pub trait Assignee: Send + Sync {
    /// The partition is this process's now. `positions` are the group's own, for work without a better place.
    ///
    /// # Errors
    /// Why it cannot begin yet, for people. It is tried again until it can, or until the partition goes elsewhere.
    async fn take(&self, of: &Subscription, positions: Arc<dyn Positions>) -> Result<Work, String>;

    /// Its consumer has ended and the partition is about to go: whatever is still buffered must be dropped.
    async fn give_up(&self, of: &Subscription);
}

/// Why a group could not go on.
#[derive(Debug, Error)]
pub enum GroupError {
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    #[error("a thread for the consumer group cannot be started")]
    Thread(#[source] std::io::Error),
}

/// One member of a consumer group, following one topic.
pub struct Group {
    name: Arc<str>,
    topic: Topic,
    log: Arc<dyn EventLog>,
    assignee: Arc<dyn Assignee>,
    consumer_options: ConsumerOptions,
    revoke_timeout: Duration,
    member: Arc<Member>,
    changes: Mutex<Option<async_mpsc::UnboundedReceiver<Change>>>,
    running: Mutex<BTreeMap<u32, Following>>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("name", &self.name).field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// The library's side of it.
struct Member {
    consumer: BaseConsumer<Callbacks>,
    topic_name: String,
    stops: AtomicBool,
}

/// Ends the group's thread, which leaves in order.
struct Leaves<'a>(&'a Member);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.stops.store(true, Ordering::Release);
    }
}

/// What the library calls from within a poll of the group's thread.
struct Callbacks {
    changes: async_mpsc::UnboundedSender<Change>,
    patience: Duration,
}

#[derive(Debug)]
enum Change {
    Assigned(Vec<u32>),
    /// The sender is dropped when the partitions may go.
    Revoked(Vec<u32>, mpsc::SyncSender<()>),
}

#[derive(Debug)]
struct Following {
    stop: watch::Sender<bool>,
    /// Dropped by the task when it ends.
    ended: watch::Receiver<()>,
    abort: tokio::task::AbortHandle,
    status: Arc<Mutex<Status>>,
}

/// How one partition is.
#[derive(Debug)]
enum Status {
    Taking { trouble: Option<String> },
    Following(Arc<Consumer>),
    Ended { reason: String },
}

impl ClientContext for Callbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        client::log_line(level, facility, line);
    }

    fn error(&self, error: LibraryError, reason: &str) {
        tracing::debug!(%error, reason, "kafka group error");
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<u32> {
    list.elements().iter().filter_map(|element| u32::try_from(element.partition()).ok()).collect()
}

impl ConsumerContext for Callbacks {
    fn pre_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(list) = rebalance {
            let (done, may_go) = mpsc::sync_channel(1);
            if self.changes.send(Change::Revoked(partitions(list), done)).is_ok() {
                // Ends by the sender being dropped; the timeout is only for a runtime that died.
                let _ = may_go.recv_timeout(self.patience * 2);
            }
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                // Records come by the log's cursors.
                if let Err(error) = consumer.pause(list) {
                    tracing::warn!(%error, "kafka group cannot pause its own fetching");
                }
                let _ = self.changes.send(Change::Assigned(partitions(list)));
            }
            Rebalance::Revoke(_) => {}
            Rebalance::Error(error) => tracing::warn!(%error, "kafka group could not rebalance"),
        }
    }
}

impl Group {
    /// A member of the group `name` (with the installation's prefix) for `topic`. It joins when it runs.
    ///
    /// # Errors
    /// [`GroupError`], for options that no client can be made of. Brokers need not be there.
    pub fn new(
        options: &KafkaOptions,
        name: &str,
        topic: Topic,
        log: Arc<dyn EventLog>,
        assignee: Arc<dyn Assignee>,
        consumer_options: ConsumerOptions,
    ) -> Result<Arc<Self>, GroupError> {
        let (sender, receiver) = async_mpsc::unbounded_channel();
        let revoke_timeout = options.revoke_timeout.duration();
        let config = client::member(options, name)?;
        let callbacks = Callbacks { changes: sender, patience: revoke_timeout };
        let consumer = config.create_with_context(callbacks);
        let consumer: BaseConsumer<Callbacks> = consumer.map_err(|error| KafkaError::Client(error.to_string()))?;
        let topic_name = options.topics().map(|topics| topics.name(topic));
        let topic_name = topic_name.map_err(|error| KafkaError::Client(error.to_string()))?;
        Ok(Arc::new(Self {
            name: Arc::from(name),
            topic,
            log,
            assignee,
            consumer_options,
            revoke_timeout,
            member: Arc::new(Member { consumer, topic_name, stops: AtomicBool::new(false) }),
            changes: Mutex::new(Some(receiver)),
            running: Mutex::default(),
        }))
    }

    /// Joins, follows what is assigned, and leaves in order once `stop` is ready. Runs once.
    ///
    /// # Errors
    /// [`GroupError`]. What only needs time is tried again.
    pub async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<(), GroupError> {
        let Some(mut changes) = self.changes.lock().take() else { return Ok(()) };
        let member = Arc::clone(&self.member);
        // Whoever drops this future instead of stopping it must not leave a member that holds partitions and does
        // nothing.
        let _leaves = Leaves(&self.member);
        let (left, mut has_left) = watch::channel(());
        let thread = thread::Builder::new().name(format!("group-{}", self.name));
        let thread = thread.spawn(move || {
            member.run();
            drop(left);
        });
        thread.map_err(GroupError::Thread)?;
        let mut tasks = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        let mut is_stopping = false;
        loop {
            tokio::select! {
                biased;
                Some(change) = changes.recv() => match change {
                    Change::Assigned(partitions) => self.assigned(partitions, &mut tasks),
                    Change::Revoked(partitions, done) => self.revoked(partitions, done).await,
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                _ = has_left.changed() => break,
                () = stop.as_mut(), if !is_stopping => {
                    is_stopping = true;
                    self.member.stops.store(true, Ordering::Release);
                }
            }
        }
        tasks.shutdown().await;
        Ok(())
    }

    /// The positions as the group's commits on the brokers.
    #[must_use]
    pub fn positions(&self) -> Arc<dyn Positions> {
        Arc::new(Commits { member: Arc::clone(&self.member) })
    }

    /// How far each partition that is followed here is behind.
    ///
    /// # Errors
    /// When the log cannot say where it ends.
    pub async fn lags(&self) -> Result<Vec<(Subscription, Lag)>, ReadError> {
        let mut lags = Vec::new();
        for consumer in self.consumers() {
            lags.push((consumer.subscription().clone(), consumer.lag().await?));
        }
        Ok(lags)
    }

    /// The consumers of the partitions that are followed here.
    #[must_use]
    pub fn consumers(&self) -> Vec<Arc<Consumer>> {
        let running = self.running.lock();
        let of = |following: &Following| match &*following.status.lock() {
            Status::Following(consumer) => Some(Arc::clone(consumer)),
            Status::Taking { .. } | Status::Ended { .. } => None,
        };
        running.values().filter_map(of).collect()
    }

    /// The partitions that this member holds.
    #[must_use]
    pub fn assigned_partitions(&self) -> Vec<u32> {
        self.running.lock().keys().copied().collect()
    }

    /// Why partitions make no progress, if any does not.
    #[must_use]
    pub fn troubles(&self) -> Vec<String> {
        let running = self.running.lock();
        let of = |(partition, following): (&u32, &Following)| {
            match &*following.status.lock() {
                Status::Following(consumer) => consumer.trouble(),
                Status::Taking { trouble } => trouble.clone(),
                Status::Ended { reason } => Some(format!("{reason}; restart after repairing it")),
            }
            .map(|trouble| format!("{}: {trouble}", self.subscription(*partition)))
        };
        running.iter().filter_map(of).collect()
    }

    fn subscription(&self, partition: u32) -> Subscription {
        Subscription { consumer: Arc::clone(&self.name), topic: self.topic, partition }
    }

    fn assigned(&self, partitions: Vec<u32>, tasks: &mut JoinSet<()>) {
        for partition in partitions {
            let (stop, stopping) = watch::channel(false);
            let (ending, ended) = watch::channel(());
            let status = Arc::new(Mutex::new(Status::Taking { trouble: None }));
            let follower = Follower {
                subscription: self.subscription(partition),
                log: Arc::clone(&self.log),
                assignee: Arc::clone(&self.assignee),
                options: self.consumer_options,
                positions: self.positions(),
                status: Arc::clone(&status),
            };
            let abort = tasks.spawn(async move {
                follower.run(stopping).await;
                drop(ending);
            });
            tracing::info!(group = %self.name, topic = %self.topic, partition, "partition taken");
            self.running.lock().insert(partition, Following { stop, ended, abort, status });
        }
    }

    async fn revoked(&self, partitions: Vec<u32>, done: mpsc::SyncSender<()>) {
        let leaving: Vec<(u32, Following)> = {
            let mut running = self.running.lock();
            partitions.into_iter().filter_map(|partition| Some((partition, running.remove(&partition)?))).collect()
        };
        for (_, following) in &leaving {
            following.stop.send_replace(true);
        }
        let deadline = Instant::now() + self.revoke_timeout;
        for (partition, mut following) in leaving {
            // The task holds the sender and never sends: the end of the channel is its end.
            let is_finished = timeout_at(deadline, following.ended.changed()).await.is_ok();
            if !is_finished {
                following.abort.abort();
                let _ = following.ended.changed().await;
            }
            self.assignee.give_up(&self.subscription(partition)).await;
            tracing::info!(group = %self.name, topic = %self.topic, partition, is_finished, "partition given up");
        }
        drop(done);
    }
}

/// One partition from taking it to its end.
struct Follower {
    subscription: Subscription,
    log: Arc<dyn EventLog>,
    assignee: Arc<dyn Assignee>,
    options: ConsumerOptions,
    positions: Arc<dyn Positions>,
    status: Arc<Mutex<Status>>,
}

impl Follower {
    async fn run(self, mut stopping: watch::Receiver<bool>) {
        let mut told = stopping.clone();
        let stopped = async move {
            // An error means that whoever would say so is gone.
            let _told = told.wait_for(|told| *told).await.is_ok();
        };
        let work = tokio::select! {
            biased;
            _ = stopping.wait_for(|told| *told) => return,
            work = self.take() => work,
        };
        let Work { effect, positions, parking } = work;
        let (subscription, log) = (self.subscription.clone(), Arc::clone(&self.log));
        let consumer = Arc::new(Consumer::new(subscription, log, effect, positions, parking, self.options));
        *self.status.lock() = Status::Following(Arc::clone(&consumer));
        if let Err(error) = consumer.run(stopped).await {
            let reason = story(&error);
            tracing::error!(consumer = %self.subscription, reason, "consumer ended: a person is needed");
            *self.status.lock() = Status::Ended { reason };
        }
    }

    async fn take(&self) -> Work {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.assignee.take(&self.subscription, Arc::clone(&self.positions)).await {
                Ok(work) => return work,
                Err(reason) => {
                    tracing::warn!(consumer = %self.subscription, reason, "partition cannot be followed yet");
                    *self.status.lock() = Status::Taking { trouble: Some(reason) };
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}

impl Member {
    fn run(&self) {
        let topics = [self.topic_name.as_str()];
        while let Err(error) = self.consumer.subscribe(&topics) {
            tracing::warn!(%error, "kafka group cannot subscribe");
            if self.stops.load(Ordering::Acquire) {
                return;
            }
            thread::sleep(POLL);
        }
        while !self.stops.load(Ordering::Acquire) {
            self.poll();
        }
        // Leaving gives up all partitions by the same callback; then the group need not wait for a silent member.
        self.consumer.unsubscribe();
        let deadline = std::time::Instant::now() + CALL_TIMEOUT;
        while self.consumer.assignment().is_ok_and(|left| left.count() > 0) && std::time::Instant::now() < deadline {
            self.poll();
        }
    }

    fn poll(&self) {
        match self.consumer.poll(POLL) {
            // Fetched between assignment and pause; the log's cursor reads it.
            Some(Ok(_)) | None => {}
            Some(Err(error)) => tracing::debug!(%error, "kafka group"),
        }
    }
}

/// Positions as commits of the group: they are where the next owner looks.
struct Commits {
    member: Arc<Member>,
}

impl Commits {
    fn list(member: &Member, partition: u32, offset: Offset) -> Result<TopicPartitionList, LibraryError> {
        let mut list = TopicPartitionList::new();
        let partition = i32::try_from(partition).unwrap_or(i32::MAX);
        list.add_partition_offset(&member.topic_name, partition, offset)?;
        Ok(list)
    }
}

#[async_trait]
impl Positions for Commits {
    async fn load(&self, subscription: &Subscription) -> Result<Option<u64>, StoreError> {
        let (member, partition) = (Arc::clone(&self.member), subscription.partition);
        let loaded = client::blocking(move || {
            let list = Self::list(&member, partition, Offset::Invalid)?;
            let committed = member.consumer.committed_offsets(list, CALL_TIMEOUT)?;
            committed.elements().first().map_or(Ok(None), |element| {
                element.error()?;
                Ok(match element.offset() {
                    Offset::Offset(offset) => u64::try_from(offset).ok(),
                    // Never stored, or removed by the brokers after their retention: the effects are idempotent.
                    Offset::Beginning | Offset::End | Offset::Stored | Offset::Invalid | Offset::OffsetTail(_) => None,
                })
            })
        });
        loaded.await.map_err(|error| StoreError(format!("the committed position cannot be read: {error}")))
    }

    async fn store(&self, subscription: &Subscription, next: u64) -> Result<(), StoreError> {
        let (member, partition) = (Arc::clone(&self.member), subscription.partition);
        let stored = client::blocking(move || {
            let offset = Offset::Offset(i64::try_from(next).unwrap_or(i64::MAX));
            member.consumer.commit(&Self::list(&member, partition, offset)?, CommitMode::Sync)
        });
        stored.await.map_err(|error| StoreError(format!("the position cannot be committed: {error}")))
    }
}
