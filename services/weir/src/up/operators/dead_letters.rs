//! Orders about parked keys.
//!
//! The log is told first: whoever finds a record left out must find who left it out. The consumer's own loop then acts,
//! so that nobody else applies records of the key at the same time.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use weir_control::ports::{Actor, DeadLettersError, DeadLettersPort, Parked, ParkedOrder, PortError};
use weir_ledger::contract::LedgerStore;
use weir_schemas::operations::ConsumerSkip;
use weir_streams::Topic;
use weir_streams::consumer::{Resolution, StoreError};

use super::ports::{Acts, LOG, failed};
use crate::parked::{self, Found};

const PARKING: &str = "the parked store";

#[derive(Debug)]
pub(super) struct DeadLetters {
    acts: Arc<Acts>,
    parking: Arc<dyn LedgerStore>,
}

impl DeadLetters {
    pub fn new(acts: &Arc<Acts>, parking: Arc<dyn LedgerStore>) -> Self {
        Self { acts: Arc::clone(acts), parking }
    }

    async fn all(&self) -> Result<Vec<Found>, PortError> {
        let log = self.acts.journal().log();
        parked::find_all(&*self.parking, |topic| log.partitions(topic)).await.map_err(|error| failed(PARKING, &error))
    }

    async fn note(&self, found: &Found, order: ParkedOrder, actor: &Actor) -> Result<(), PortError> {
        let shown = found.shown();
        let Actor { who, why } = actor.clone();
        let noted = match order {
            ParkedOrder::Replay => {
                self.acts.note("dead-letters.replay", format!("{} {}", shown.consumer, shown.key), None, actor).await
            }
            ParkedOrder::Skip { offset } => {
                let key = Bytes::from(shown.consumer.clone());
                let record = ConsumerSkip {
                    consumer: shown.consumer,
                    topic: shown.topic,
                    partition: i32::try_from(found.subscription.partition).unwrap_or(i32::MAX),
                    offset: i64::try_from(offset).unwrap_or(i64::MAX),
                    key: shown.key,
                    error: shown.reason,
                    who,
                    why,
                    at_ms: self.acts.journal().now_ms(),
                };
                self.acts.journal().write(Topic::Operations, key, &record).await
            }
        };
        noted.map_err(|error| failed(LOG, &error))
    }
}

#[async_trait]
impl DeadLettersPort for DeadLetters {
    async fn parked(&self) -> Result<Vec<Parked>, PortError> {
        Ok(self.all().await?.iter().map(Found::shown).collect())
    }

    async fn order(
        &self,
        consumer: &str,
        key: &str,
        order: ParkedOrder,
        actor: &Actor,
    ) -> Result<(), DeadLettersError> {
        let is_meant =
            |found: &Found| *found.subscription.consumer == *consumer && parked::shown_key(&found.key.key) == key;
        let not_parked = || DeadLettersError::NotParked { consumer: consumer.to_owned(), key: key.to_owned() };
        let found = self.all().await?.into_iter().find(is_meant).ok_or_else(not_parked)?;
        let resolution = match order {
            ParkedOrder::Replay => Resolution::Replay,
            ParkedOrder::Skip { offset } if offset != found.key.offset => {
                return Err(DeadLettersError::OtherOffset { asked: offset, waits: found.key.offset });
            }
            ParkedOrder::Skip { offset } => Resolution::Skip { offset },
        };
        self.note(&found, order, actor).await?;
        let asked = self.parking.ask(&found.subscription, &found.key.key, resolution).await;
        let asked = asked.map_err(|error: StoreError| failed(PARKING, &error))?;
        if asked { Ok(()) } else { Err(not_parked()) }
    }
}
