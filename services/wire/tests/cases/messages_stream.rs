//! Streams of an Anthropic provider, for a client of its own dialect and for one of chat completions.

use serde_json::json;
use weir_wire::Dialect::{self, AnthropicMessages, OpenAiChat};
use weir_wire::openai::chat::StreamState;

use crate::across::*;

const CLIENTS: [Dialect; 2] = [AnthropicMessages, OpenAiChat];

fn whole() -> String {
    [message_start(), text_block(0, &["Hel", "lo"]), message_delta("end_turn", 15), message_stop()].concat()
}

#[test]
fn same_dialect_changes_the_model_and_no_other_byte() {
    let passed = pass_text(AnthropicMessages, AnthropicMessages, &whole());
    assert_eq!(passed.client, whole().replace(r#""model":"claude-x""#, r#""model":"Team-Fast""#));
    assert_eq!((passed.facts.chunks_delivered, tokens(&passed.facts)), (2, Some((25, 15))));
    assert_eq!(passed.facts.served_model.as_deref(), Some("claude-x"));
    assert!(passed.facts.usage_is_final && passed.facts.is_settled);
}

#[test]
fn o01_cut_characters_reach_the_client_whole() {
    let stream = [message_start(), text_block(0, &["中文"]), message_delta("end_turn", 2), message_stop()].concat();
    let at = stream.as_bytes().iter().position(|byte| *byte == 0xE4).unwrap();
    for client in CLIENTS {
        let uncut = pass_text(AnthropicMessages, client, &stream);
        assert!(uncut.client.contains("中文") && uncut.has_terminal());
        for cut in at + 1..at + 6 {
            let (one, other) = stream.as_bytes().split_at(cut);
            assert_eq!(pass(AnthropicMessages, client, &[one, other], true), uncut);
        }
    }
}

#[test]
fn o02_other_line_ends_make_no_other_events() {
    for client in CLIENTS {
        let plain = pass_text(AnthropicMessages, client, &whole());
        for end in ["\r\n", "\r"] {
            let stream = whole().replace('\n', end);
            let pieces: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
            assert_eq!(pass(AnthropicMessages, client, &pieces, true), plain);
        }
    }
}

#[test]
fn o03_comments_and_early_pings_are_neither_content_nor_data() {
    let ping = event(r#"{"type":"ping"}"#);
    let preamble = format!("{}{}:\n\n", ": PROCESSING\n\n".repeat(20), ping.repeat(3));
    for client in CLIENTS {
        let plain = pass_text(AnthropicMessages, client, &whole());
        let passed = pass_text(AnthropicMessages, client, &format!("{preamble}{}", whole()));
        assert_eq!((passed.client, passed.facts), (plain.client, plain.facts));
    }
    let late = [message_start(), text_block(0, &["a"]), ping, message_delta("end_turn", 1), message_stop()].concat();
    let passed = pass_text(AnthropicMessages, AnthropicMessages, &late);
    assert!(passed.names().contains(&String::from("ping")), "after content a ping is an event like others");
}

#[test]
fn o04_upstream_ids_are_not_passed_on_and_missing_names_are_given() {
    let stream = format!("id: 1\nretry: 5\n{}", whole().replace("event: content_block_delta\n", "id: 2\n"));
    let passed = pass_text(AnthropicMessages, AnthropicMessages, &stream);
    assert_eq!(passed.client, pass_text(AnthropicMessages, AnthropicMessages, &whole()).client);
}

#[test]
fn o05_a_3_mb_line_passes() {
    let picture = "A".repeat(3_145_728);
    let stream = [message_start(), text_block(0, &[&picture]), message_delta("end_turn", 900), message_stop()].concat();
    let pieces: Vec<&[u8]> = stream.as_bytes().chunks(16 * 1024).collect();
    for client in CLIENTS {
        let passed = pass(AnthropicMessages, client, &pieces, true);
        assert!(passed.client.contains(&picture) && passed.has_terminal());
        assert_eq!(tokens(&passed.facts), Some((25, 900)));
    }
}

#[test]
fn o06_o39_an_error_before_content_leaves_the_stream_uncommitted() {
    let error = event(r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"},"request_id":"req_1"}"#);
    for client in CLIENTS {
        for stream in [error.clone(), [message_start(), error.clone()].concat()] {
            let passed = pass_text(AnthropicMessages, client, &stream);
            let found = passed.error.clone().unwrap();
            assert_eq!((found.message.as_str(), found.kind.as_deref()), ("busy", Some("overloaded_error")));
            assert_eq!((passed.facts.state, passed.facts.chunks_delivered), (StreamState::Preamble, 0));
            assert!(passed.is_broken() && !passed.has_terminal());
        }
    }
    let broken = pass_text(AnthropicMessages, AnthropicMessages, "event: error\ndata: not json\n\n");
    assert!(broken.error.is_some());
    assert!(pass_text(AnthropicMessages, AnthropicMessages, "data: not json\n\n").garbage.is_some());
}

#[test]
fn o07_o15_a_close_before_the_terminal_is_incomplete_and_its_usage_a_bound() {
    let delta = event(r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":8}}"#);
    let cut = [message_start(), text_block(0, &["The answer is"]), delta].concat();
    for client in CLIENTS {
        let passed = pass_text(AnthropicMessages, client, &cut);
        assert_eq!((passed.facts.state, tokens(&passed.facts)), (StreamState::Content, Some((25, 8))));
        assert!(!passed.facts.usage_is_final);
        assert!(passed.is_broken() && !passed.has_terminal());
        assert!(!passed.client.contains("finish_reason\":\""), "no invented finish reason");
        let reasoned = pass_text(AnthropicMessages, client, &[cut.clone(), message_delta("end_turn", 15)].concat());
        assert!(reasoned.is_broken() && reasoned.facts.usage_is_final, "a bill, though the terminal is lost");
    }
}

#[test]
fn o08_the_terminal_comes_once() {
    for client in CLIENTS {
        let twice = pass_text(AnthropicMessages, client, &[whole(), message_stop()].concat());
        let ends = twice.events().iter().filter(|(name, data)| name == "message_stop" || data == "[DONE]").count();
        assert_eq!(ends, 1, "{}", twice.client);
        let unended = whole();
        let unended = unended.trim_end();
        assert!(pass_text(AnthropicMessages, client, unended).has_terminal(), "a terminal without its line end");
        let by_line = [message_start(), "event: message_stop\ndata: {}\n\n".to_owned()].concat();
        assert!(pass_text(AnthropicMessages, client, &by_line).facts.is_complete, "an event is what its line says");
    }
}

#[test]
fn o09_a_start_is_not_content_and_an_empty_answer_is_whole() {
    for client in CLIENTS {
        let start = [
            message_start(),
            event(r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#),
        ];
        assert_eq!(pass_text(AnthropicMessages, client, &start.concat()).facts.state, StreamState::Preamble);
        let empty = [message_start(), message_delta("end_turn", 1), message_stop()].concat();
        let passed = pass_text(AnthropicMessages, client, &empty);
        assert!(passed.facts.is_complete && !passed.facts.has_content && passed.has_terminal());
    }
}

#[test]
fn o10_content_before_an_error_is_content_however_the_reads_fall() {
    let error = event(r#"{"type":"error","error":{"type":"api_error","message":"boom"}}"#);
    let stream = [message_start(), text_block(0, &["Hel"]), error].concat();
    for client in CLIENTS {
        let whole = pass_text(AnthropicMessages, client, &stream);
        assert_eq!((whole.facts.chunks_delivered, whole.is_broken()), (1, true));
        for size in 1..stream.len() {
            let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
            assert_eq!(pass(AnthropicMessages, client, &pieces, true), whole);
        }
    }
}

#[test]
fn o11_delivered_chunks_are_counted_and_told() {
    let words: Vec<String> = (1..=17).map(|n| format!("w{n} ")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let stream = [message_start(), text_block(0, &words)].concat();
    for client in CLIENTS {
        let passed = pass_text(AnthropicMessages, client, &stream);
        assert_eq!(passed.facts.chunks_delivered, 17);
        let told = passed.json().last().unwrap()["error"].clone();
        assert_eq!((&told["chunks_delivered"], &told["incomplete"]), (&json!(17), &json!(true)));
    }
}

#[test]
fn o13_o15_usage_is_cumulative_and_shown_to_a_chat_client_that_asked() {
    let first = event(r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":8}}"#);
    let stream =
        [message_start(), text_block(0, &["x"]), first, message_delta("end_turn", 15), message_stop()].concat();
    let passed = pass_text(AnthropicMessages, OpenAiChat, &stream);
    let chunks = passed.json();
    let usage = &chunks.last().unwrap()["usage"];
    let counts = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| usage[name].as_i64().unwrap());
    assert_eq!(counts, [25, 15, 40]);
    assert_eq!(chunks.last().unwrap()["choices"], json!([]));
    assert!(passed.client.ends_with("data: [DONE]\n\n"));
    let hidden = pass(AnthropicMessages, OpenAiChat, &[stream.as_bytes()], false);
    assert!(hidden.json().iter().all(|chunk| chunk.get("usage").is_none() && chunk["choices"] != json!([])));
    assert_eq!(tokens(&hidden.facts), Some((25, 15)));
}

#[test]
fn o25_tool_calls_without_or_with_fragments() {
    let tool = |deltas: &[&str], input: &str| {
        let start = event(&format!(
            r#"{{"type":"content_block_start","index":0,"content_block":{{"type":"tool_use","id":"toolu_1","name":"now","input":{input}}}}}"#
        ));
        let deltas: String = deltas
            .iter()
            .map(|text| {
                let text = serde_json::to_string(text).unwrap();
                event(&format!(
                    r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"input_json_delta","partial_json":{text}}}}}"#
                ))
            })
            .collect();
        [message_start(), start, deltas, block_stop(0), message_delta("tool_use", 9), message_stop()].concat()
    };
    for (stream, arguments) in [
        (tool(&[], "{}"), "{}"),
        (tool(&["", r#"{"tz":"#, r#""UTC"}"#], "{}"), r#"{"tz":"UTC"}"#),
        (tool(&[], r#"{"tz":1.0}"#), r#"{"tz":1.0}"#),
    ] {
        let passed = pass_text(AnthropicMessages, OpenAiChat, &stream);
        let chunks = passed.json();
        let calls: Vec<_> =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].as_object()).collect();
        let text: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(text, arguments);
        assert_eq!((&calls[0]["id"], &calls[0]["function"]["name"]), (&json!("toolu_1"), &json!("now")));
        assert!(calls.iter().all(|call| call["index"] == 0));
        let finish: Vec<_> = chunks.iter().filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str()).collect();
        assert_eq!(finish, ["tool_calls"]);
    }
}

#[test]
fn o29_stop_reasons_in_the_words_of_chat() {
    for (reason, finish, raw) in [
        ("end_turn", "stop", None),
        ("max_tokens", "length", None),
        ("stop_sequence", "stop", Some("stop_sequence")),
        ("tool_use", "tool_calls", None),
        ("refusal", "content_filter", Some("refusal")),
        ("model_context_window_exceeded", "length", Some("model_context_window_exceeded")),
        ("pause_turn", "length", Some("pause_turn")),
        ("future_reason", "length", Some("future_reason")),
    ] {
        let stream = [message_start(), text_block(0, &["x"]), message_delta(reason, 3), message_stop()].concat();
        let passed = pass_text(AnthropicMessages, OpenAiChat, &stream);
        let chunks = passed.json();
        let last = chunks.iter().find(|chunk| chunk["choices"][0]["finish_reason"].is_string()).unwrap();
        let choice = &last["choices"][0];
        assert_eq!(
            (choice["finish_reason"].as_str(), choice["weir_stop_reason"].as_str()),
            (Some(finish), raw),
            "{reason}"
        );
        assert_eq!(tokens(&passed.facts), Some((25, 3)), "usage is charged in all");
        let same = pass_text(AnthropicMessages, AnthropicMessages, &stream);
        assert!(same.client.contains(&format!("\"stop_reason\":\"{reason}\"")));
    }
}

#[test]
fn o35_thinking_passes_byte_for_byte_and_as_reasoning_details() {
    let thinking = [
        message_start(),
        event(r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}"#),
        event(r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"SIG\u003d1=="}}"#),
        block_stop(0),
        event(r#"{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"R1"}}"#),
        block_stop(1),
        text_block(2, &["hi"]),
        message_delta("end_turn", 9),
        message_stop(),
    ]
    .concat();
    let same = pass_text(AnthropicMessages, AnthropicMessages, &thinking);
    assert_eq!(same.client, thinking.replace("claude-x", "Team-Fast"));
    let chat = pass_text(AnthropicMessages, OpenAiChat, &thinking);
    let details: Vec<_> = chat
        .json()
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["reasoning_details"][0].as_object().cloned())
        .collect();
    assert_eq!((details[0]["signature"].as_str(), details[1]["data"].as_str()), (Some("SIG=1=="), Some("R1")));
    assert!(chat.client.contains(r"SIG\u003d1=="), "escapes are copied as they stand");
}

#[test]
fn what_chat_cannot_say_is_refused_by_name() {
    let stream = [
        message_start(),
        event(r#"{"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"s","name":"web_search","input":{}}}"#),
    ]
    .concat();
    let passed = pass_text(AnthropicMessages, OpenAiChat, &stream);
    assert!(passed.garbage.as_ref().unwrap().to_string().contains("server_tool_use"), "{passed:?}");
    assert!(passed.is_broken());
    assert!(pass_text(AnthropicMessages, AnthropicMessages, &stream).garbage.is_none());
}
