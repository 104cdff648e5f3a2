//! What operators do to a running process: orders about dead letters, and a rebuild of the counters.

use super::*;
use crate::ports::{DeadLettersError, Parked, Rebuilt};

#[async_trait::async_trait]
impl DeadLettersPort for Fakes {
    async fn parked(&self) -> Result<Vec<Parked>, PortError> {
        let parked = Parked {
            consumer: "ledger".into(),
            topic: "reservations".into(),
            key: "k".into(),
            offset: 7,
            reason: "it has no end".into(),
            records: 2,
            asked: Some(ParkedOrder::Skip { offset: 7 }),
        };
        self.answer(vec![parked])
    }

    async fn order(
        &self,
        consumer: &str,
        key: &str,
        order: ParkedOrder,
        actor: &Actor,
    ) -> Result<(), DeadLettersError> {
        self.answer(())?;
        match order {
            _ if (consumer, key) != ("ledger", "k") => {
                return Err(DeadLettersError::NotParked { consumer: consumer.into(), key: key.into() });
            }
            ParkedOrder::Skip { offset } if offset != 7 => {
                return Err(DeadLettersError::OtherOffset { asked: offset, waits: 7 });
            }
            ParkedOrder::Skip { .. } | ParkedOrder::Replay => self.orders.lock().push((order, actor.clone())),
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl QuotaPort for Fakes {
    async fn rebuild(&self, actor: &Actor) -> Result<Rebuilt, PortError> {
        self.rebuilds.lock().push(actor.clone());
        self.answer(Rebuilt { tenants: 1, reservations: 2, events: 3, closed_ms: 4 })
    }
}

#[tokio::test]
async fn an_order_about_dead_letters_needs_a_name_a_reason_and_what_waits() {
    let desk = Desk::new();
    let (status, body) = desk.get("/admin/v1/dead-letters").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body["parked"][0]["asked"], json!({ "act": "skip", "offset": 7 }));
    let skip = |offset: u64| json!({ "consumer": "ledger", "key": "k", "act": "skip", "offset": offset });
    for (query, field) in [("", "who"), ("?who=ada", "why"), ("?who=ada&why=%20", "why"), ("?who=&why=x", "who")] {
        let (status, body) = desk.post(&format!("/admin/v1/dead-letters{query}"), &skip(7)).await;
        assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!(field)), "{query}");
        let (status, body) = desk.post(&format!("/admin/v1/quota/rebuild{query}"), &json!({})).await;
        assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!(field)), "{query}");
    }
    let path = "/admin/v1/dead-letters?who=ada&why=repaired";
    let replay = json!({ "consumer": "ledger", "key": "k", "act": "replay" });
    assert_eq!(desk.post(path, &replay).await, (StatusCode::OK, replay.clone()));
    assert_eq!(desk.post(path, &skip(7)).await.0, StatusCode::OK);
    let ada = Actor { who: "ada".into(), why: "repaired".into() };
    let orders = vec![(ParkedOrder::Replay, ada.clone()), (ParkedOrder::Skip { offset: 7 }, ada)];
    assert_eq!(*desk.fakes.orders.lock(), orders);

    let (status, body) = desk.post(path, &skip(6)).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::CONFLICT, &json!("other_offset")));
    let unknown = json!({ "consumer": "ledger", "key": "other", "act": "replay" });
    assert_eq!(desk.post(path, &unknown).await.0, StatusCode::NOT_FOUND);
    for wrong in [json!({}), json!({ "consumer": "ledger", "key": "k", "act": "skip" }), json!(3)] {
        assert_eq!(desk.post(path, &wrong).await.0, StatusCode::BAD_REQUEST, "{wrong}");
    }
    *desk.fakes.is_down.lock() = true;
    assert_eq!(desk.post(path, &replay).await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_rebuild_tells_what_it_found() {
    let desk = Desk::new();
    let path = "/admin/v1/quota/rebuild?who=ada&why=drill";
    let (status, body) = desk.call(Method::POST, path, "", "").await;
    let expected = json!({ "tenants": 1, "reservations": 2, "events": 3, "closed_ms": 4 });
    assert_eq!((status, body), (StatusCode::OK, expected));
    assert_eq!(*desk.fakes.rebuilds.lock(), [Actor { who: "ada".into(), why: "drill".into() }]);
    *desk.fakes.is_down.lock() = true;
    let (status, body) = desk.call(Method::POST, path, "", "").await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")));
}
