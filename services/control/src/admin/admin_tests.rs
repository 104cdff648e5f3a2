use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Method, Request};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tower_service::Service as _;

use weir_domain::calendar::{Zone, windows_at};
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Counter, CounterReading, Scope, Subject};
use weir_runtime::clock::ManualClock;
use weir_runtime::entropy::{OsEntropy, new_reservation_id};

use super::*;
use crate::control::SnapshotSource as _;
use crate::ports::{
    ParkedOrder, PendingReservation, PortError, ReportFormat, ReportProblem, ReportReceipt, ReportStatus, ReportsError,
    Revocation, TenantCounters,
};
use crate::secrets::ControlSecrets;
use crate::store::SqliteControlStore;

/// 2026-11-29 12:00 UTC.
const NOW_MS: i64 = 1_795_953_600_000;

const CATALOG: &str = r#"
[[provider]]
id = "p"
dialect = "openai_chat"
base_url = "http://127.0.0.1:8080/v1"

[[deployment]]
id = "d"
provider = "p"
model = "gpt-4o-mini"
max_output_tokens = 1000

[[model]]
name = "m"
deployments = ["d"]

[[tenant]]
name = "acme"

[[limit]]
tenant = "acme"
kind = "usd per month"
max = "10"
"#;

/// Everything behind the ports, as a test wants it.
#[derive(Debug, Default)]
struct Fakes {
    revoked: Mutex<Vec<Revocation>>,
    counters: Mutex<TenantCounters>,
    pending: Mutex<Vec<PendingReservation>>,
    imported: Mutex<Vec<(ReportFormat, String, Actor)>>,
    story: Mutex<Option<(ReservationId, Value)>>,
    orders: Mutex<Vec<(ParkedOrder, Actor)>>,
    rebuilds: Mutex<Vec<Actor>>,
    is_down: Mutex<bool>,
}

impl Fakes {
    fn answer<T>(&self, answer: T) -> Result<T, PortError> {
        if *self.is_down.lock() {
            return Err(PortError { what: "the quota store", reason: "it is rebuilding".to_owned() });
        }
        Ok(answer)
    }
}

#[async_trait::async_trait]
impl Revocations for Fakes {
    async fn revoke(&self, revocation: &Revocation) -> Result<(), PortError> {
        self.revoked.lock().push(revocation.clone());
        self.answer(())
    }
}

#[async_trait::async_trait]
impl CountersPort for Fakes {
    async fn counters(&self, _: &TenantId) -> Result<TenantCounters, PortError> {
        self.answer(self.counters.lock().clone())
    }
}

#[async_trait::async_trait]
impl ReservationsPort for Fakes {
    async fn story(&self, reservation: ReservationId) -> Result<Option<Value>, PortError> {
        let story = self.story.lock().clone();
        self.answer(story.filter(|(id, _)| *id == reservation).map(|(_, story)| story))
    }

    async fn pending(&self, most: usize) -> Result<Vec<PendingReservation>, PortError> {
        self.answer(self.pending.lock().iter().take(most).cloned().collect())
    }
}

#[async_trait::async_trait]
impl ReportsPort for Fakes {
    async fn import(
        &self,
        format: ReportFormat,
        body: &[u8],
        actor: &Actor,
    ) -> Result<Vec<ReportReceipt>, ReportsError> {
        let text = String::from_utf8(body.to_vec()).unwrap();
        if text.contains("bad") {
            return Err(ReportsError::Invalid(vec![ReportProblem {
                line: 2,
                field: "attempt".into(),
                problem: "`bad` is not valid".into(),
                fix: "write a whole number from 1".into(),
            }]));
        }
        let known = self.imported.lock().iter().any(|(_, before, _)| *before == text);
        self.imported.lock().push((format, text.clone(), actor.clone()));
        let status = if known { ReportStatus::Duplicate } else { ReportStatus::Accepted };
        let receipt = |n: usize| ReportReceipt { report_id: format!("r{n}"), revision: 1, status };
        Ok(self.answer((0..text.lines().count()).map(receipt).collect())?)
    }
}

struct Desk {
    _folder: tempfile::TempDir,
    api: AdminApi,
    fakes: Arc<Fakes>,
    token: String,
}

impl Desk {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secrets = ControlSecrets::open_or_create(folder.path(), &OsEntropy).unwrap();
        let token = std::fs::read_to_string(folder.path().join("admin.token")).unwrap().trim().to_owned();
        let store = SqliteControlStore::in_memory(&secrets).unwrap();
        let clock = Arc::new(ManualClock::at_ms(NOW_MS));
        let control = Control::open(Arc::new(store), secrets, clock.clone(), OsEntropy::shared()).unwrap();
        control.apply("catalog.toml", CATALOG).unwrap();
        let fakes = Arc::new(Fakes::default());
        let api = AdminApi {
            control: Arc::new(control),
            revocations: fakes.clone(),
            counters: fakes.clone(),
            reservations: fakes.clone(),
            reports: fakes.clone(),
            dead_letters: fakes.clone(),
            quota: fakes.clone(),
            health: Health::new(),
            metrics: Metrics::new(),
            topic_prefix: "weir.".to_owned(),
            clock,
            tasks: Tasks::new(),
        };
        Self { _folder: folder, api, fakes, token }
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = router(self.api.clone()).call(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("no JSON: {bytes:?}"));
        (status, body)
    }

    async fn call(&self, method: Method, path: &str, media_type: &str, body: impl Into<Body>) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, media_type)
            .body(body.into())
            .unwrap();
        self.send(request).await
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        self.call(Method::GET, path, "", "").await
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.call(Method::POST, path, "application/json", body.to_string()).await
    }

    fn tenant(&self) -> TenantId {
        self.api.control.state().unwrap().tenants["acme"].id.clone()
    }
}

#[tokio::test]
async fn nothing_answers_without_the_token() {
    let desk = Desk::new();
    let token = &desk.token;
    let wrong = [
        "".to_owned(),
        "Bearer".into(),
        "Bearer x".into(),
        format!("Basic {token}"),
        format!("Bearer {token}0"),
        token.clone(),
    ];
    let paths = ["keys", "health", "catalog", "dead-letters", "quota/rebuild"].map(|path| format!("/admin/v1/{path}"));
    for path in paths.iter().map(String::as_str).chain(["/nowhere"]) {
        for header in &wrong {
            let request = Request::get(path).header(AUTHORIZATION, header).body(Body::empty()).unwrap();
            let (status, body) = desk.send(request).await;
            assert_eq!(
                (status, &body["error"]["code"]),
                (StatusCode::UNAUTHORIZED, &json!("unauthorized")),
                "{header}"
            );
        }
    }
    let none = Request::delete("/admin/v1/keys/x").body(Body::empty()).unwrap();
    assert_eq!(desk.send(none).await.0, StatusCode::UNAUTHORIZED);
    for path in ["/admin/v1/quota/rebuild?who=ada&why=drill", "/admin/v1/dead-letters?who=ada&why=drill"] {
        let none = Request::post(path).body(Body::from("{}")).unwrap();
        assert_eq!(desk.send(none).await.0, StatusCode::UNAUTHORIZED);
    }
    assert!(desk.fakes.rebuilds.lock().is_empty(), "a stranger rebuilt the counters");
    let request = Request::get("/admin/v1/keys").header(AUTHORIZATION, format!("bearer {token}")).body(Body::empty());
    assert_eq!(desk.send(request.unwrap()).await.0, StatusCode::OK, "the scheme has no case");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_errors_of_the_same_form() {
    let desk = Desk::new();
    let (status, body) = desk.get("/admin/v2/keys").await;
    assert_eq!(
        (status, body),
        (StatusCode::NOT_FOUND, json!({"error": {"code": "not_found", "message": "there is no such path"}}))
    );
    let (status, body) = desk.call(Method::PUT, "/admin/v1/keys", "", "").await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::METHOD_NOT_ALLOWED, &json!("method_not_allowed")));
    let (status, body) = desk.get("/admin/v1/pending?most=many").await;
    assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!("query")));
    let (status, body) = desk.call(Method::DELETE, "/admin/v1/keys/%ff", "", "").await;
    assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!("id")));
}

#[tokio::test]
async fn a_key_lives_through_the_api() {
    let desk = Desk::new();
    let (status, created) =
        desk.post("/admin/v1/keys", &json!({"tenant": "acme", "name": "laptop", "labels": {"env": "dev"}})).await;
    assert_eq!(status, StatusCode::CREATED);
    let plain = created["key"].as_str().unwrap();
    let id = created["id"].as_str().unwrap();
    assert_eq!((&created["status"], &created["created_at"]), (&json!("active"), &json!("2026-11-29T12:00:00Z")));
    let hash = desk.api.control.secrets().pepper.hash(plain);
    assert!(desk.api.control.current().keys.contains_key(&hash));

    let (_, listed) = desk.get("/admin/v1/keys").await;
    assert_eq!((&listed["keys"][0]["id"], &listed["keys"][0]["prefix"]), (&json!(id), &json!(plain[..16])));
    assert!(!listed.to_string().contains(plain));

    let path = format!("/admin/v1/keys/{id}?who=ada&why=leaked");
    let (status, revoked) = desk.call(Method::DELETE, &path, "", "").await;
    assert_eq!((status, &revoked["status"]), (StatusCode::OK, &json!("revoked")));
    assert!(!desk.api.control.current().keys.contains_key(&hash));
    let expected =
        Revocation { tenant: desk.tenant(), key: id.into(), actor: Actor { who: "ada".into(), why: "leaked".into() } };
    assert_eq!(*desk.fakes.revoked.lock(), [expected]);
    let (status, _) = desk.call(Method::DELETE, "/admin/v1/keys/key_none", "", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_revocation_that_the_quota_store_did_not_hear_is_told_and_can_be_repeated() {
    let desk = Desk::new();
    let (_, created) = desk.post("/admin/v1/keys", &json!({"tenant": "acme", "name": "laptop"})).await;
    let path = format!("/admin/v1/keys/{}", created["id"].as_str().unwrap());
    *desk.fakes.is_down.lock() = true;
    let (status, body) = desk.call(Method::DELETE, &path, "", "").await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")));
    assert!(desk.api.control.current().keys.is_empty(), "the next snapshot is without it all the same");
    *desk.fakes.is_down.lock() = false;
    assert_eq!(desk.call(Method::DELETE, &path, "", "").await.0, StatusCode::OK);
    assert_eq!(desk.fakes.revoked.lock().len(), 2);
}

#[tokio::test]
async fn a_bad_key_request_names_the_field() {
    let desk = Desk::new();
    let cases = [
        (json!({"tenant": "acme"}), "body", "missing field `name`"),
        (json!({"tenant": "acme", "name": 3}), "name", "invalid type: integer `3`, expected a string"),
        (json!({"tenant": "acme", "name": "x", "nme": "y"}), "nme", "unknown field `nme`"),
        (json!({"tenant": "acme", "name": "x", "labels": {"a": 1}}), "labels.a", "invalid type: integer `1`"),
        (json!({"tenant": "acme", "name": "x", "expires_at": "soon"}), "expires_at", "`soon` is neither a date"),
        (json!({"tenant": "nobody", "name": "x"}), "tenant", "tenant: there is no tenant `nobody`"),
    ];
    for (request, field, message) in cases {
        let (status, body) = desk.post("/admin/v1/keys", &request).await;
        assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!(field)), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().starts_with(message), "{body}");
    }
    for text in ["", "{", "{\"tenant\":\"acme\",\"name\":\"x\"} {}"] {
        let (status, body) = desk.call(Method::POST, "/admin/v1/keys", "application/json", text).await;
        assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!("body")), "{text}");
    }
    let huge = json!({"tenant": "acme", "name": "x".repeat(LARGEST_KEY_REQUEST_BYTES)});
    let (status, body) = desk.post("/admin/v1/keys", &huge).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("too_large")));
}

#[tokio::test]
async fn a_catalog_is_checked_applied_and_shown() {
    let desk = Desk::new();
    let next = CATALOG.replace("\"10\"", "\"20\"");
    let toml = "application/toml";
    let (status, checked) = desk.call(Method::POST, "/admin/v1/catalog/check", toml, next.clone()).await;
    assert_eq!((status, &checked["changed"], &checked["version"]), (StatusCode::OK, &json!(true), &json!(2)));
    let (status, applied) = desk.call(Method::POST, "/admin/v1/catalog/apply", toml, next.clone()).await;
    assert_eq!((status, &applied["changed"], &applied["version"]), (StatusCode::OK, &json!(true), &json!(3)));
    let (_, again) = desk.call(Method::POST, "/admin/v1/catalog/apply", toml, next).await;
    assert_eq!((&again["changed"], &again["version"]), (&json!(false), &json!(3)));
    let (_, shown) = desk.get("/admin/v1/catalog").await;
    assert_eq!((&shown["snapshot"]["version"], &shown["catalog"]["limit"][0]["max"]), (&json!(3), &json!("20")));
}

#[tokio::test]
async fn a_bad_catalog_is_refused_with_every_problem_and_its_place() {
    let desk = Desk::new();
    let bad = CATALOG.replace("[\"d\"]", "[\"e\"]").replace("provider = \"p\"", "provider = \"q\"");
    let (status, body) = desk.call(Method::POST, "/admin/v1/catalog/apply?file=my.toml", "", bad).await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("catalog_invalid")));
    let first = json!({
        "file": "my.toml", "line": 9, "column": 1, "field": "deployment.provider",
        "problem": "there is no provider `q`", "fix": "write one of `p`, or add it"
    });
    assert_eq!((&body["error"]["problems"][0], body["error"]["problems"].as_array().unwrap().len()), (&first, 2));
    desk.post("/admin/v1/keys", &json!({"tenant": "acme", "name": "laptop"})).await;
    let (status, body) = desk.call(Method::POST, "/admin/v1/catalog/check", "", "").await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::CONFLICT, &json!("catalog_collides")));
    let (status, body) = desk.call(Method::POST, "/admin/v1/catalog/apply", "", vec![0xff]).await;
    assert_eq!((status, &body["error"]["message"]), (StatusCode::BAD_REQUEST, &json!("it is not UTF-8 text")));
}

#[tokio::test]
async fn counters_stand_beside_the_limits_that_look_at_them() {
    let desk = Desk::new();
    let (_, key) = desk.post("/admin/v1/keys", &json!({"tenant": "acme", "name": "laptop"})).await;
    let limited =
        format!("{CATALOG}\n[[limit]]\ntenant = \"acme\"\nkey = \"laptop\"\nkind = \"concurrent\"\nmax = 3\n");
    desk.call(Method::POST, "/admin/v1/catalog/apply", "application/toml", limited).await;
    let usd = |nanos| Amounts::new(1, 10, NanoUsd::from_nanos(nanos));
    let scope = Scope { subject: Subject::Tenant, model: None };
    let window = windows_at(NOW_MS, &Zone::UTC)[2];
    let counter = Counter { charged: usd(82_200_000), held: usd(32_800_000), pending: usd(22_800_000) };
    *desk.fakes.counters.lock() = TenantCounters {
        pending_since_ms: [((scope.clone(), window), NOW_MS - 90_000)].into(),
        counters: vec![CounterReading { scope, window, counter }],
        held: usd(32_800_000),
        reserved: 2,
        pending: 1,
    };
    let (status, shown) = desk.get("/admin/v1/counters?tenant=acme").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        shown["limits"],
        json!([
            {"subject": "tenant", "kind": "usd per month", "max": "10", "taken": "0.115", "spent": "0.0822",
             "in_use": "0.01", "pending": "0.0228", "pending_permille": 3, "pending_age_ms": 90_000},
            {"subject": "key", "id": key["id"], "name": "laptop", "kind": "concurrent", "max": "3"},
        ])
    );
    assert_eq!(
        shown["counters"],
        json!([{
            "subject": "tenant", "window": "m2026-11",
            "charged": {"requests": 1, "tokens": 10, "usd": "0.0822"},
            "held": {"requests": 1, "tokens": 10, "usd": "0.0328"},
            "pending": {"requests": 1, "tokens": 10, "usd": "0.0228"},
            "pending_age_ms": 90_000,
        }])
    );
    assert_eq!((&shown["reserved"], &shown["pending"]), (&json!(2), &json!(1)));
    let by_id = desk.get(&format!("/admin/v1/counters?tenant={}", desk.tenant())).await.1;
    assert_eq!(by_id, shown);
    assert_eq!(desk.get("/admin/v1/counters?tenant=x").await.0, StatusCode::NOT_FOUND);
    assert_eq!(desk.get("/admin/v1/counters").await.1["error"]["field"], json!("tenant"));
    *desk.fakes.is_down.lock() = true;
    let (status, body) = desk.get("/admin/v1/counters?tenant=acme").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(
        body["error"]["message"],
        json!("the quota store did not answer: it is rebuilding; the same again is harmless")
    );
}

#[tokio::test]
async fn a_reservation_has_a_story_and_pending_ones_have_an_age() {
    let desk = Desk::new();
    let id = new_reservation_id(&OsEntropy, NOW_MS);
    *desk.fakes.story.lock() = Some((id, json!({"events": []})));
    assert_eq!(desk.get(&format!("/admin/v1/reservations/{id}")).await, (StatusCode::OK, json!({"events": []})));
    let other = new_reservation_id(&OsEntropy, NOW_MS);
    assert_eq!(desk.get(&format!("/admin/v1/reservations/{other}")).await.0, StatusCode::NOT_FOUND);
    let (status, body) = desk.get("/admin/v1/reservations/7").await;
    assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!("id")));

    *desk.fakes.pending.lock() = vec![PendingReservation {
        reservation: id,
        tenant: desk.tenant(),
        admitted_at_ms: NOW_MS - 5_000,
        held: Amounts::new(1, 100, NanoUsd::from_nanos(335)),
        unknown_attempts: vec![2],
        escalated: true,
    }];
    let (_, listed) = desk.get("/admin/v1/pending").await;
    let expected = json!({"pending": [{
        "reservation": id.to_string(), "tenant": desk.tenant().as_str(), "tenant_name": "acme",
        "admitted_at": "2026-11-29T11:59:55Z", "age_ms": 5_000,
        "held": {"requests": 1, "tokens": 100, "usd": "0.000000335"}, "unknown_attempts": [2], "escalated": true,
    }]});
    assert_eq!(listed, expected);
    assert_eq!(desk.get("/admin/v1/pending?most=0").await.1, json!({"pending": []}));
}

#[tokio::test]
async fn reports_come_one_by_one_or_many_at_once() {
    let desk = Desk::new();
    let path = "/admin/v1/usage-reports?who=ada";
    let one = json!({"reservation_id": "x", "meters": {"in.uncached": 9_007_199_254_740_993_i64}});
    let (status, body) = desk.post(path, &one).await;
    assert_eq!(
        (status, body),
        (StatusCode::OK, json!({"reports": [{"report_id": "r0", "revision": 1, "status": "accepted"}]}))
    );
    assert_eq!(desk.post(path, &one).await.1["reports"][0]["status"], json!("duplicate"));
    assert_eq!(desk.post(path, &json!([one, one])).await.1["reports"].as_array().unwrap().len(), 2);
    desk.call(Method::POST, path, "application/x-ndjson; charset=utf-8", "{}\n").await;
    desk.call(Method::POST, path, "text/csv", "a,b\n").await;
    let imported = desk.fakes.imported.lock().clone();
    assert_eq!(imported[0].2, Actor { who: "ada".into(), why: String::new() });
    assert!(imported[0].1.contains("9007199254740993") && imported[0].1.ends_with('\n'));
    assert_eq!(imported[2].1.lines().count(), 2);
    assert_eq!((imported[3].0, imported[3].1.as_str()), (ReportFormat::JsonLines, "{}\n"));
    assert_eq!((imported[4].0, imported[4].1.as_str()), (ReportFormat::Csv, "a,b\n"));

    let (status, body) = desk.post(path, &json!({"attempt": "bad"})).await;
    assert_eq!((status, &body["error"]["field"]), (StatusCode::BAD_REQUEST, &json!("attempt")));
    assert_eq!(body["error"]["problems"][0]["line"], json!(2));
    let (status, _) = desk.call(Method::POST, path, "text/plain", "x").await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn health_says_what_is_missing() {
    let desk = Desk::new();
    desk.api.health.expect(&["log"]);
    let (status, body) = desk.get("/admin/v1/health").await;
    assert_eq!(
        (status, body),
        (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({"ready": false, "reasons": [{"condition": "log", "reason": "starting"}]})
        )
    );
    desk.api.health.ready("log");
    assert_eq!(desk.get("/admin/v1/health").await.0, StatusCode::OK);
}

#[path = "operators_tests.rs"]
mod operators;

#[path = "registry_tests.rs"]
mod registry;
