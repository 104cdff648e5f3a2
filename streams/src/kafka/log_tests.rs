//! What the library keeps to itself after brokers were away, on its own cluster in memory.

use bytes::Bytes;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::*;

const AT: Position = Position { topic: Topic::Operations, partition: 0, offset: 0 };

/// A log on a cluster that is gone with it.
struct World {
    log: KafkaLog,
    cluster: MockCluster<'static, DefaultProducerContext>,
}

/// What opens a log, without the checks of what brokers and topics promise.
fn client_of(cluster: &MockCluster<'_, DefaultProducerContext>) -> KafkaLog {
    let options = KafkaOptions { brokers: vec![cluster.bootstrap_servers()], ..KafkaOptions::default() };
    let table = options.topics().expect("the table of topics");
    let names: Vec<String> = Topic::ALL.iter().map(|topic| table.name(*topic)).collect();
    let config = client::producer(&options, Duration::from_secs(10)).expect("settings");
    let producer = open::producer(&config, options.queue.as_usize()).expect("a producer");
    let readers = Arc::new(Readers::new(client::reader(&options).expect("settings"), &names, &table));
    let (partitions, patience) = (vec![1; names.len()], Duration::from_secs(1));
    KafkaLog { producer: Arc::new(producer), readers, names: names.into(), partitions, patience }
}

impl World {
    fn new() -> Self {
        let cluster = MockCluster::new(1).expect("a cluster in memory");
        let log = client_of(&cluster);
        let names = log.names.iter();
        names.for_each(|name| cluster.create_topic(name, 1, 1).expect("a topic in memory"));
        Self { log, cluster }
    }

    async fn append(&self, value: &'static str) {
        let frames = vec![Bytes::from_static(value.as_bytes())];
        let batch = Batch::new(AT.topic, Bytes::from_static(b"key"), 0, frames);
        self.log.append(batch).durable().await.expect("an append is durable");
    }

    async fn read(&self, offset: u64) -> Result<Vec<Bytes>, ReadError> {
        let records = self.log.read(Position { offset, ..AT }, Limits::default(), Visibility::Durable).await?;
        Ok(records.into_iter().map(|record| record.value).collect())
    }

    /// With one record read, and then no more from the library.
    async fn silent() -> Self {
        let world = Self::new();
        world.append("one").await;
        assert_eq!(world.read(0).await.expect("the first record"), ["one"]);
        world.log.readers.silence(AT, world.log.name(AT.topic));
        world
    }
}

#[tokio::test]
async fn a_client_that_brings_nothing_three_times_is_replaced() {
    let world = World::silent().await;
    world.append("two").await;
    tokio::time::pause();
    for _ in 0..MOST_MISSES {
        let error = world.read(1).await.expect_err("nothing was brought");
        assert!(error.is_temporary(), "{error}");
    }
    tokio::time::resume();
    assert_eq!(world.read(1).await.expect("by another client"), ["two"]);
}

/// What a broker with a slow disk was asked for is not asked for anew.
#[tokio::test]
async fn a_client_that_is_late_is_kept() {
    let world = World::silent().await;
    world.append("two").await;
    tokio::time::pause();
    for _ in 1..MOST_MISSES {
        world.read(1).await.expect_err("nothing was brought yet");
    }
    assert!(world.log.readers.at(Position { offset: 1, ..AT }).is_some(), "it may still come");
}

#[tokio::test]
async fn who_waits_by_a_client_that_brings_nothing_hears_of_what_came() {
    let world = World::silent().await;
    let at = Position { offset: 1, ..AT };
    let waits = world.log.wait(at, Visibility::Durable);
    tokio::pin!(waits);
    tokio::select! {
        biased;
        waited = &mut waits => panic!("nothing is there, but {waited:?}"),
        () = std::future::ready(()) => {}
    }
    world.append("two").await;
    tokio::time::pause();
    waits.await.expect("there is something");
    tokio::time::resume();
    assert_eq!(world.read(1).await.expect("by another client"), ["two"]);
}

/// Of a topic that the process only reads: what it appends to is looked after by the library.
#[tokio::test]
async fn a_partition_that_had_no_leader_for_a_while_is_read_as_soon_as_it_has_one() {
    let world = World::new();
    world.append("one").await;
    let reader = client_of(&world.cluster);
    let name = reader.name(AT.topic);
    world.cluster.partition_leader(name, 0, None).expect("a leader can go");
    let offsets = reader.offsets(AT.topic, AT.partition);
    tokio::pin!(offsets);
    let no_leader = timeout(Duration::from_secs(1), &mut offsets).await;
    assert!(no_leader.is_err(), "nobody can know where the partition ends: {no_leader:?}");
    world.cluster.partition_leader(name, 0, Some(1)).expect("a leader can come");
    assert_eq!(offsets.await.expect("it has a leader").durable, 1);
}
