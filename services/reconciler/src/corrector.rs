//! The corrector: ledger lines on their way back to the counters. The ledger always wins (I12).
//!
//! Redelivery is harmless: while a record exists the attempt's running total decides, and where it is gone the store
//! knows the last position it has counted. An old total that comes again is followed by the newer one, because both are
//! under one key.

use std::sync::Arc;

use async_trait::async_trait;

use weir_domain::reservation::Decision;
use weir_ledger::handover::{Handed, Handover};
use weir_quota::QuotaStore;
use weir_runtime::failpoint;
use weir_schemas::Record;
use weir_schemas::ledger_entry::LedgerEntry;
use weir_streams::{Applied, Delivery, Effect, EffectError, StoredRecord};

use crate::metrics::ReconcilerMetrics;

/// The consumer's name. It never changes: under another one every line is read again.
pub const CONSUMER: &str = "corrector";

/// Follows `weir.ledger`.
#[derive(Debug)]
pub struct Corrector {
    quota: Arc<dyn QuotaStore>,
    metrics: ReconcilerMetrics,
    handover: Option<Arc<Handover>>,
}

impl Corrector {
    #[must_use]
    pub const fn new(quota: Arc<dyn QuotaStore>, metrics: ReconcilerMetrics) -> Self {
        Self { quota, metrics, handover: None }
    }

    /// The same corrector, which takes from its builder's hand what it would else decode.
    #[must_use]
    pub fn with_handover(self, handover: Arc<Handover>) -> Self {
        Self { handover: Some(handover), ..self }
    }

    fn read(&self, record: &StoredRecord) -> Result<Handed, EffectError> {
        if let Some(handed) = self.handover.as_ref().and_then(|handover| handover.take(record.offset)) {
            return Ok(handed);
        }
        let entry = LedgerEntry::decode(&record.value)
            .map_err(|error| EffectError::Poison { offset: record.offset, reason: error.to_string() })?;
        Ok(Handed { correction: entry.correction(), tenant: entry.tenant })
    }

    async fn correct(&self, record: &StoredRecord) -> Result<(), EffectError> {
        let Handed { tenant, correction } = self.read(record)?;
        failpoint::pass("corrector.before_store").await;
        let reply = self
            .quota
            .correct(&tenant, &correction)
            .await
            .map_err(|error| EffectError::Retry { reason: error.to_string() })?;
        match reply.decision {
            Decision::Change(_) => {
                self.metrics.corrections.inc();
                tracing::debug!(
                    reservation_id = %correction.reservation, attempt = correction.number, "counter corrected"
                );
                Ok(())
            }
            Decision::NoChange(_) => Ok(()),
            // The table has no such cell: a store that answers so does not follow the rules.
            Decision::Denied(_) | Decision::Refused(_) | Decision::Conflict(_) => {
                let reason = format!("the quota store refused a correction: {:?}", reply.decision);
                Err(EffectError::Poison { offset: record.offset, reason })
            }
        }
    }
}

#[async_trait]
impl Effect for Corrector {
    async fn apply(&self, delivery: Delivery<'_>) -> Result<Applied, EffectError> {
        for record in delivery.records {
            self.correct(record).await?;
        }
        // The loop stores the position next.
        failpoint::pass("corrector.before_position").await;
        Ok(Applied::Effect)
    }
}
