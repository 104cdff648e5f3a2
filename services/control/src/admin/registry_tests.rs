//! The registry's answers, as Confluent's clients read them.

use super::*;

impl Desk {
    async fn open(&self, path: &str) -> (StatusCode, Value) {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }
}

#[tokio::test]
async fn every_schema_is_found_by_id_and_by_subject_without_a_token() {
    let desk = Desk::new();
    let (status, subjects) = desk.open("/subjects").await;
    assert_eq!(status, StatusCode::OK);
    for subject in subjects.as_array().unwrap().iter().map(|subject| subject.as_str().unwrap()) {
        let (_, versions) = desk.open(&format!("/subjects/{subject}/versions")).await;
        let newest = versions.as_array().unwrap().last().unwrap();
        let (_, latest) = desk.open(&format!("/subjects/{subject}/versions/latest")).await;
        assert_eq!((&latest["version"], &latest["subject"]), (newest, &json!(subject)));
        let (status, schema) =
            desk.open(&format!("/schemas/ids/{}?fetchMaxId=false&subject={subject}", latest["id"])).await;
        assert_eq!((status, &schema["schema"]), (StatusCode::OK, &latest["schema"]));
        let (_, uses) = desk.open(&format!("/schemas/ids/{}/versions", latest["id"])).await;
        assert_eq!(uses, json!([{ "subject": subject, "version": newest }]));
    }
    let (_, beats) = desk.open("/subjects/weir.operations-weir.Heartbeat/versions").await;
    assert_eq!(beats, json!([1, 2]));
}

#[tokio::test]
async fn what_is_not_there_is_said_in_the_registrys_words() {
    let desk = Desk::new();
    for (path, code) in [
        ("/schemas/ids/1", 40403),
        ("/schemas/ids/x", 40403),
        ("/subjects/none/versions", 40401),
        ("/subjects/weir.usage-weir.UsageRow/versions/99", 40402),
    ] {
        let (status, body) = desk.open(path).await;
        assert_eq!((status, &body["error_code"]), (StatusCode::NOT_FOUND, &json!(code)), "{path}");
    }
}

#[tokio::test]
async fn supervisors_and_scrapers_need_no_token() {
    let desk = Desk::new();
    assert_eq!(desk.open("/healthz").await, (StatusCode::OK, json!({ "alive": true })));
    desk.api.health.not_ready("log", "it is away");
    let (status, report) = desk.open("/readyz").await;
    assert_eq!((status, &report["reasons"][0]["reason"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("it is away")));
}
