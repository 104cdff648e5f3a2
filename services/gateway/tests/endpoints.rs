//! Responses, embeddings and counts of tokens: by splice, same API in and out, and accounted like everything else.

use std::sync::Arc;

use crate::support::canned::{Canned, Ending, Reply};
use crate::support::{House, KEY, MODEL, Read, Setup};
use serde_json::{Value, json};
use weir_domain::policy::TenantSecret;
use weir_domain::registry::{Capabilities, Capability, ProviderDialect};
use weir_domain::reservation::ReservationStatus;
use weir_stub::script::{Fault, FaultKind, Script, UsageScript};

async fn post(house: &House, path: &str, body: Value) -> Read {
    let bearer = format!("Bearer {KEY}");
    house.send(house.request_at(path, &[("authorization", &bearer)], body.to_string())).await
}

async fn respond(house: &House, more: Value) -> Read {
    let mut body = json!({"model": MODEL, "input": "hi", "max_output_tokens": 40});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    post(house, "/v1/responses", body).await
}

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

fn said(text: &str) -> Script {
    Script { text: Some(text.to_owned()), chunks: 2, usage: usage(20, 5), ..Script::default() }
}

/// The named events of a Responses stream, whose names are their types.
fn events(read: &Read) -> Vec<Value> {
    let parse = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    read.text().split_terminator("\n\n").map(parse).collect()
}

#[tokio::test]
async fn a_response_is_the_providers_with_our_names_and_is_charged_exactly() {
    let house = House::of(said("an answer")).await;
    let plain = respond(&house, json!({"store": false, "x_vendor": 1.0})).await;
    assert_eq!(plain.status, 200, "{}", plain.text());
    let answer = plain.json();
    assert_eq!((&answer["model"], &answer["output"][0]["content"][0]["text"]), (&json!(MODEL), &json!("an answer")));
    assert_eq!(house.reservation_of(&plain).await.charged().tokens, 25);
    let upstream = house.stubs[0].journal()[0].body.clone();
    assert!(upstream.contains(r#""x_vendor":1.0"#) && upstream.contains(r#""model":"vendor/model-0""#), "{upstream}");

    let streamed = respond(&house, json!({"stream": true})).await;
    let events = events(&streamed);
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], *kinds.last().unwrap()), ("response.created", "response.completed"));
    let named = events.iter().filter(|event| event["response"].is_object());
    let names: Vec<_> = named.map(|event| (&event["response"]["model"], &event["response"]["id"])).collect();
    assert!(names.iter().all(|name| *name == names[0] && name.0 == MODEL), "o33: {names:?}");
    let reservation = house.reservation_of(&streamed).await;
    assert_eq!((reservation.status(), reservation.charged().tokens), (ReservationStatus::Settled, 25));
    house.assert_at_rest().await;
}

#[tokio::test]
async fn o07_o11_a_response_that_breaks_ends_in_the_typed_error_event_with_the_next_number() {
    let fault =
        Fault { kind: FaultKind::Reset, after_chunks: 1, after_bytes: None, code: None, message: None, bytes: None };
    let house = House::of(Script { fault: Some(fault), gap_ms: 5, ..said("an answer") }).await;
    let read = respond(&house, json!({"stream": true})).await;
    let events = events(&read);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["incomplete"]), (&json!("error"), &json!(true)), "{last}");
    assert_eq!(last["sequence_number"], json!(events.len() - 1));
    assert!(!read.text().contains("response.completed"));
    assert_eq!(house.reservation_of(&read).await.status(), ReservationStatus::PendingReconciliation);
}

#[tokio::test]
async fn what_goes_on_from_an_answer_is_asked_where_the_answer_is() {
    // The second tier answers, because the first fails once; what follows must not go to the first again.
    let busy = Script { status: 503, ..Script::default() };
    let house = House::build(Setup { tiers: vec![busy, said("two")], ..Setup::default() }).await;
    let first = respond(&house, json!({})).await;
    assert_eq!(first.header("x-weir-deployment"), "deployment-1");
    let id = first.json()["id"].as_str().unwrap().to_owned();
    let asked_first = house.stubs[0].journal().len();
    let second = respond(&house, json!({"previous_response_id": id})).await;
    assert_eq!(second.status, 200, "{}", second.text());
    assert_eq!(second.json()["previous_response_id"], json!(id), "the client's own name for it comes back");
    assert_eq!((second.header("x-weir-deployment"), second.header("x-weir-attempts")), ("deployment-1", "1"));
    assert_eq!(house.stubs[0].journal().len(), asked_first);
    // Another process of the same policy knows it too.
    let elsewhere = house.replica("another");
    let body = json!({"model": MODEL, "input": "and?", "previous_response_id": id}).to_string();
    let bearer = format!("Bearer {KEY}");
    let request = http::Request::post(format!("http://{elsewhere}/v1/responses")).header("authorization", bearer);
    let third = house.send(request.body(http_body_util::Full::new(body.into())).unwrap()).await;
    assert_eq!(third.status, 200, "{}", third.text());
}

#[tokio::test]
async fn i05_an_answer_of_another_tenant_or_from_elsewhere_is_no_answer_here() {
    let house = House::of(said("mine")).await;
    let id = respond(&house, json!({})).await.json()["id"].as_str().unwrap().to_owned();
    let (raw, _) = id.rsplit_once("_w").unwrap();
    for foreign in [raw.to_owned(), format!("{raw}_w0123456789abcdef01234567"), format!("{id}0")] {
        let refused = respond(&house, json!({"previous_response_id": foreign})).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        let error = &refused.json()["error"];
        assert_eq!((&error["param"], &error["code"]), (&json!("previous_response_id"), &json!("state_not_found")));
    }
    house.publish(|snapshot| {
        for key in snapshot.keys.values_mut() {
            let mut other = weir_domain::policy::Key::clone(key);
            let secret = TenantSecret([8; 32]);
            other.tenant =
                Arc::new(weir_domain::policy::Tenant { secret, ..weir_domain::policy::Tenant::clone(&key.tenant) });
            *key = Arc::new(other);
        }
    });
    assert_eq!(respond(&house, json!({"previous_response_id": id})).await.status, 400);
    assert_eq!(house.stubs[0].journal().len(), 1, "the provider heard of none of them");
}

#[tokio::test]
async fn state_that_any_of_several_deployments_may_have_is_refused_by_name() {
    let house = House::build(Setup { tiers: vec![said("a"), said("b")], ..Setup::default() }).await;
    let refused = respond(&house, json!({"conversation": {"id": "conv_1"}})).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("conversation")));
    let alone = House::of(said("a")).await;
    assert_eq!(respond(&alone, json!({"conversation": "conv_1"})).await.status, 200);
}

#[tokio::test]
async fn a_response_asked_of_a_model_at_another_api_is_refused_and_costs_nothing() {
    let provider = Canned::start(Reply::json("{}")).await;
    let setup = Setup {
        tiers: Vec::new(),
        providers: vec![provider.url()],
        speak: vec![ProviderDialect::Anthropic],
        ..Setup::default()
    };
    let house = House::build(setup).await;
    let refused = respond(&house, json!({})).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("model")));
    assert!(provider.asked().is_empty() && house.events().await.is_empty());
}

fn embeds(deployment: &mut weir_domain::registry::Deployment) {
    deployment.capabilities = Capabilities::NONE.with(Capability::Embeddings);
    deployment.max_output_tokens = 0;
}

#[tokio::test]
async fn embeddings_are_charged_for_their_input_and_their_models_answer_nothing_else() {
    let script = Script { usage: usage(12, 0), ..Script::default() };
    let house = House::build(Setup { tiers: vec![script], adapt: embeds, ..Setup::default() }).await;
    let ask = json!({"model": MODEL, "input": ["a", "b"], "dimensions": 3, "user": "u"});
    let read = post(&house, "/v1/embeddings", ask).await;
    assert_eq!(read.status, 200, "{}", read.text());
    let answer = read.json();
    assert_eq!((answer["data"].as_array().unwrap().len(), &answer["model"]), (2, &json!(MODEL)));
    let reservation = house.reservation_of(&read).await;
    assert_eq!((reservation.status(), reservation.charged().tokens), (ReservationStatus::Settled, 12));
    assert_eq!(reservation.charged().usd.nanos(), 12 * 10_000);
    let chat = house.post(crate::support::body(false)).await;
    assert_eq!((chat.status.as_u16(), &chat.json()["error"]["code"]), (503, &json!("capability")));
    let talker = House::of(Script::default()).await;
    let refused = post(&talker, "/v1/embeddings", json!({"model": MODEL, "input": "a"})).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (503, &json!("capability")));
    let nameless = post(&house, "/v1/embeddings", json!({"model": MODEL})).await;
    assert_eq!((nameless.status.as_u16(), &nameless.json()["error"]["param"]), (400, &json!("input")));
}

/// Of tokens, by an API that counts.
fn counter(provider: &Canned) -> Setup {
    let (providers, speak) = (vec![provider.url()], vec![ProviderDialect::Anthropic]);
    Setup { tiers: Vec::new(), providers, speak, ..Setup::default() }
}

#[tokio::test]
async fn a_count_of_tokens_passes_holds_no_tokens_and_bills_nothing() {
    let provider = Canned::start(Reply::json(r#"{"input_tokens":  17, "x":1.0}"#)).await;
    let house = House::build(counter(&provider)).await;
    let headers = [("x-api-key", KEY), ("anthropic-version", "2023-06-01"), ("anthropic-beta", "token-counting-1")];
    let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let read = house.send(house.request_at("/v1/messages/count_tokens?beta=true", &headers, body.clone())).await;
    assert_eq!((read.status.as_u16(), read.text().as_str()), (200, r#"{"input_tokens":  17, "x":1.0}"#));
    let asked = &provider.asked()[0];
    assert_eq!(asked.target, "/v1/messages/count_tokens?beta=true");
    assert_eq!((asked.header("anthropic-beta"), asked.header("anthropic-version")), ("token-counting-1", "2023-06-01"));
    assert_eq!(asked.json()["model"], "vendor/model-0");
    let reservation = house.reservation_of(&read).await;
    let charged = reservation.charged();
    assert_eq!(
        (reservation.status(), charged.requests, charged.tokens, charged.usd.nanos()),
        (ReservationStatus::Settled, 1, 0, 0)
    );
    // Chat models cannot count in this API's way.
    let chat = House::of(Script::default()).await;
    let refused = chat.send(chat.request_at("/v1/messages/count_tokens", &headers, body)).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["type"]), (400, &json!("invalid_request_error")));
    assert!(chat.stubs[0].journal().is_empty());
}

/// No model runs, so a count whose answer was lost costs nothing and leaves nothing to report.
#[tokio::test]
async fn a_count_of_tokens_that_breaks_is_released() {
    for reply in [Reply::json(r#"{"input_tokens":"#).ending(Ending::Reset), Reply::json("no JSON at all")] {
        let provider = Canned::start(reply).await;
        let house = House::build(counter(&provider)).await;
        let body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}).to_string();
        let headers = [("x-api-key", KEY), ("anthropic-version", "2023-06-01")];
        let read = house.send(house.request_at("/v1/messages/count_tokens", &headers, body)).await;
        assert_eq!(read.status, 502, "{}", read.text());
        let reservation = house.reservation_of(&read).await;
        assert_eq!((reservation.status(), reservation.held().is_zero()), (ReservationStatus::Released, true));
    }
}

/// What comes is neither a stream nor an answer: the client gets an error, and somebody must tell what it cost.
#[tokio::test]
async fn an_object_that_answers_nothing_is_an_error_and_pending() {
    let whole = r#"{"id":"c1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
    for (stream, reply) in [(true, whole), (false, r#"{"ok":true}"#)] {
        let provider = Canned::start(Reply::json(reply)).await;
        let setup = Setup { tiers: Vec::new(), providers: vec![provider.url()], ..Setup::default() };
        let house = House::build(setup).await;
        let read = house.post(crate::support::body(stream)).await;
        let code = &read.json()["error"]["code"];
        assert_eq!((read.status.as_u16(), code), (502, &json!("provider_protocol_error")), "{}", read.text());
        assert_eq!(house.reservation_of(&read).await.status(), ReservationStatus::PendingReconciliation);
    }
}
