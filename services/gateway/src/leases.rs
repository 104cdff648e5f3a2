//! Keeping the leases of running requests: renewed together, in the quota store only.
//!
//! A lease is what tells a live request from a dead process. A request that ends within a lease is never renewed, so
//! most requests cost nothing here.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use weir_domain::ids::ReservationId;
use weir_domain::reservation::{Command, Decision};

use crate::record::{Identity, batch};
use crate::server::Inner;

#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<HashMap<ReservationId, Identity>>);

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
        gateway.leases.0.lock().insert(identity.id, identity.clone());
        Lease { gateway: Arc::clone(gateway), id: identity.id }
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
    let running: Vec<Identity> = gateway.leases.0.lock().values().cloned().collect();
    let until_ms = gateway.clock.now_ms() + gateway.lease_ms();
    for identity in running {
        let command = Command::Renew { until_ms, owner: Arc::clone(&gateway.owner) };
        match gateway.quota.execute(&identity.tenant, identity.id, &command).await {
            Ok(reply) => note_resumption(gateway, &identity, reply.decision),
            Err(error) => tracing::warn!(reservation_id = %identity.id, %error, "lease not renewed"),
        }
    }
}

/// The reconciler had pended it: the log learns that its owner is alive. Should this process die before the event is
/// durable, the log still says pending, which is the cautious of the two.
fn note_resumption(gateway: &Inner, identity: &Identity, decision: Decision) {
    let Decision::Change(events) = decision else { return };
    if events.iter().any(|event| event.kind().is_some()) {
        tracing::warn!(reservation_id = %identity.id, "lease had ended and was taken back");
        let _append = gateway.log.append(batch(gateway, identity, events.into_iter()));
    }
}
