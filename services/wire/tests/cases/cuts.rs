//! Every cut of a recorded stream, for every pair: the client has a prefix of what the whole stream gives it, then
//! exactly one error event, and no terminal (O07).

use weir_wire::Dialect::{self, AnthropicMessages, OpenAiChat, OpenAiResponses};

use crate::across::*;
use crate::support::{DONE, chunk, ok, role, stop, usage};

/// Sixty chunks: words, one tool call in pieces, multi-byte characters.
fn chat() -> String {
    let words: String = (0..40).map(|n| ok(&format!("wört{n} "))).collect();
    let call = chunk(
        r#"{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_a","type":"function","function":{"name":"f","arguments":""}}]},"finish_reason":null}"#,
    );
    let pieces: String = (0..15)
        .map(|n| {
            chunk(&format!(
                r#"{{"index":0,"delta":{{"tool_calls":[{{"index":0,"function":{{"arguments":"{n},"}}}}]}},"finish_reason":null}}"#
            ))
        })
        .collect();
    [role(), words, call, pieces].concat()
}

fn messages() -> String {
    let words: Vec<String> = (0..40).map(|n| format!("wört{n} ")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let start = event(
        r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_a","name":"f","input":{}}}"#,
    );
    let pieces: String = (0..13)
        .map(|n| {
            event(&format!(
                r#"{{"type":"content_block_delta","index":1,"delta":{{"type":"input_json_delta","partial_json":"{n},"}}}}"#
            ))
        })
        .collect();
    [message_start(), text_block(0, &words), start, pieces, block_stop(1), message_delta("tool_use", 60)].concat()
}

fn responses() -> String {
    let created = event(
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","model":"m","output":[]}}"#,
    );
    let deltas: String = (1..57)
        .map(|n| {
            event(&format!(
                r#"{{"type":"response.output_text.delta","sequence_number":{n},"item_id":"i","output_index":0,"content_index":0,"delta":"wört{n} "}}"#
            ))
        })
        .collect();
    created + &deltas
}

/// Cuts `stream` everywhere before `end`, which is what makes the answer whole.
fn cut_everywhere(provider: Dialect, client: Dialect, stream: &str, end: &str) {
    let whole = pass_text(provider, client, &[stream, end].concat());
    assert!(whole.has_terminal() && !whole.is_broken(), "{}", whole.client);
    let unended = whole.client.len() - last_event_bytes(&whole.client);
    let bytes = stream.as_bytes();
    for cut in 0..=bytes.len() {
        let passed = pass(provider, client, &[&bytes[..cut]], true);
        // The last event is the error; what stands before it is the whole stream's, before its terminal.
        let given = passed.client.len() - last_event_bytes(&passed.client);
        let last = passed.client[given..].split_once("data: ").unwrap().1;
        let last: serde_json::Value = serde_json::from_str(last).unwrap();
        assert_eq!(last["error"]["incomplete"], true, "{provider} to {client}, cut at {cut}: the client is told");
        assert!(given <= unended, "{provider} to {client}, cut at {cut}: no terminal");
        assert!(passed.client[..given] == whole.client[..given], "{provider} to {client}, cut at {cut}: a prefix");
    }
}

/// The last event of a stream that ends with whole events.
fn last_event_bytes(stream: &str) -> usize {
    let body = stream.strip_suffix("\n\n").unwrap();
    stream.len() - body.rfind("\n\n").map_or(0, |at| at + 2)
}

#[test]
fn o07_every_cut_of_a_chat_stream_is_incomplete() {
    let end = [stop(), usage(30, 60), DONE.to_owned()].concat();
    for client in [OpenAiChat, AnthropicMessages] {
        cut_everywhere(OpenAiChat, client, &chat(), &end);
    }
}

#[test]
fn o07_every_cut_of_a_message_stream_is_incomplete() {
    for client in [AnthropicMessages, OpenAiChat] {
        cut_everywhere(AnthropicMessages, client, &messages(), &message_stop());
    }
}

#[test]
fn o07_every_cut_of_a_responses_stream_is_incomplete() {
    let end = event(
        r#"{"type":"response.completed","sequence_number":57,"response":{"id":"resp_1","object":"response","status":"completed","model":"m","output":[],"usage":{"input_tokens":5,"output_tokens":60,"total_tokens":65}}}"#,
    );
    cut_everywhere(OpenAiResponses, OpenAiResponses, &responses(), &end);
}
