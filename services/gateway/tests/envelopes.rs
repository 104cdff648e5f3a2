//! What clients of each API are told of errors, and which of their headers pass: O38, O39, O40, O41 for both.

use crate::support::canned::{Canned, Reply};
use crate::support::pairs::{Client, PAIRS, Story};
use crate::support::{House, KEY, MODEL, Read, Setup, key_id};
use serde_json::{Value, json};
use weir_domain::quota::{Limit, Measure, Scope, Subject, Unit};
use weir_domain::registry::ProviderDialect;
use weir_gateway::GatewayOptions;
use weir_runtime::units::ByteSize;
use weir_stub::script::Script;

/// Checks the envelope of `read` and returns the error's type and code.
#[track_caller]
fn error_of(client: Client, read: &Read) -> (String, String) {
    assert_eq!(read.header("content-type"), "application/json", "{}", read.text());
    let body = read.json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let error = &body["error"];
    assert!(!text(&error["message"]).is_empty() && !read.text().contains(KEY), "{}", read.text());
    match client {
        Client::Chat => {
            assert!(error.as_object().unwrap().contains_key("param") && !read.header("x-request-id").is_empty());
            (text(&error["type"]), text(&error["code"]))
        }
        Client::Messages => {
            assert_eq!(body["type"], "error", "{}", read.text());
            assert_eq!(body["request_id"], read.header("request-id"), "{}", read.text());
            (text(&error["type"]), text(&error["details"]["error_code"]))
        }
    }
}

async fn sent(house: &House, client: Client, headers: &[(&str, &str)], body: &str) -> Read {
    house.send(house.request_at(client.path(), headers, body.to_owned())).await
}

fn headers(client: Client, key: &'static str) -> Vec<(&'static str, &'static str)> {
    match client {
        Client::Chat => vec![("authorization", key)],
        Client::Messages => vec![("x-api-key", key), ("anthropic-version", "2023-06-01")],
    }
}

#[tokio::test]
async fn o38_every_refusal_has_the_envelope_of_the_clients_api() {
    let limits = vec![Limit {
        scope: Scope { subject: Subject::Key(key_id()), model: None },
        measure: Measure::PerMinute { unit: Unit::Requests },
        max: 0,
    }];
    let options = GatewayOptions { max_body: ByteSize::kib(16), ..GatewayOptions::default() };
    let house = House::build(Setup { limits, options, ..Setup::default() }).await;
    for client in Client::BOTH {
        let good = match client {
            Client::Chat => headers(client, "Bearer weir_live_test-key"),
            Client::Messages => headers(client, KEY),
        };
        let body = client.body(false).to_string();
        let unknown_model = body.replace(MODEL, "nobody");
        let large = body.replace("hi", &"h".repeat(20_000));
        let nameless = headers(client, "Bearer x").into_iter().filter(|(name, _)| *name == "anthropic-version");
        let cases = [
            (nameless.collect(), &body, 401, "authentication_error", "missing_api_key"),
            (headers(client, "Bearer unknown"), &body, 401, "authentication_error", "invalid_api_key"),
            (good.clone(), &"{".to_owned(), 400, "invalid_request_error", "invalid_json"),
            (good.clone(), &unknown_model, 404, "not_found_error", "model_not_found"),
            (good.clone(), &large, 413, "request_too_large", "request_too_large"),
            (good.clone(), &body, 400, "invalid_request_error", "request_exceeds_limit"),
        ];
        for (headers, body, status, kind, code) in cases {
            let read = sent(&house, client, &headers, body).await;
            let (found_kind, found_code) = error_of(client, &read);
            assert_eq!((read.status.as_u16(), found_code.as_str()), (status, code), "{client:?}");
            if client == Client::Messages {
                assert_eq!(found_kind, kind, "{code}");
            }
        }
        let wrong_method = http::Request::get(format!("http://{}{}", house.gateway, client.path()));
        let read = house.send(wrong_method.body(http_body_util::Full::default()).unwrap()).await;
        assert_eq!((read.status.as_u16(), error_of(client, &read).1.as_str()), (405, "method_not_allowed"));
    }
    // A path that nobody serves: by the header that only one API has.
    let read = house.send(house.request_at("/v1/nothing", &[("anthropic-version", "2023-06-01")], "")).await;
    assert_eq!((read.status.as_u16(), error_of(Client::Messages, &read).0.as_str()), (404, "not_found_error"));
    let read = house.send(house.request_at("/v1/nothing", &[], "")).await;
    assert_eq!((read.status.as_u16(), error_of(Client::Chat, &read).1.as_str()), (404, "not_found"));
}

#[tokio::test]
async fn o38_o40_an_own_rate_limit_is_a_429_that_says_when_in_the_clients_headers() {
    let limits = vec![Limit {
        scope: Scope { subject: Subject::Key(key_id()), model: None },
        measure: Measure::PerMinute { unit: Unit::Requests },
        max: 1,
    }];
    for client in Client::BOTH {
        let provider = Canned::start(Reply::json(Story::default().answer(ProviderDialect::Openai))).await;
        let setup =
            Setup { tiers: Vec::new(), providers: vec![provider.url()], limits: limits.clone(), ..Setup::default() };
        let house = House::build(setup).await;
        let first = house.send(client.request(&house, false)).await;
        let refused = house.send(client.request(&house, false)).await;
        assert_eq!((first.status.as_u16(), refused.status.as_u16()), (200, 429));
        assert_eq!(error_of(client, &refused), ("rate_limit_error".into(), "requests_per_minute_exceeded".into()));
        let wait: u64 = refused.header("retry-after").parse().unwrap();
        assert!((1..=61).contains(&wait), "{wait}");
        let (limit, remaining, reset) = match client {
            Client::Chat => {
                ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")
            }
            Client::Messages => (
                "anthropic-ratelimit-requests-limit",
                "anthropic-ratelimit-requests-remaining",
                "anthropic-ratelimit-requests-reset",
            ),
        };
        for read in [&first, &refused] {
            assert_eq!((read.header(limit), read.header(remaining)), ("1", "0"), "{client:?}");
            assert!(!read.header(reset).is_empty());
        }
        assert_eq!(provider.asked().len(), 1);
    }
}

#[tokio::test]
async fn o39_an_overloaded_provider_is_left_and_if_it_is_the_only_one_the_client_hears_it_in_its_words() {
    let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let in_band = format!("event: error\ndata: {overloaded}\n\n");
    for client in Client::BOTH {
        let expected = match client {
            Client::Chat => 503,
            Client::Messages => 529,
        };
        for (reply, stream) in [
            (Reply::error(529, overloaded), false),
            (Reply::error(529, overloaded), true),
            (Reply::stream(in_band.clone()), true),
        ] {
            let story = Story::said(&["from", " b"]);
            let busy = Canned::start(reply).await;
            let ready = if stream {
                Reply::stream(story.stream(ProviderDialect::Openai))
            } else {
                Reply::json(story.answer(ProviderDialect::Openai))
            };
            let ready = Canned::start(ready).await;
            for providers in [vec![busy.url(), ready.url()], vec![busy.url()]] {
                let is_alone = providers.len() == 1;
                let speak = vec![ProviderDialect::Anthropic];
                let house = House::build(Setup { tiers: Vec::new(), providers, speak, ..Setup::default() }).await;
                let read = house.send(client.request(&house, stream)).await;
                if is_alone {
                    assert_eq!(read.status.as_u16(), expected, "{}", read.text());
                    assert_eq!(error_of(client, &read).0, "overloaded_error");
                    assert_eq!(house.reservation_of(&read).await.charged().tokens, 0);
                } else {
                    read.told(client, stream).assert_whole(&story);
                }
                house.assert_at_rest().await;
            }
        }
    }
}

#[tokio::test]
async fn o41_only_a_flag_of_the_same_api_passes_and_nothing_else_of_the_client() {
    for pair in PAIRS {
        let provider = Canned::start(Reply::json(Story::default().answer(pair.provider))).await;
        let speak = vec![pair.provider];
        let setup = Setup { tiers: Vec::new(), providers: vec![provider.url()], speak, ..Setup::default() };
        let house = House::build(setup).await;
        let (mut sent, flag) = match pair.client {
            Client::Chat => {
                (vec![("authorization", "Bearer weir_live_test-key"), ("openai-beta", "b=1")], "openai-beta")
            }
            Client::Messages => (
                vec![("x-api-key", KEY), ("anthropic-version", "2026-10-21"), ("anthropic-beta", "b=1")],
                "anthropic-beta",
            ),
        };
        sent.extend([
            ("api-key", KEY),
            ("cookie", "s=1"),
            ("openai-organization", "org"),
            ("x-forwarded-for", "10.0.0.9"),
        ]);
        let path = format!("{}?beta=true&key={KEY}", pair.client.path());
        let read = house.send(house.request_at(&path, &sent, pair.client.body(false).to_string())).await;
        assert_eq!(read.status, 200, "{}", read.text());
        let asked = &provider.asked()[0];
        assert!(!format!("{asked:?}").contains(KEY), "{asked:?}");
        for name in ["api-key", "cookie", "openai-organization", "x-forwarded-for", "x-api-key", "authorization"] {
            assert_eq!(asked.header(name), "", "{name} to {pair:?}");
        }
        let is_same = matches!(
            (pair.client, pair.provider),
            (Client::Chat, ProviderDialect::Openai) | (Client::Messages, ProviderDialect::Anthropic)
        );
        assert_eq!(asked.header(flag), if is_same { "b=1" } else { "" }, "{pair:?}");
        let (version, target) = match pair {
            crate::support::pairs::Pair { client: Client::Messages, provider: ProviderDialect::Anthropic } => {
                ("2026-10-21", "/v1/messages?beta=true")
            }
            crate::support::pairs::Pair { client: Client::Chat, provider: ProviderDialect::Anthropic } => {
                ("2023-06-01", "/v1/messages")
            }
            crate::support::pairs::Pair { provider: ProviderDialect::Openai, .. } => ("", "/v1/chat/completions"),
        };
        assert_eq!((asked.header("anthropic-version"), asked.target.as_str()), (version, target), "{pair:?}");
    }
}

#[tokio::test]
async fn messages_need_a_version_that_is_known_and_models_are_listed_in_the_callers_form() {
    let house = House::of(Script::default()).await;
    let body = Client::Messages.body(false).to_string();
    for version in [None, Some("2022-01-01")] {
        let sent: Vec<_> = [("x-api-key", KEY)].into_iter().chain(version.map(|v| ("anthropic-version", v))).collect();
        let read = house.send(house.request_at("/v1/messages", &sent, body.clone())).await;
        assert_eq!((read.status.as_u16(), error_of(Client::Messages, &read).1.as_str()), (400, "unknown_version"));
    }
    let bearer = format!("Bearer {KEY}");
    let get = |headers: &[(&str, &str)]| {
        let with = |request: http::request::Builder, (name, value): &(&str, &str)| request.header(*name, *value);
        let request = http::Request::get(format!("http://{}/v1/models", house.gateway));
        headers.iter().fold(request, with).body(http_body_util::Full::default()).unwrap()
    };
    let listed = house.send(get(&[("authorization", &bearer)])).await.json();
    assert_eq!((&listed["object"], &listed["data"][0]["id"]), (&json!("list"), &json!(MODEL)));
    let listed = house.send(get(&[("x-api-key", KEY), ("anthropic-version", "2023-06-01")])).await.json();
    assert_eq!((&listed["has_more"], &listed["data"][0]["type"]), (&json!(false), &json!("model")));
    assert_eq!((&listed["first_id"], &listed["last_id"]), (&json!(MODEL), &json!(MODEL)));
}

#[tokio::test]
async fn what_one_deployment_cannot_carry_goes_to_another_and_else_is_refused_by_its_name() {
    let story = Story::said(&["ok"]);
    let anthropic = Canned::start(Reply::json(story.answer(ProviderDialect::Anthropic))).await;
    let openai = Canned::start(Reply::json(story.answer(ProviderDialect::Openai))).await;
    let mut body = Client::Chat.body(false);
    body["n"] = json!(2);
    body["logit_bias"] = json!({"1": 2});
    let speak = vec![ProviderDialect::Anthropic, ProviderDialect::Openai];
    let providers = vec![anthropic.url(), openai.url()];
    let both = House::build(Setup { tiers: Vec::new(), providers, speak: speak.clone(), ..Setup::default() }).await;
    let read = both.send(Client::Chat.request_of(&both, body.to_string())).await;
    assert_eq!((read.status.as_u16(), read.header("x-weir-deployment")), (200, "deployment-1"), "{}", read.text());
    let providers = vec![anthropic.url()];
    let alone = House::build(Setup { tiers: Vec::new(), providers, speak, ..Setup::default() }).await;
    let read = alone.send(Client::Chat.request_of(&alone, body.to_string())).await;
    assert_eq!((read.status.as_u16(), error_of(Client::Chat, &read).1.as_str()), (400, "not_supported_by_provider"));
    assert!(["n", "logit_bias"].contains(&read.json()["error"]["param"].as_str().unwrap()), "{}", read.text());
    assert!(anthropic.asked().is_empty() && alone.events().await.is_empty(), "o34: before any reservation");
    // What only advises about caching is left out, and the client is told so.
    let mut advised = Client::Chat.body(false);
    advised["prompt_cache_key"] = json!("k");
    let read = alone.send(Client::Chat.request_of(&alone, advised.to_string())).await;
    assert_eq!((read.status.as_u16(), read.header("x-weir-left-out")), (200, "prompt_cache_key"), "{}", read.text());
}
