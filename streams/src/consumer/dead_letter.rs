//! The envelope in which a record lies in a dead-letter topic: one line of JSON that a person can read, then the
//! record's bytes as they were.

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::contract::{Batch, StoredRecord};
use crate::topics::Topic;

const VERSION: u32 = 1;
/// A reason is a sentence. What an error chain adds beyond this helps nobody.
const MAX_REASON_CHARS: usize = 1000;

/// What a consumer could not digest, from where, and why. It may be there twice after a crash: the first four fields
/// identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub consumer: String,
    pub topic: Topic,
    pub partition: u32,
    pub offset: u64,
    pub time_ms: i64,
    pub reason: String,
    pub key: Bytes,
    pub value: Bytes,
}

/// Why bytes are not a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeadLetterError {
    #[error("the first line is not a dead letter's head: {0}")]
    Head(String),
    #[error("dead letters of version {0} are not known here: use the newer program")]
    Version(u32),
    #[error("`{0}` is not a topic")]
    Topic(String),
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    v: u32,
    consumer: String,
    topic: String,
    partition: u32,
    offset: u64,
    time_ms: i64,
    reason: String,
}

impl DeadLetter {
    #[must_use]
    pub fn of(consumer: &str, topic: Topic, record: &StoredRecord, reason: &str) -> Self {
        Self {
            consumer: consumer.to_owned(),
            topic,
            partition: record.partition,
            offset: record.offset,
            time_ms: record.time_ms,
            reason: reason.chars().take(MAX_REASON_CHARS).collect(),
            key: record.key.clone(),
            value: record.value.clone(),
        }
    }

    /// The batch to append: same key and time as the record, in the dead letters of its topic.
    ///
    /// # Errors
    /// Only if the head cannot be written as JSON, which plain strings and numbers always can.
    pub fn into_batch(self) -> Result<Batch, DeadLetterError> {
        let head = Head {
            v: VERSION,
            consumer: self.consumer,
            topic: self.topic.suffix().to_owned(),
            partition: self.partition,
            offset: self.offset,
            time_ms: self.time_ms,
            reason: self.reason,
        };
        let head = serde_json::to_vec(&head).map_err(|error| DeadLetterError::Head(error.to_string()))?;
        let mut value = BytesMut::with_capacity(head.len() + 1 + self.value.len());
        value.put_slice(&head);
        value.put_u8(b'\n');
        value.put_slice(&self.value);
        Ok(Batch::new(self.topic.dead_letters(), self.key, self.time_ms, vec![value.freeze()]))
    }

    /// # Errors
    /// [`DeadLetterError`].
    pub fn parse(stored: &StoredRecord) -> Result<Self, DeadLetterError> {
        let end = stored.value.iter().position(|byte| *byte == b'\n');
        let end = end.ok_or_else(|| DeadLetterError::Head("it has no end".to_owned()))?;
        let head: Head =
            serde_json::from_slice(&stored.value[..end]).map_err(|error| DeadLetterError::Head(error.to_string()))?;
        if head.v != VERSION {
            return Err(DeadLetterError::Version(head.v));
        }
        Ok(Self {
            topic: Topic::by_suffix(&head.topic).ok_or(DeadLetterError::Topic(head.topic))?,
            consumer: head.consumer,
            partition: head.partition,
            offset: head.offset,
            time_ms: head.time_ms,
            reason: head.reason,
            key: stored.key.clone(),
            value: stored.value.slice(end + 1..),
        })
    }
}
