//! The quota store does what it is told and its reply is lost: the same command is run again, and counts once (I3, I11).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::{House, body, tenant};
use async_trait::async_trait;
use parking_lot::Mutex;
use weir_domain::ids::{KeyId, ReservationId, TenantId};
use weir_domain::quota::{Correction, Reply};
use weir_domain::reservation::{Command, Reservation, ReservationStatus};
use weir_quota::{MemoryQuota, QuotaError, QuotaStore, TenantReading};
use weir_streams::EventLog;
use weir_stub::script::Script;

/// Loses so many replies of a command in a row, then gives the one that it lost, as a store does that knows what it was
/// asked before.
#[derive(Debug)]
struct Lossy {
    quota: Arc<MemoryQuota>,
    in_a_row: u32,
    lost: Mutex<Option<(ReservationId, Command, Reply)>>,
    tries: AtomicU32,
}

#[async_trait]
impl QuotaStore for Lossy {
    async fn execute(&self, tenant: &TenantId, id: ReservationId, command: &Command) -> Result<Reply, QuotaError> {
        let known = self.lost.lock().as_ref().filter(|(of, lost, _)| *of == id && lost == command).cloned();
        let reply = match known {
            Some((_, _, reply)) => reply,
            None => self.quota.execute(tenant, id, command).await?,
        };
        if self.tries.fetch_add(1, Ordering::SeqCst) % (self.in_a_row + 1) < self.in_a_row {
            *self.lost.lock() = Some((id, command.clone(), reply));
            return Err(QuotaError::Unavailable { reason: "the reply was lost".to_owned() });
        }
        Ok(reply)
    }

    async fn execute_all(
        &self,
        tenant: &TenantId,
        id: ReservationId,
        commands: &[Command],
    ) -> Result<Vec<Reply>, QuotaError> {
        self.quota.execute_all(tenant, id, commands).await
    }

    async fn correct(&self, tenant: &TenantId, correction: &Correction) -> Result<Reply, QuotaError> {
        self.quota.correct(tenant, correction).await
    }

    async fn due(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        self.quota.due(most).await
    }

    async fn pending(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        self.quota.pending(most).await
    }

    async fn find(&self, tenant: &TenantId, id: ReservationId) -> Result<Option<Reservation>, QuotaError> {
        self.quota.find(tenant, id).await
    }

    async fn read(&self, tenant: &TenantId) -> Result<TenantReading, QuotaError> {
        self.quota.read(tenant).await
    }

    async fn revoke(&self, tenant: &TenantId, key: &KeyId) -> Result<(), QuotaError> {
        self.quota.revoke(tenant, key).await
    }

    async fn now_ms(&self) -> Result<i64, QuotaError> {
        self.quota.now_ms().await
    }
}

async fn house(in_a_row: u32) -> House {
    let mut house = House::of(Script::default()).await;
    let quota = Arc::new(Lossy {
        quota: Arc::clone(&house.quota),
        in_a_row,
        lost: Mutex::default(),
        tries: AtomicU32::default(),
    });
    house.gateway = house.replica_with("lossy", Arc::clone(&house.log) as Arc<dyn EventLog>, quota);
    house
}

#[tokio::test]
async fn i03_a_command_whose_reply_was_lost_twice_is_run_again_and_counts_once() {
    for stream in [false, true] {
        let house = house(2).await;
        let read = house.post(body(stream)).await;
        assert_eq!(read.status, 200, "{}", read.text());
        assert_eq!(house.stubs[0].journal().len(), 1);
        let reservation = house.reservation_of(&read).await;
        assert_eq!(reservation.status(), ReservationStatus::Settled);
        assert_eq!((reservation.charged().requests, reservation.attempts.len()), (1, 1));
        assert!(house.quota.read(&tenant()).await.unwrap().held.is_zero());
        house.assert_at_rest().await;
    }
}

#[tokio::test]
async fn i02_a_store_that_gives_no_reply_admits_nobody() {
    let house = house(u32::MAX - 1).await;
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (503, Some("quota_unavailable")));
    assert!(house.stubs[0].journal().is_empty(), "no provider is called");
}
