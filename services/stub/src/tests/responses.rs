//! OpenAI's responses: typed events, and answers that are kept.

use serde_json::{Value, json};

use super::client::Answer;
use super::{Client, ended, script, stub, until};
use crate::Stub;
use crate::journal::State;

const ITEMS: &str = "thinking = 'so'\ntext = 'an answer'\nchunks = 2\n\
     tool_calls = [{ name = 'f', arguments = '{\"k\":1}', id = 'c0' }]\n\
     usage = { prompt = 100, completion = 30, cached = 40, cache_write = 20, cache_write_long = 5, reasoning = 4 }";

async fn ask(stub: &Stub, body: Value) -> Answer {
    Client::connect(stub).await.call("POST", "/v1/responses", "", &body.to_string()).await
}

#[tokio::test]
async fn a_stream_numbers_its_events_and_ends_with_the_whole_response() {
    let stub = stub(ITEMS);
    let events = ask(&stub, json!({"model": "m", "input": "hi", "stream": true})).await.named_events();
    let kinds: Vec<_> = events.iter().map(|event| &event["type"].as_str().unwrap()["response.".len()..]).collect();
    let expected = [
        &["created", "in_progress"][..],
        &["output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"],
        &["reasoning_summary_text.delta", "reasoning_summary_text.done", "reasoning_summary_part.done"],
        &["output_item.done", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta"],
        &["output_text.done", "content_part.done", "output_item.done", "output_item.added"],
        &["function_call_arguments.delta", "function_call_arguments.delta", "function_call_arguments.done"],
        &["output_item.done", "completed"],
    ];
    assert_eq!(kinds, expected.concat());
    assert!(events.iter().enumerate().all(|(number, event)| event["sequence_number"] == json!(number)));
    let response = &events.last().unwrap()["response"];
    let items: Vec<_> =
        response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(items, ["reasoning", "message", "function_call"]);
    assert_eq!(response["output"][2]["arguments"], json!("{\"k\":1}"));
    let details = json!({"cached_tokens": 40, "cache_write_tokens": 20, "cache_write_tokens_details": {"ttl_30m_tokens": 15, "ttl_12h_tokens": 5}});
    assert_eq!(response["usage"]["input_tokens_details"], details);
    assert_eq!(ended(&stub).await.billed.unwrap().completion, 30);
    let plain = ask(&stub, json!({"model": "m", "input": [{"role": "user", "content": "hi"}]})).await.json();
    assert_eq!(
        (&plain["output"][1]["content"], &plain["usage"]),
        (&response["output"][1]["content"], &response["usage"])
    );
}

#[tokio::test]
async fn a_response_can_be_built_on_once_it_is_complete_and_costs_its_tokens_again() {
    let stub = stub("usage = { completion = 10 }");
    let first = ask(&stub, json!({"model": "m", "input": "hi"})).await.json();
    let tokens = first["usage"]["total_tokens"].as_i64().unwrap();
    let id = first["id"].as_str().unwrap();
    let next = json!({"model": "m", "input": "and?", "previous_response_id": id});
    let bytes = i64::try_from(next.to_string().len().div_ceil(4)).unwrap();
    let second = ask(&stub, next.clone()).await.json();
    assert_eq!(
        (&second["usage"]["input_tokens"], &second["previous_response_id"]),
        (&json!(tokens + bytes), &json!(id))
    );

    let path = format!("/v1/responses/{id}");
    let mut client = Client::connect(&stub).await;
    assert_eq!(client.call("GET", &path, "", "").await.json(), first);
    assert_eq!(client.call("DELETE", &path, "", "").await.json()["deleted"], json!(true));
    assert_eq!(client.call("GET", &path, "", "").await.status, 404);
    assert_eq!(client.call("DELETE", &path, "", "").await.status, 404);
    let missing = ask(&stub, next).await;
    assert_eq!((missing.status, &missing.json()["error"]["param"]), (400, &json!("previous_response_id")));
    let unkept = ask(&stub, json!({"model": "m", "input": "hi", "store": false})).await.json();
    let path = format!("/v1/responses/{}", unkept["id"].as_str().unwrap());
    assert_eq!(client.call("GET", &path, "", "").await.status, 404);
}

#[tokio::test]
async fn a_response_whose_client_left_is_cancelled_without_usage() {
    let stub = stub("id = 'resp_1'\nchunks = 2\ngap_ms = 600000");
    let mut client = Client::connect(&stub).await;
    client.send("POST", "/v1/responses", "", r#"{"model":"m","input":"hi","stream":true}"#).await;
    client.read_until("output_text.delta").await;
    let mut other = Client::connect(&stub).await;
    let told = other.call("GET", "/v1/responses/resp_1", "", "").await.json();
    assert_eq!((&told["status"], &told["usage"]), (&json!("in_progress"), &Value::Null));
    drop(client);
    until(|| (stub.journal()[0].state == State::Cancelled).then_some(())).await;
    let told = other.call("GET", "/v1/responses/resp_1", "", "").await.json();
    assert_eq!((&told["status"], &told["usage"]), (&json!("cancelled"), &Value::Null));
}

#[tokio::test]
async fn incomplete_failed_and_broken() {
    let stub = stub("chunks = 9");
    let capped = ask(&stub, json!({"model": "m", "input": "hi", "max_output_tokens": 2, "stream": true})).await;
    let last = capped.named_events().pop().unwrap();
    assert_eq!(last["type"], json!("response.incomplete"));
    assert_eq!(last["response"]["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let scripts = ["finish_reason = 'failed'", "fault = { kind = 'error', after_chunks = 1 }"];
    stub.queue("m", scripts.iter().map(|toml| script(toml)).collect()).unwrap();
    let failed = ask(&stub, json!({"model": "m", "input": "hi", "stream": true})).await.named_events().pop().unwrap();
    assert_eq!(
        (&failed["type"], &failed["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("server_error"))
    );
    let broken = ask(&stub, json!({"model": "m", "input": "hi", "stream": true})).await.named_events().pop().unwrap();
    assert_eq!((&broken["type"], &broken["sequence_number"]), (&json!("error"), &json!(5)));
    let refused = ask(&stub, json!({"model": "m"})).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("input")));
}

#[tokio::test]
async fn a_script_is_found_in_input_instructions_and_metadata() {
    let stub = stub("");
    let marker = r#"[[stub {"text":"found"}]]"#;
    let bodies = [
        json!({"model": "m", "input": marker}),
        json!({"model": "m", "input": "x", "instructions": marker}),
        json!({"model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": marker}]}]}),
        json!({"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": marker}]}),
        json!({"model": "m", "input": "x", "metadata": {"stub": "{\"text\":\"found\"}"}}),
    ];
    for body in bodies {
        let answer = ask(&stub, body.clone()).await.json();
        assert_eq!(answer["output"][0]["content"][0]["text"], json!("found"), "{body}");
    }
}
