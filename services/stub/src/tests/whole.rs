//! Plain answers, models, and what a real provider refuses.

use std::io::Read;

use serde_json::json;

use super::{Client, PLAIN, ask, ended, script, stub};
use crate::journal::{Billed, State};
use crate::{Stub, StubOptions};

#[tokio::test]
async fn a_plain_answer_has_the_shape_of_the_real_one() {
    let stub = stub(
        "text = 'hello \"you\"'\nservice_tier = 'priority'\nusage = { prompt = 12, completion = 7, cached = 4, reasoning = 2 }",
    );
    let answer = ask(&stub, PLAIN).await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains("content-type: application/json") && answer.head.contains("x-request-id: chatcmpl-stub-1")
    );
    let mut body = answer.json();
    assert!(body["created"].take().as_i64().unwrap() > 1_577_836_800);
    let expected = json!({
        "id": "chatcmpl-stub-1", "object": "chat.completion", "created": null, "model": "m", "service_tier": "priority",
        "system_fingerprint": "fp_stub",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "hello \"you\"", "refusal": null},
            "logprobs": null, "finish_reason": "stop",
        }],
        "usage": {
            "prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19,
            "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 2, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        },
    });
    assert_eq!(body, expected);
    let entry = ended(&stub).await;
    assert_eq!((entry.state, entry.model.as_str(), entry.body.as_str()), (State::Complete, "m", PLAIN));
    let billed = Billed { prompt: 12, completion: 7, cached: 4, reasoning: 2, ..Billed::default() };
    assert_eq!(entry.billed, Some(billed));
}

#[tokio::test]
async fn one_connection_serves_many_answers_with_their_own_ids() {
    let stub = stub("");
    let mut client = Client::connect(&stub).await;
    for id in 1..=3 {
        assert_eq!(client.ask(PLAIN).await.json()["id"], json!(format!("chatcmpl-stub-{id}")));
    }
    assert!(stub.journal().iter().all(|entry| entry.state == State::Complete));
}

#[tokio::test]
async fn unscripted_figures_follow_from_the_request() {
    let stub = stub("chunks = 5");
    let body = ask(&stub, PLAIN).await.json();
    assert_eq!(body["usage"]["prompt_tokens"], json!(PLAIN.len().div_ceil(4)));
    assert_eq!(body["usage"]["completion_tokens"], json!(5));
    let capped = PLAIN.replace("\"model\"", "\"max_completion_tokens\":2,\"n\":3,\"model\"");
    let body = ask(&stub, &capped).await.json();
    assert_eq!(body["usage"]["completion_tokens"], json!(6));
    assert_eq!(body["choices"].as_array().unwrap().len(), 3);
    assert_eq!(body["choices"][2]["message"]["content"], json!("word0 word1 "));
    assert_eq!(body["choices"][2]["finish_reason"], json!("length"));
}

#[tokio::test]
async fn tool_calls_and_usage_that_is_absent_or_odd() {
    let stub = stub("tool_calls = [{ name = 'quote', arguments = '{\"s\":\"é\"}' }]\nusage = { report = 'never' }");
    let body = ask(&stub, PLAIN).await.json();
    assert_eq!(body["choices"][0]["finish_reason"], json!("tool_calls"));
    assert_eq!(body["choices"][0]["message"]["content"], json!(null));
    assert_eq!(
        body["choices"][0]["message"]["tool_calls"],
        json!([{"id": "call_stub_0", "type": "function", "function": {"name": "quote", "arguments": "{\"s\":\"é\"}"}}])
    );
    assert_eq!(body.get("usage"), None);
    stub.queue("m", vec![script("usage = { verbatim = { prompt_tokens = -1 } }")]).unwrap();
    assert_eq!(ask(&stub, PLAIN).await.json()["usage"], json!({"prompt_tokens": -1}));
}

#[tokio::test]
async fn what_the_real_one_refuses_is_refused_and_not_billed() {
    let stub = stub("");
    let cases = [
        ("{", None),
        (r#"{"messages":[]}"#, Some("model")),
        (r#"{"model":"m","stream_options":{"include_usage":true}}"#, Some("stream_options")),
    ];
    for (body, field) in cases {
        let answer = ask(&stub, body).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, field), "{body}");
        assert_eq!(answer.json()["error"]["type"], json!("invalid_request_error"));
    }
    let totals = stub.totals();
    assert_eq!((totals.requests, totals.executed, totals.open), (3, 0, 0));
}

#[tokio::test]
async fn a_status_comes_with_its_body_and_headers() {
    let stub = stub("status = 429\nheaders = { retry-after = '7', content-type = 'text/plain' }\nbody = 'slow down'");
    let answer = ask(&stub, PLAIN).await;
    assert_eq!((answer.status, answer.text().as_str()), (429, "slow down"));
    assert!(answer.head.contains("retry-after: 7") && answer.head.contains("content-type: text/plain"));
    assert_eq!(ended(&stub).await.billed, None, "a refused request is not charged");

    stub.queue("m", vec![script("status = 503"), script("status = 400\nbilling = 'full'\nusage = { prompt = 3 }")])
        .unwrap();
    assert_eq!(ask(&stub, PLAIN).await.json()["error"]["type"], json!("server_error"));
    assert_eq!(ask(&stub, PLAIN).await.status, 400);
    assert_eq!(stub.totals().billed.prompt, 3, "a content filter that bills");
}

#[tokio::test]
async fn models_are_the_names_of_the_scripts() {
    let scripts = crate::script::Scripts::from_toml("[scripts.slow]\ngap_ms = 50\n[scripts.fast]\n").unwrap();
    let stub = Stub::start(StubOptions { scripts, ..StubOptions::default() }).unwrap();
    let body = Client::connect(&stub).await.call("GET", "/v1/models", "", "").await.json();
    let names: Vec<_> = body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["fast", "slow"]);
    let nothing = Client::connect(&stub).await.call("GET", "/nowhere", "", "").await;
    assert_eq!(nothing.status, 404);
}

#[tokio::test]
async fn gzip_is_real() {
    let stub = stub("gzip = true\ntext = 'hello'");
    let answer = ask(&stub, PLAIN).await;
    assert!(answer.head.contains("content-encoding: gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&answer.bytes()[..]).read_to_string(&mut text).unwrap();
    assert!(text.contains(r#""content":"hello""#));
    assert_eq!(ended(&stub).await.state, State::Complete);
}

#[tokio::test]
async fn a_script_that_cannot_be_played_stops_the_start_by_name() {
    let scripts = crate::script::Scripts::from_toml("[scripts.odd]\nstatus = 99").unwrap();
    let error = Stub::start(StubOptions { scripts, ..StubOptions::default() }).unwrap_err();
    assert_eq!(error.to_string(), "script `odd`");
    assert!(crate::script::Scripts::from_toml("[scripts.x]\nchunkz = 1").unwrap_err().to_string().contains("chunkz"));
}
