//! What the log on Kafka takes and gives on this machine, beside the client library alone: records of 400 bytes, one topic.
//!
//! The library has the log's own settings: idempotent, acknowledged by all, no lingering.
//!
//! ```sh
//! deploy/dev/stack/kafka.sh "$dir" start
//! cargo run --release -p weir-streams --features kafka --example kafka_speed -- 127.0.0.1:19110
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};
use weir_streams::kafka::topics::apply;
use weir_streams::kafka::{KafkaLog, KafkaOptions};
use weir_streams::{Batch, EventLog, Limits, Position, Topic, Visibility};

const ALONE: usize = 1000;
const TOGETHER: usize = 50_000;
const IN_FLIGHT: usize = 64;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let broker = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:19110".to_owned());
    let prefix = format!("speed{}.", std::process::id());
    let options = KafkaOptions {
        brokers: vec![broker.clone()],
        prefix,
        replication: 1,
        max_partitions: Some(6),
        ..KafkaOptions::default()
    };
    apply(&options, &options.topics()?).await?;
    let bare = bare(&broker, &options.topics()?.name(Topic::Usage)).await?;
    println!("the library alone  {bare} pairs of records acknowledged a second, {IN_FLIGHT} in flight");
    println!("figure kafka_bare_produced {bare}");
    let log = Arc::new(KafkaLog::open(&options).await?);
    log.append(batch(0)).durable().await?;

    let mut alone = Vec::with_capacity(ALONE);
    for n in 0..ALONE {
        let since = Instant::now();
        log.append(batch(n)).durable().await?;
        alone.push(since.elapsed());
    }
    alone.sort_unstable();
    println!("figure kafka_alone_p50 {}", alone[ALONE / 2].as_micros());
    println!("one at a time      p50 {:?}, p99 {:?}", alone[ALONE / 2], alone[ALONE * 99 / 100]);

    let since = Instant::now();
    let mut waiting = VecDeque::with_capacity(IN_FLIGHT);
    for n in 0..TOGETHER {
        if waiting.len() == IN_FLIGHT {
            let append: weir_streams::Append = waiting.pop_front().ok_or("none waits")?;
            append.durable().await?;
        }
        waiting.push_back(log.append(batch(n)));
    }
    for append in waiting {
        append.durable().await?;
    }
    let produced = rate(TOGETHER, since.elapsed());
    println!("{IN_FLIGHT} in flight       {produced} batches of two records a second");
    println!("figure kafka_produced {produced}");

    let since = Instant::now();
    let mut read = 0;
    for partition in 0..log.partitions(Topic::Reservations) {
        let end = log.offsets(Topic::Reservations, partition).await?.durable;
        let mut offset = 0;
        while offset < end {
            let at = Position { topic: Topic::Reservations, partition, offset };
            let records = log.read(at, Limits::default(), Visibility::Durable).await?;
            offset = records.last().map_or(end, |last| last.offset + 1);
            read += records.len();
        }
    }
    println!("reading            {} records a second", rate(read, since.elapsed()));
    log.close().await;
    Ok(())
}

/// Pairs of records a second, without anything of ours.
async fn bare(broker: &str, topic: &str) -> Result<u128, Box<dyn Error>> {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", broker)
        .set("broker.address.family", "v4")
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "0")
        .set("socket.nagle.disable", "true")
        .create()?;
    let value = vec![b'x'; 400];
    let pair = |n: usize| -> Result<[DeliveryFuture; 2], Box<dyn Error>> {
        let key = n.to_string();
        let send =
            || producer.send_result(FutureRecord::to(topic).key(&key).payload(&value)).map_err(|(error, _)| error);
        Ok([send()?, send()?])
    };
    for sent in pair(0)? {
        sent.await?.map_err(|(error, _)| error)?;
    }
    let since = Instant::now();
    let mut waiting = VecDeque::with_capacity(IN_FLIGHT);
    for n in 0..TOGETHER + IN_FLIGHT {
        if n >= IN_FLIGHT {
            let oldest: [DeliveryFuture; 2] = waiting.pop_front().ok_or("none waits")?;
            for sent in oldest {
                sent.await?.map_err(|(error, _)| error)?;
            }
        }
        if n < TOGETHER {
            waiting.push_back(pair(n)?);
        }
    }
    Ok(rate(TOGETHER, since.elapsed()))
}

fn batch(n: usize) -> Batch {
    let value = Bytes::from(vec![b'x'; 400]);
    Batch::new(Topic::Reservations, n.to_string(), 1_700_000_000_000, vec![value.clone(), value])
}

fn rate(count: usize, time: Duration) -> u128 {
    count as u128 * 1_000_000 / time.as_micros().max(1)
}
