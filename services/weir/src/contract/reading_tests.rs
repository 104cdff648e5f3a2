//! What is read of streams, and every violation that is seen.

use super::*;
use crate::contract::evidence::{End, Piece};

fn read(api: ClientApi, kind: &str, body: &str) -> Reading {
    let transcript = Transcript {
        status: Some(200),
        headers: vec![("Content-Type".to_owned(), kind.to_owned())],
        pieces: body.as_bytes().chunks(5).map(|piece| Piece { at_ms: 0, bytes: piece.to_vec() }).collect(),
        end: End::Whole,
        ended_ms: 0,
    };
    Reading::of(api, &transcript)
}

fn stream(api: ClientApi, body: &str) -> Reading {
    read(api, "text/event-stream; charset=utf-8", body)
}

/// The one violation of a stream.
fn violation(api: ClientApi, body: &str) -> String {
    let reading = stream(api, body);
    assert_eq!(reading.violations.len(), 1, "{:?} in {body}", reading.violations);
    reading.violations[0].clone()
}

#[test]
fn a_chat_stream() {
    let body = "data: {\"id\":\"a\",\"model\":\"m\",\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        : ping\n\n\
        data: {\"id\":\"a\",\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":\"sü\"}}]}\r\n\r\n\
        data: {\"id\":\"a\",\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":\"{\"}}]}}]}\r\r\
        data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"}\"}}]},\"finish_reason\":\"tool_calls\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n\
        data: [DONE]\n\n";
    let reading = stream(ClientApi::Chat, body);
    assert_eq!(reading.violations, Vec::<String>::new());
    assert_eq!((reading.text.as_str(), reading.pieces, reading.comments, reading.terminals), ("sü", 3, 1, 1));
    assert_eq!(reading.tools, [ToolCall { id: "c".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() }]);
    assert_eq!((reading.finishes, reading.usages), (vec!["tool_calls".to_owned()], vec![(3, 2)]));
    assert_eq!((reading.ids.len(), reading.models.len(), reading.after_end), (1, 1, 0));
    let error = stream(ClientApi::Chat, "data: {\"error\":{\"message\":\"gone\"}}\n\ndata: [DONE]\n\n");
    assert_eq!((error.errors.len(), error.after_end), (1, 1));
}

#[test]
fn what_breaks_the_rules_of_chat_streams() {
    let cases = [
        ("event: x\ndata: {}\n\n", "an event of chat completions has a name"),
        ("data: {nothing\n\n", "an event is no JSON object: {nothing"),
        ("data: {\"error\":{\"code\":1}}\n\n", "an error without a message"),
        ("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]}}]}\n\n", "a fragment of a tool call without an index"),
        ("data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":1}]}}]}\n\n", "tool call 1 comes before"),
        ("id: 1\ndata: {}\n\n: ping\n\n", "a blank line without data after an `id:`"),
        ("data: {}\n: ping\n\n", "a comment between the lines of an event"),
    ];
    for (body, expected) in cases {
        assert!(violation(ClientApi::Chat, body).starts_with(expected), "{body}");
    }
    let not_text = Transcript {
        status: Some(200),
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        pieces: vec![Piece { at_ms: 0, bytes: b"data: {\"a\":\"\xff\"}\n\n".to_vec() }],
        end: End::Whole,
        ended_ms: 0,
    };
    assert!(Reading::of(ClientApi::Chat, &not_text).violations.contains(&"the stream is not UTF-8".to_owned()));
}

fn event(data: &str) -> String {
    let kind = serde_json::from_str::<Value>(data).unwrap()["type"].as_str().unwrap().to_owned();
    format!("event: {kind}\ndata: {data}\n\n")
}

fn events(all: &[&str]) -> String {
    all.iter().map(|data| event(data)).collect()
}

const START: &str = r#"{"type":"message_start","message":{"id":"m1","model":"m","usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}}"#;
const TEXT: &str = r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#;
const DELTA: &str = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#;
const STOP: &str = r#"{"type":"content_block_stop","index":0}"#;
const END: &str = r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}"#;

#[test]
fn a_messages_stream() {
    let tool = r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#;
    let json = r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{}"}}"#;
    let close = r#"{"type":"content_block_stop","index":1}"#;
    let all = [START, r#"{"type":"ping"}"#, TEXT, DELTA, STOP, tool, json, close, END, r#"{"type":"message_stop"}"#];
    let reading = stream(ClientApi::Messages, &events(&all));
    assert_eq!(reading.violations, Vec::<String>::new());
    assert_eq!((reading.text.as_str(), reading.pieces, reading.terminals), ("hi", 3, 1));
    assert_eq!(reading.tools[0].arguments, "{}");
    assert_eq!((reading.usages.last(), reading.finishes), (Some(&(7, 9)), vec!["tool_use".to_owned()]));
    let error = events(&[START, r#"{"type":"error","error":{"type":"overloaded_error","message":"x"}}"#]);
    assert_eq!(stream(ClientApi::Messages, &error).errors.len(), 1);
}

#[test]
fn what_breaks_the_rules_of_messages() {
    let cases = [
        (format!("data: {START}\n\n"), "the event `` says that it is `message_start`"),
        (events(&[TEXT]), "`content_block_start` comes before `message_start`"),
        (events(&[START, DELTA]), "block 0 is filled but not open"),
        (events(&[START, STOP]), "block 0 is closed but not open"),
        (events(&[START, TEXT, TEXT]), "block 0 is opened out of order"),
        (events(&[START, TEXT, r#"{"type":"message_stop"}"#]), "the message ends inside a block"),
        (events(&[START, r#"{"type":"error","error":{"type":"odd","message":"x"}}"#]), "the error type `odd`"),
        (
            events(&[START, TEXT, r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta"}}"#]),
            "arguments outside a tool call",
        ),
        (
            events(&[
                START,
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","input":{"a":1}}}"#,
            ]),
            "a tool call opens with an input",
        ),
    ];
    for (body, expected) in cases {
        assert!(violation(ClientApi::Messages, &body).starts_with(expected), "{body}");
    }
}

#[test]
fn a_responses_stream() {
    let created = r#"{"type":"response.created","sequence_number":0,"response":{"id":"r","model":"m"}}"#;
    let text = r#"{"type":"response.output_text.delta","sequence_number":1,"output_index":0,"delta":"hi"}"#;
    let call = r#"{"type":"response.output_item.added","sequence_number":2,"output_index":1,"item":{"type":"function_call","call_id":"c","name":"f","arguments":""}}"#;
    let arguments =
        r#"{"type":"response.function_call_arguments.delta","sequence_number":3,"output_index":1,"delta":"{}"}"#;
    let end = r#"{"type":"response.completed","sequence_number":4,"response":{"id":"r","model":"m","status":"completed","usage":{"input_tokens":3,"output_tokens":2}}}"#;
    let reading = stream(ClientApi::Responses, &events(&[created, text, call, arguments, end]));
    assert_eq!(reading.violations, Vec::<String>::new());
    assert_eq!((reading.text.as_str(), reading.pieces, reading.terminals), ("hi", 3, 1));
    assert_eq!((reading.tools[0].arguments.as_str(), reading.usages), ("{}", vec![(3, 2)]));
    let failed = r#"{"type":"response.failed","sequence_number":5,"response":{"error":{"code":"server_error"}}}"#;
    assert_eq!(stream(ClientApi::Responses, &event(failed)).errors.len(), 1);
    let unsorted = violation(ClientApi::Responses, &events(&[text, text]));
    assert!(unsorted.starts_with("`response.output_text.delta` is out of sequence"), "{unsorted}");
    let lost = violation(ClientApi::Responses, &event(arguments));
    assert_eq!(lost, "arguments outside a tool call");
}

#[test]
fn whole_answers_and_errors() {
    let json = |api, body: &str| read(api, "application/json", body);
    let chat = json(
        ClientApi::Chat,
        r#"{"id":"a","model":"m","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
    );
    assert_eq!((chat.text.as_str(), chat.finishes.len(), chat.usages.len(), chat.is_stream), ("hi", 1, 1, false));
    let messages = json(
        ClientApi::Messages,
        r#"{"id":"a","content":[{"type":"text","text":"hi"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}}],"stop_reason":"tool_use"}"#,
    );
    assert_eq!((messages.text.as_str(), messages.tools[0].arguments.as_str()), ("hi", r#"{"a":1}"#));
    let response =
        json(ClientApi::Responses, r#"{"status":"completed","output":[{"type":"message","content":[{"text":"hi"}]}]}"#);
    assert_eq!((response.text.as_str(), response.finishes), ("hi", vec!["completed".to_owned()]));
    for api in [ClientApi::Chat, ClientApi::Messages, ClientApi::Responses] {
        assert_eq!(json(api, r#"{"error":{"message":"no"}}"#).errors.len(), 1);
    }
}
