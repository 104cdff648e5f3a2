//! Keys that wait for a person, over all consumers of this process.
//!
//! Read the same way by the process itself and by a command beside it; only the process gives orders about them.

use bytes::Bytes;
use uuid::Uuid;

use weir_control::ports::{Parked, ParkedOrder};
use weir_reconciler::{corrector, reports};
use weir_streams::Topic;
use weir_streams::consumer::{ParkedKey, Parking, Resolution, StoreError, Subscription};

/// The consumers that park, in the order in which they read each other.
pub(crate) const CONSUMERS: [(&str, Topic); 3] = [
    (reports::CONSUMER, Topic::UsageReports),
    (weir_ledger::CONSUMER, Topic::Reservations),
    (corrector::CONSUMER, Topic::Ledger),
];

/// A parked key and whose it is.
#[derive(Debug)]
pub(crate) struct Found {
    pub subscription: Subscription,
    pub key: ParkedKey,
}

/// Every parked key, by consumer and offset.
pub(crate) async fn find_all(
    parking: &dyn Parking,
    partitions: impl Fn(Topic) -> u32 + Send,
) -> Result<Vec<Found>, StoreError> {
    let mut found = Vec::new();
    for (consumer, topic) in CONSUMERS {
        for partition in 0..partitions(topic) {
            let subscription = Subscription { consumer: consumer.into(), topic, partition };
            let keys = parking.list(&subscription).await?;
            found.extend(keys.into_iter().map(|key| Found { subscription: subscription.clone(), key }));
        }
    }
    Ok(found)
}

impl Found {
    pub fn shown(&self) -> Parked {
        let ParkedKey { key, offset, reason, records, asked } = &self.key;
        Parked {
            consumer: self.subscription.consumer.to_string(),
            topic: self.subscription.topic.to_string(),
            key: shown_key(key),
            offset: *offset,
            reason: reason.clone(),
            records: *records,
            asked: asked.map(|asked| match asked {
                Resolution::Replay => ParkedOrder::Replay,
                Resolution::Skip { offset } => ParkedOrder::Skip { offset },
            }),
        }
    }
}

/// Text where it is some, the id that 16 other bytes are, else hexadecimal.
pub(crate) fn shown_key(key: &Bytes) -> String {
    match std::str::from_utf8(key) {
        Ok(text) if !text.is_empty() && text.chars().all(|character| !character.is_control()) => text.to_owned(),
        Ok(_) | Err(_) => match Uuid::from_slice(key) {
            Ok(id) => id.to_string(),
            Err(_) => key.iter().fold("0x".to_owned(), |hex, byte| format!("{hex}{byte:02x}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_as_what_it_is() {
        let id = Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0000);
        assert_eq!(shown_key(&Bytes::copy_from_slice(id.as_bytes())), "01980000-0000-7000-8000-000000000000");
        assert_eq!(shown_key(&Bytes::from_static(b"report-1")), "report-1");
        assert_eq!(shown_key(&Bytes::from_static(b"\x00\xff")), "0x00ff");
        assert_eq!(shown_key(&Bytes::new()), "0x");
    }
}
