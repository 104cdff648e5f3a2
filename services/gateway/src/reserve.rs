//! Admission: one atomic step in the quota store takes the worst case on every scope and window, or nothing (I2).

use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use weir_domain::ids::ReservationId;
use weir_domain::money::Hold;
use weir_domain::policy::TenantSecret;
use weir_domain::quota::{Counting, Denial, DenialReason, Limit, Measure, RateStandings, Reply};
use weir_domain::reservation::{Command, Conflict, Created, Decision, IdempotencyRecord, ReservationStatus, Reserve};
use weir_runtime::entropy::new_reservation_id;
use weir_runtime::story::story;

use crate::estimate::Estimate;
use crate::lifecycle::Prepared;
use crate::record::Record;
use crate::recount::recount;
use crate::respond::{CallerRefusal, IdempotencyRefusal, LimitRefusal, Refusal, Unavailable};
use crate::server::Inner;
use crate::terms::Terms;

/// How long a client's `Idempotency-Key` is remembered: a day, as the field does.
const IDEMPOTENCY_LIFE_MS: i64 = 24 * 60 * 60 * 1000;

/// A request that was admitted.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Owns the hold from now on.
    pub record: Record,
    /// How the tightest rates stand, this request included.
    pub rates: RateStandings,
}

/// Takes the hold of `estimate`. Where that is too much, the text is counted exactly and what is then held is asked for
/// once more: a denied command left nothing behind, so the id is still free.
pub(crate) async fn reserve(
    gateway: &Arc<Inner>,
    prepared: &Prepared,
    estimate: &mut Estimate,
) -> Result<Admitted, Refusal> {
    let id = new_reservation_id(&*gateway.entropy, gateway.clock.now_ms());
    match ask(gateway, prepared, id, estimate.hold).await {
        Err(refusal) if refusal.is_of_amounts() => {
            let counted = recount(gateway, prepared, estimate).await.filter(|counted| counted.hold != estimate.hold);
            *estimate = counted.ok_or(refusal)?;
            ask(gateway, prepared, id, estimate.hold).await
        }
        decided => decided,
    }
}

async fn ask(gateway: &Arc<Inner>, prepared: &Prepared, id: ReservationId, hold: Hold) -> Result<Admitted, Refusal> {
    let now_ms = gateway.clock.now_ms();
    let Terms { limits, scopes, labels, windows } =
        gateway.terms.of(&prepared.snapshot, &prepared.key, &prepared.model.name, now_ms);
    let created = Created {
        id,
        tenant: prepared.key.tenant.id.clone(),
        team: prepared.key.team.clone(),
        key: prepared.key.id.clone(),
        model: prepared.model.name.clone(),
        fingerprint: fingerprint(prepared, id),
        hold,
        counting: Counting { scopes, windows: *windows.windows() },
        price_version: prepared.snapshot.prices.version().clone(),
        admitted_at_ms: now_ms,
        due_ms: now_ms,
        owner: Arc::clone(&gateway.owner),
        labels,
        end_user: end_user(prepared),
        idempotency: prepared
            .keyed
            .map(|keyed| IdempotencyRecord { key_hash: keyed.key_hash, expires_at_ms: now_ms + IDEMPOTENCY_LIFE_MS }),
        adjust_on_mismatch: prepared.key.tenant.adjust_on_mismatch,
    };
    let lease_ms = gateway.lease_ms();
    let command = Command::Reserve(Arc::new(Reserve { created, limits: Arc::clone(&limits), lease_ms }));
    let mut record = Record::new(gateway, prepared, id, limits);
    let reply = record.command(command).await.map_err(|error| {
        tracing::info!(reservation_id = %id, error = story(&error), "limits cannot be checked");
        Unavailable::Quota
    })?;
    let rates = reply.rates;
    judge(reply, &record, |limit| match limit.measure {
        Measure::Calendar { window, .. } => windows.resets_in_ms(window, now_ms),
        Measure::PerMinute { .. } | Measure::Concurrent => None,
    })?;
    Ok(Admitted { record, rates })
}

fn judge(reply: Reply, record: &Record, resets_in_ms: impl Fn(&Limit) -> Option<i64>) -> Result<(), Refusal> {
    let is_another = reply.reservation != record.id();
    match reply.decision {
        Decision::Change(_) => Ok(()),
        Decision::Denied(denial) => Err(denied(*denial, reply.rates, resets_in_ms)),
        // It is not this gateway that runs it, or it would have been found among the replays.
        Decision::NoChange(ReservationStatus::Reserved) if is_another => {
            Err(IdempotencyRefusal::KeyRunning { reservation: reply.reservation }.into())
        }
        Decision::NoChange(_) if is_another => {
            Err(IdempotencyRefusal::KeyInUse { reservation: Some(reply.reservation) }.into())
        }
        Decision::Conflict(Conflict::Fingerprint) if is_another => {
            Err(IdempotencyRefusal::KeyReused { reservation: Some(reply.reservation) }.into())
        }
        // A reply was lost and the command was run again: the reservation is there.
        Decision::NoChange(_) => Ok(()),
        Decision::Refused(_) | Decision::Conflict(_) => Err(Unavailable::Internal.into()),
    }
}

fn denied(denial: Denial, rates: RateStandings, resets_in_ms: impl Fn(&Limit) -> Option<i64>) -> Refusal {
    match denial.reason {
        DenialReason::Revoked => CallerRefusal::Revoked.into(),
        DenialReason::ExceedsLimit { needed } => LimitRefusal::Never { limit: Box::new(denial.limit), needed }.into(),
        DenialReason::Exhausted { retry_after_ms } => {
            let retry_after_ms = retry_after_ms.or_else(|| resets_in_ms(&denial.limit));
            LimitRefusal::Reached { limit: Box::new(denial.limit), retry_after_ms, rates: Box::new(rates) }.into()
        }
    }
}

/// Tells one request from another under the same id. Ids are new each time, so only a client's `Idempotency-Key` can
/// bring a second body; without one there is nothing to compare, and the body, which may be megabytes, is not read.
fn fingerprint(prepared: &Prepared, id: ReservationId) -> [u8; 32] {
    match prepared.keyed {
        Some(keyed) => keyed.fingerprint,
        None => hashed(&prepared.key.tenant.secret, b"reservation", &[id.as_bytes()]),
    }
}

/// An HMAC under the tenant's secret; `purpose` keeps equal texts of different kinds apart.
pub(crate) fn hashed(secret: &TenantSecret, purpose: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&secret.0) else { return [0; 32] };
    mac.update(purpose);
    for part in parts {
        mac.update(&[0]);
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn end_user(prepared: &Prepared) -> Option<String> {
    let user = prepared.request.facts().end_user.as_ref()?;
    let mut hex = String::with_capacity(64);
    crate::arrival::push_hex(&mut hex, &hashed(&prepared.key.tenant.secret, b"end-user", &[user.as_bytes()]));
    Some(hex)
}
