//! The admin API's ports, on the embedded stores.
//!
//! An act is heard by the quota store first and told to the log afterwards: a revoked key must open nothing at the very
//! next admission, whatever the log does; the caller hears of a log that refuses, and the same act again is harmless.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;

use weir_control::ports::{
    Actor, CountersPort, PendingReservation, PortError, ReportFormat, ReportProblem, ReportReceipt, ReportStatus,
    ReportsError, ReportsPort, ReservationsPort, Revocation, Revocations, TenantCounters,
};
use weir_domain::ids::{ReservationId, TenantId};
use weir_ledger::contract::LedgerStore;
use weir_quota::{QuotaStore, TenantReading};
use weir_reconciler::import::{self, Format, ImportError, Importer};
use weir_reconciler::{Journal, JournalError};
use weir_runtime::entropy::{SharedEntropy, new_reservation_id};
use weir_runtime::story::story;
use weir_schemas::operations::OperatorAct;
use weir_schemas::revocation::KeyRevoked;
use weir_streams::Topic;

use crate::events::EventSource;
use crate::story::Story;
use crate::up::consumers::Derived;

const QUOTA: &str = "the quota store";
pub(super) const LOG: &str = "the event log";

pub(crate) fn failed(what: &'static str, error: &dyn std::error::Error) -> PortError {
    PortError { what, reason: story(error) }
}

/// What changes something.
#[derive(Debug)]
pub(super) struct Acts {
    quota: Arc<dyn QuotaStore>,
    journal: Journal,
    entropy: SharedEntropy,
}

impl Acts {
    pub fn new(quota: Arc<dyn QuotaStore>, journal: Journal, entropy: &SharedEntropy) -> Self {
        Self { quota, journal, entropy: Arc::clone(entropy) }
    }

    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Acts are events too: who did what, and why.
    pub async fn note(
        &self,
        act: &str,
        object: String,
        tenant: Option<TenantId>,
        actor: &Actor,
    ) -> Result<(), JournalError> {
        let at_ms = self.journal.now_ms();
        let key = tenant.as_ref().map_or_else(|| self.journal.region().as_str().to_owned(), ToString::to_string);
        let act_id = *new_reservation_id(self.entropy.as_ref(), at_ms).uuid();
        let Actor { who, why } = actor.clone();
        let record = OperatorAct { act_id, who, why, act: act.to_owned(), object, tenant, at_ms };
        self.journal.write(Topic::Operations, Bytes::from(key), &record).await
    }
}

#[async_trait]
impl Revocations for Acts {
    async fn revoke(&self, revocation: &Revocation) -> Result<(), PortError> {
        let Revocation { tenant, key, actor } = revocation;
        self.quota.revoke(tenant, key).await.map_err(|error| failed(QUOTA, &error))?;
        let record = KeyRevoked {
            key: key.clone(),
            tenant: tenant.clone(),
            who: actor.who.clone(),
            why: actor.why.clone(),
            revoked_at_ms: self.journal.now_ms(),
        };
        let told = self.journal.write(Topic::Revocations, Bytes::from(key.to_string()), &record).await;
        told.map_err(|error| failed(LOG, &error))?;
        let noted = self.note("key.revoke", key.to_string(), Some(tenant.clone()), actor).await;
        noted.map_err(|error| failed(LOG, &error))
    }
}

#[async_trait]
impl ReportsPort for Acts {
    async fn import(
        &self,
        format: ReportFormat,
        body: &[u8],
        actor: &Actor,
    ) -> Result<Vec<ReportReceipt>, ReportsError> {
        let format = match format {
            ReportFormat::JsonLines => Format::JsonLines,
            ReportFormat::Csv => Format::Csv,
        };
        let importer = Importer { who: actor.who.clone(), why: actor.why.clone(), at_ms: self.journal.now_ms() };
        let reports = import::parse(format, body, &importer).map_err(refused)?;
        let receipts: Vec<ReportReceipt> = reports
            .iter()
            .map(|report| ReportReceipt {
                report_id: report.report_id.clone(),
                revision: report.revision,
                // Whether it says anything new shows when it meets its attempt.
                status: ReportStatus::Accepted,
            })
            .collect();
        let failed_log = |error: JournalError| ReportsError::Unavailable(failed(LOG, &error));
        import::append(&self.journal, reports).await.map_err(failed_log)?;
        self.note("reconcile.import", format!("{} reports", receipts.len()), None, actor).await.map_err(failed_log)?;
        Ok(receipts)
    }
}

fn refused(error: ImportError) -> ReportsError {
    match error {
        ImportError::TooLarge { .. } | ImportError::TooManyRows => ReportsError::TooMany { reason: error.to_string() },
        ImportError::Rows { problems, .. } => ReportsError::Invalid(
            problems
                .into_iter()
                .map(|import::Problem { line, field, problem, fix }| ReportProblem { line, field, problem, fix })
                .collect(),
        ),
    }
}

/// What is only shown.
#[derive(Debug)]
pub(super) struct Told {
    quota: Arc<dyn QuotaStore>,
    events: EventSource,
    ledger: Arc<dyn LedgerStore>,
}

impl Told {
    pub fn new(derived: &Derived, events: EventSource) -> Self {
        Self { quota: Arc::clone(&derived.quota), events, ledger: Arc::clone(&derived.ledger) }
    }
}

#[async_trait]
impl CountersPort for Told {
    async fn counters(&self, tenant: &TenantId) -> Result<TenantCounters, PortError> {
        let read = self.quota.read(tenant).await.map_err(|error| failed(QUOTA, &error))?;
        let TenantReading { counters, held, reserved, pending } = read;
        let mut pending_since_ms = HashMap::new();
        if pending > 0 {
            let all = self.quota.pending(usize::MAX).await.map_err(|error| failed(QUOTA, &error))?;
            for created in all.iter().map(|reservation| &reservation.created).filter(|of| of.tenant == *tenant) {
                for (scope, window) in created.counting.counters() {
                    let oldest = pending_since_ms.entry((scope.clone(), window)).or_insert(i64::MAX);
                    *oldest = created.admitted_at_ms.min(*oldest);
                }
            }
        }
        Ok(TenantCounters { counters, held, reserved, pending, pending_since_ms })
    }
}

#[async_trait]
impl ReservationsPort for Told {
    async fn story(&self, reservation: ReservationId) -> Result<Option<Value>, PortError> {
        let what = "the log or the ledger";
        let story = Story::read(&self.events, self.ledger.as_ref(), reservation).await;
        let Some(story) = story.map_err(|error| failed(what, &error))? else { return Ok(None) };
        serde_json::to_value(story).map(Some).map_err(|error| failed(what, &error))
    }

    async fn pending(&self, most: usize) -> Result<Vec<PendingReservation>, PortError> {
        let mut pending = self.quota.pending(usize::MAX).await.map_err(|error| failed(QUOTA, &error))?;
        pending.sort_by_key(|reservation| (reservation.created.admitted_at_ms, reservation.created.id));
        pending.truncate(most);
        let shown = |reservation: weir_domain::reservation::Reservation| PendingReservation {
            reservation: reservation.created.id,
            tenant: reservation.created.tenant.clone(),
            admitted_at_ms: reservation.created.admitted_at_ms,
            held: reservation.held(),
            unknown_attempts: reservation.attempts.iter().filter(|a| !a.is_known()).map(|a| a.number).collect(),
            escalated: reservation.escalated,
        };
        Ok(pending.into_iter().map(shown).collect())
    }
}
