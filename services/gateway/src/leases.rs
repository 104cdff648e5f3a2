//! Keeping the leases of running requests: renewed together, in the quota store only.
//!
//! A lease is what tells a live request from a dead process. A request that ends within a lease is never renewed, so
//! most requests cost nothing here.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use weir_domain::ids::{ReservationId, ReservationMap};
use weir_domain::reservation::{Command, Decision, Event, PendCause, decide};

use crate::record::{Identity, NoBalances, batch};
use crate::server::Inner;

#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<ReservationMap<Held>>);

#[derive(Debug)]
struct Held {
    identity: Identity,
    /// The end of the lease as this process last set it, ms.
    until_ms: i64,
    /// Pendings by expiry and the resumptions that answered them, in the order of the log.
    resumed: Vec<Event>,
}

/// Ends the renewals of one reservation when dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    gateway: Arc<Inner>,
    id: ReservationId,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.gateway.leases.0.lock().remove(&self.id);
    }
}

impl Leases {
    pub(crate) fn hold(gateway: &Arc<Inner>, identity: &Identity) -> Lease {
        let held = Held {
            identity: identity.clone(),
            until_ms: gateway.clock.now_ms() + gateway.lease_ms(),
            resumed: Vec::new(),
        };
        gateway.leases.0.lock().insert(identity.id, held);
        Lease { gateway: Arc::clone(gateway), id: identity.id }
    }

    fn note(&self, id: ReservationId, until_ms: i64) {
        if let Some(held) = self.0.lock().get_mut(&id) {
            held.until_ms = until_ms;
        }
    }

    fn note_resumption(&self, id: ReservationId, ordinal: u16, resumption: Event) {
        if let Some(held) = self.0.lock().get_mut(&id) {
            let pending = Event::ReservationPending { cause: PendCause::Expired, ordinal: ordinal.saturating_sub(1) };
            held.resumed.extend([pending, resumption]);
        }
    }

    /// What happened to the reservation beside its request: the request's own state must hear of it before it closes,
    /// or the log would take its closing for a copy of the pending that was taken back.
    pub(crate) fn resumed(&self, id: ReservationId) -> Vec<Event> {
        self.0.lock().get(&id).map(|held| held.resumed.clone()).unwrap_or_default()
    }

    /// How many requests run.
    pub(crate) fn running(&self) -> usize {
        self.0.lock().len()
    }
}

/// Renews every running request's lease until the tasks stop; what drains then lives on its last renewal.
pub(crate) async fn keep(gateway: Arc<Inner>) {
    let every = gateway.options.renew_every.duration();
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stopping = gateway.tasks.stopping();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            () = &mut stopping => return,
            _ = ticks.tick() => renew_all(&gateway).await,
        }
    }
}

async fn renew_all(gateway: &Inner) {
    let running: Vec<(Identity, i64)> =
        gateway.leases.0.lock().values().map(|held| (held.identity.clone(), held.until_ms)).collect();
    for (identity, until_ms) in running {
        let now_ms = gateway.clock.now_ms();
        if now_ms >= until_ms {
            tell_resumption(gateway, &identity, now_ms).await;
        }
        let renewed_ms = now_ms + gateway.lease_ms();
        match gateway.quota.execute(&identity.tenant, identity.id, &renewal(gateway, renewed_ms)).await {
            Ok(_) => gateway.leases.note(identity.id, renewed_ms),
            Err(error) => tracing::warn!(reservation_id = %identity.id, %error, "lease not renewed"),
        }
    }
}

fn renewal(gateway: &Inner, until_ms: i64) -> Command {
    Command::Renew { until_ms, owner: Arc::clone(&gateway.owner) }
}

/// A lease that ended before it was renewed may have been pended by the reconciler. Then the log must learn that its
/// owner is alive before the store does (I8).
async fn tell_resumption(gateway: &Inner, identity: &Identity, now_ms: i64) {
    let found = match gateway.quota.find(&identity.tenant, identity.id).await {
        Ok(found) => found,
        Err(error) => return tracing::warn!(reservation_id = %identity.id, %error, "lease not looked up"),
    };
    let command = renewal(gateway, now_ms + gateway.lease_ms());
    let Decision::Change(events) = decide(found.as_ref(), &NoBalances, &command, now_ms) else { return };
    if events.iter().all(|event| event.kind().is_none()) {
        return;
    }
    tracing::warn!(reservation_id = %identity.id, "lease had ended and is taken back");
    for event in &events {
        if let Event::ReservationResumed { ordinal, .. } = event {
            gateway.leases.note_resumption(identity.id, *ordinal, event.clone());
        }
    }
    let append = gateway.log.append(batch(gateway, identity, events.into_iter()));
    if let Err(error) = append.durable().await {
        tracing::error!(reservation_id = %identity.id, %error, "resumption is not on the log");
    }
}
