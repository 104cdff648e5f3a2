//! What the log on Kafka takes and gives on this machine, beside nothing: records of 400 bytes, one topic.
//!
//! ```sh
//! deploy/dev/stack/kafka.sh "$dir" start
//! cargo run --release -p weir-streams --features kafka --example kafka_speed -- 127.0.0.1:19110
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
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
        brokers: vec![broker],
        prefix,
        replication: 1,
        max_partitions: Some(6),
        ..KafkaOptions::default()
    };
    apply(&options, &options.topics()?).await?;
    let log = Arc::new(KafkaLog::open(&options).await?);
    log.append(batch(0)).durable().await?;

    let mut alone = Vec::with_capacity(ALONE);
    for n in 0..ALONE {
        let since = Instant::now();
        log.append(batch(n)).durable().await?;
        alone.push(since.elapsed());
    }
    alone.sort_unstable();
    println!("one at a time      p50 {:?}, p99 {:?}", alone[ALONE / 2], alone[ALONE * 99 / 100]);

    let since = Instant::now();
    let mut waiting = std::collections::VecDeque::with_capacity(IN_FLIGHT);
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
    println!("{IN_FLIGHT} in flight       {} batches of two records a second", rate(TOGETHER, since.elapsed()));

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

fn batch(n: usize) -> Batch {
    let value = Bytes::from(vec![b'x'; 400]);
    Batch::new(Topic::Reservations, n.to_string(), 1_700_000_000_000, vec![value.clone(), value])
}

fn rate(count: usize, time: Duration) -> u128 {
    count as u128 * 1_000_000 / time.as_micros().max(1)
}
