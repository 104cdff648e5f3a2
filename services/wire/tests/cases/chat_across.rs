//! Streams of a chat completions provider, for a client of its own dialect and for an Anthropic one.

use serde_json::{Value, json};
use weir_wire::Dialect::{self, AnthropicMessages, OpenAiChat};
use weir_wire::openai::chat::StreamState;

use crate::across::*;
use crate::support::{DONE, chunk, ok, role, stop, usage};

const CLIENTS: [Dialect; 2] = [OpenAiChat, AnthropicMessages];

fn finish(reason: &str) -> String {
    chunk(&format!(r#"{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}"#))
}

fn call(members: &str) -> String {
    chunk(&format!(r#"{{"index":0,"delta":{{"tool_calls":[{members}]}},"finish_reason":null}}"#))
}

/// The tool calls as a chat client puts them together: by index.
fn by_index(passed: &Passed) -> Vec<(String, String, String)> {
    let mut calls: Vec<(String, String, String)> = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for chunk in passed.json() {
        for call in chunk["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = usize::try_from(call["index"].as_u64().expect("an index")).unwrap();
            calls.resize(calls.len().max(index + 1), Default::default());
            let found = &mut calls[index];
            found.0 += &text(&call["id"]);
            found.1 += &text(&call["function"]["name"]);
            found.2 += &text(&call["function"]["arguments"]);
        }
    }
    calls
}

/// The blocks as an Anthropic client puts them together, after a check of their discipline (O28).
fn blocks(passed: &Passed) -> Vec<Value> {
    let (mut blocks, mut open) = (Vec::<Value>::new(), None);
    for (name, data) in passed.events() {
        let data: Value = serde_json::from_str(&data).unwrap();
        assert_eq!(data["type"], name, "name and type agree");
        match name.as_str() {
            "content_block_start" => {
                assert_eq!((open, data["index"].as_u64()), (None, Some(blocks.len() as u64)));
                open = data["index"].as_u64();
                let mut block = data["content_block"].clone();
                block["json"] = json!("");
                blocks.push(block);
            }
            "content_block_delta" => {
                assert_eq!(open, data["index"].as_u64());
                let block = blocks.last_mut().unwrap();
                for (from, to) in
                    [("text", "text"), ("thinking", "thinking"), ("signature", "signature"), ("partial_json", "json")]
                {
                    if let Some(text) = data["delta"][from].as_str() {
                        block[to] = json!(block[to].as_str().unwrap_or_default().to_owned() + text);
                    }
                }
            }
            "content_block_stop" => {
                assert_eq!(open.take(), data["index"].as_u64());
            }
            _ => {}
        }
    }
    assert!(open.is_none() || passed.is_broken());
    blocks
}

fn tool_blocks(passed: &Passed) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let tools = blocks(passed).into_iter().filter(|block| block["type"] == "tool_use");
    tools.map(|block| (text(&block["id"]), text(&block["name"]), text(&block["json"]))).collect()
}

#[test]
fn o24_parallel_calls_with_missing_or_repeated_indexes_stay_two() {
    let a = |index: &str| {
        format!(r#"{{{index}"id":"call_a","type":"function","function":{{"name":"f","arguments":"{{\"x\":1}}"}}}}"#)
    };
    let b = |index: &str| {
        format!(r#"{{{index}"id":"call_b","type":"function","function":{{"name":"g","arguments":"{{\"y\":2}}"}}}}"#)
    };
    let expected = vec![
        ("call_a".to_owned(), "f".to_owned(), r#"{"x":1}"#.to_owned()),
        ("call_b".to_owned(), "g".to_owned(), r#"{"y":2}"#.to_owned()),
    ];
    let zero = r#""index":0,"#;
    let rests = [finish("tool_calls"), DONE.to_owned()].concat();
    for stream in [
        [call(&a(zero)), call(&b(zero)), rests.clone()].concat(),
        [call(&a("")), call(&b("")), rests.clone()].concat(),
        [call(&format!("{},{}", a(zero), b(zero))), rests.clone()].concat(),
        [call(&a(zero)), call(&b(r#""index":1,"#)), rests.clone()].concat(),
    ] {
        assert_eq!(by_index(&pass_text(OpenAiChat, OpenAiChat, &stream)), expected, "{stream}");
        assert_eq!(tool_blocks(&pass_text(OpenAiChat, AnthropicMessages, &stream)), expected, "{stream}");
    }
}

#[test]
fn o24_fragments_without_an_id_go_on_with_their_index_and_good_streams_are_not_touched() {
    let start = |index: u32, id: &str| {
        call(&format!(r#"{{"index":{index},"id":"{id}","type":"function","function":{{"name":"f","arguments":""}}}}"#))
    };
    let more = |index: u32, text: &str| call(&format!(r#"{{"index":{index},"function":{{"arguments":"{text}"}}}}"#));
    let good = [start(0, "a"), more(0, "{"), more(0, "}"), start(1, "b"), more(1, "[]"), start(7, "c"), more(7, "{}")]
        .concat();
    let good = [good, finish("tool_calls"), DONE.to_owned()].concat();
    let passed = pass_text(OpenAiChat, OpenAiChat, &good);
    assert_eq!(passed.client, good.replace(r#""model":"m""#, r#""model":"Team-Fast""#));
    let repeated = [start(0, "a"), more(0, "1"), start(0, "b"), more(0, "2"), finish("tool_calls")].concat();
    let calls = by_index(&pass_text(OpenAiChat, OpenAiChat, &repeated));
    assert_eq!(
        calls.iter().map(|call| (call.0.as_str(), call.2.as_str())).collect::<Vec<_>>(),
        [("a", "1"), ("b", "2")]
    );
    let calls = tool_blocks(&pass_text(OpenAiChat, AnthropicMessages, &repeated));
    assert_eq!(
        calls.iter().map(|call| (call.0.as_str(), call.2.as_str())).collect::<Vec<_>>(),
        [("a", "1"), ("b", "2")]
    );
    let interleaved = [start(0, "a"), start(1, "b"), more(0, "x")].concat();
    let passed = pass_text(OpenAiChat, AnthropicMessages, &interleaved);
    assert!(passed.garbage.is_some() && passed.is_broken(), "an order is not invented");
}

#[test]
fn o28_blocks_are_started_and_stopped_once_and_the_usage_is_in_the_delta() {
    let stream = [
        role(),
        ok("Let me check"),
        call(r#"{"index":0,"id":"call_a","type":"function","function":{"name":"look","arguments":""}}"#),
        call(r#"{"index":0,"function":{"arguments":"{\"q\":"}}"#),
        call(r#"{"index":0,"function":{"arguments":"1}"}}"#),
        finish("tool_calls"),
        usage(30, 12),
        DONE.to_owned(),
    ]
    .concat();
    let passed = pass_text(OpenAiChat, AnthropicMessages, &stream);
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(passed.names(), expected);
    assert!(!passed.client.contains("[DONE]"));
    let events = passed.json();
    assert_eq!((&events[0]["message"]["content"], &events[0]["message"]["model"]), (&json!([]), &json!("Team-Fast")));
    assert!(events[0]["message"]["usage"].is_object());
    assert_eq!(
        (&events[8]["delta"]["stop_reason"], &events[8]["usage"]["output_tokens"]),
        (&json!("tool_use"), &json!(12))
    );
    assert_eq!(events[8]["usage"]["input_tokens"], 30);
    assert_eq!(tool_blocks(&passed), [("call_a".to_owned(), "look".to_owned(), r#"{"q":1}"#.to_owned())]);
    assert_eq!(events[4]["content_block"]["input"], json!({}));
}

#[test]
fn o25_a_call_without_arguments_is_an_empty_object() {
    let stream =
        [call(r#"{"index":0,"id":"a","function":{"name":"now","arguments":""}}"#), finish("tool_calls"), usage(3, 1)]
            .concat();
    let passed = pass_text(OpenAiChat, AnthropicMessages, &stream);
    assert_eq!(blocks(&passed)[0]["input"], json!({}));
    assert!(!passed.client.contains("input_json_delta"));
}

#[test]
fn o01_o02_cuts_and_line_ends_mean_nothing() {
    let stream = [role(), ok("中文"), stop(), usage(9, 2), DONE.to_owned()].concat();
    for client in CLIENTS {
        let whole = pass_text(OpenAiChat, client, &stream);
        assert!(whole.client.contains("中文") && whole.has_terminal());
        for size in [1, 2, 3, 7] {
            let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
            assert_eq!(pass(OpenAiChat, client, &pieces, true), whole);
        }
        for end in ["\r\n", "\r"] {
            let other = stream.replace('\n', end);
            let pieces: Vec<&[u8]> = other.as_bytes().chunks(1).collect();
            assert_eq!(pass(OpenAiChat, client, &pieces, true), whole);
        }
    }
}

#[test]
fn o03_o09_comments_and_roles_are_not_content() {
    for client in CLIENTS {
        let passed = pass_text(OpenAiChat, client, &[": PROCESSING\n\n".repeat(20), role()].concat());
        assert_eq!((passed.facts.state, passed.facts.chunks_delivered), (StreamState::Preamble, 0));
        let empty = pass_text(OpenAiChat, client, &[role(), stop()].concat());
        assert!(empty.facts.is_complete && !empty.facts.has_content && empty.has_terminal());
    }
}

#[test]
fn o05_a_3_mb_line_passes() {
    let text = "A".repeat(3_145_728);
    let stream = [ok("a"), ok(&text), stop(), usage(10, 900), DONE.into()].concat();
    let pieces: Vec<&[u8]> = stream.as_bytes().chunks(16 * 1024).collect();
    for client in CLIENTS {
        let passed = pass(OpenAiChat, client, &pieces, true);
        assert!(passed.client.contains(&text) && passed.has_terminal());
        assert_eq!(tokens(&passed.facts), Some((10, 900)));
    }
}

#[test]
fn o06_o10_errors_in_the_stream() {
    let error = "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\",\"code\":500}}\n\n";
    for client in CLIENTS {
        let early = pass_text(OpenAiChat, client, error);
        assert_eq!((early.facts.state, early.facts.chunks_delivered), (StreamState::Preamble, 0));
        let stream = [role(), ok("Hel"), error.to_owned()].concat();
        let late = pass_text(OpenAiChat, client, &stream);
        assert_eq!((late.facts.chunks_delivered, late.is_broken(), late.has_terminal()), (1, true, false));
        for size in 1..stream.len() {
            let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
            assert_eq!(pass(OpenAiChat, client, &pieces, true), late);
        }
    }
}

#[test]
fn o07_a_clean_close_without_a_finish_reason_is_not_an_end() {
    for client in CLIENTS {
        for rest in ["", DONE] {
            let passed = pass_text(OpenAiChat, client, &[role(), ok("The answer is"), rest.to_owned()].concat());
            assert!(passed.is_broken() && !passed.has_terminal());
            assert!(!passed.client.contains("stop_reason\":\"") && !passed.client.contains("finish_reason\":\""));
        }
    }
}

#[test]
fn o08_a_missing_sentinel_is_given_once() {
    for client in CLIENTS {
        let passed = pass_text(OpenAiChat, client, &[ok("hi"), stop(), usage(9, 1)].concat());
        assert!(passed.has_terminal() && !passed.is_broken());
        assert_eq!(tokens(&passed.facts), Some((9, 1)));
        let ends = passed.events().iter().filter(|(name, data)| name == "message_stop" || data == "[DONE]").count();
        assert_eq!(ends, 1);
    }
}

#[test]
fn o11_delivered_chunks_are_counted_and_told() {
    let stream: String = std::iter::once(role()).chain((1..=17).map(|n| ok(&format!("w{n} ")))).collect();
    for client in CLIENTS {
        let passed = pass_text(OpenAiChat, client, &stream);
        let told = passed.json().last().unwrap()["error"].clone();
        assert_eq!((passed.facts.chunks_delivered, &told["chunks_delivered"]), (17, &json!(17)));
    }
}

#[test]
fn o14_odd_chunks_change_nothing_for_an_anthropic_client() {
    let report = r#""usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}"#;
    let plain = pass_text(OpenAiChat, AnthropicMessages, &[ok("hi"), stop(), usage(7, 1), DONE.into()].concat());
    for odd in [r#""choices":null,"#, "", r#""choices":[{"delta":{}}],"#] {
        let stream = [ok("hi"), stop(), format!("data: {{\"id\":\"c1\",{odd}{report}}}\n\n"), DONE.into()].concat();
        let passed = pass_text(OpenAiChat, AnthropicMessages, &stream);
        assert_eq!((&passed.client, tokens(&passed.facts)), (&plain.client, Some((7, 1))), "{odd}");
    }
    let preamble = "data: {\"id\":\"\",\"object\":\"\",\"created\":0,\"model\":\"\",\"prompt_filter_results\":[{}],\"choices\":[]}\n\n";
    let passed =
        pass_text(OpenAiChat, AnthropicMessages, &[preamble.to_owned(), ok("hi"), stop(), usage(7, 1)].concat());
    assert_eq!(passed.facts.chunks_delivered, 1);
    assert_eq!(passed.json()[0]["message"]["id"], "chatcmpl-weir");
}

#[test]
fn o17_o18_usage_with_cache_and_reasoning_meters() {
    let report = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20212,\"completion_tokens\":931,\"total_tokens\":21143,\
                  \"prompt_tokens_details\":{\"cached_tokens\":16298},\"completion_tokens_details\":{\"reasoning_tokens\":31}}}\n\n";
    let passed = pass_text(OpenAiChat, AnthropicMessages, &[ok("hi"), stop(), report.to_owned()].concat());
    let events = passed.json();
    let usage = &events.iter().find(|event| event["type"] == "message_delta").unwrap()["usage"];
    let counts = ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens"]
        .map(|name| usage[name].as_i64().unwrap());
    assert_eq!(counts, [3914, 16298, 0, 931]);
    assert_eq!(usage["output_tokens_details"]["thinking_tokens"], 31);
    let unknown = pass_text(OpenAiChat, AnthropicMessages, &[ok("hi"), stop()].concat());
    assert!(unknown.client.contains(r#""weir_usage_unknown":true"#), "i9: unknown is not zero");
}

#[test]
fn o29_finish_reasons_in_the_words_of_messages() {
    for (reason, expected) in [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("tool_calls", "tool_use"),
        ("content_filter", "refusal"),
        ("vendor_reason", "vendor_reason"),
    ] {
        let passed = pass_text(OpenAiChat, AnthropicMessages, &[ok("hi"), finish(reason), usage(3, 1)].concat());
        let events = passed.json();
        let delta = events.iter().find(|event| event["type"] == "message_delta").unwrap();
        assert_eq!(delta["delta"]["stop_reason"], expected, "{reason}");
    }
}

#[test]
fn o35_reasoning_becomes_thinking() {
    let delta = |members: &str| chunk(&format!(r#"{{"index":0,"delta":{{{members}}},"finish_reason":null}}"#));
    let stream =
        [role(), delta(r#""reasoning_content":"hm ""#), delta(r#""reasoning":"so""#), ok("hi"), stop(), usage(3, 9)]
            .concat();
    let found = blocks(&pass_text(OpenAiChat, AnthropicMessages, &stream));
    assert_eq!((found[0]["type"].as_str(), found[0]["thinking"].as_str()), (Some("thinking"), Some("hm so")));
    assert_eq!(found[1]["text"], "hi");
    let detail = |text: &str| delta(&format!(r#""reasoning_content":"x","reasoning_details":[{text}]"#));
    let stream = [
        detail(r#"{"type":"reasoning.text","text":"hm","index":0}"#),
        detail(r#"{"type":"reasoning.text","signature":"S==","index":0}"#),
        detail(r#"{"type":"reasoning.encrypted","data":"R1","index":1}"#),
        ok("hi"),
        stop(),
    ]
    .concat();
    let found = blocks(&pass_text(OpenAiChat, AnthropicMessages, &stream));
    assert_eq!((found[0]["thinking"].as_str(), found[0]["signature"].as_str()), (Some("hm"), Some("S==")));
    assert_eq!((found[1]["type"].as_str(), found[1]["data"].as_str()), (Some("redacted_thinking"), Some("R1")));
}

#[test]
fn what_messages_cannot_say_is_refused_by_name() {
    for delta in
        [r#""audio":{"id":"a"}"#, r#""images":[{"image_url":{"url":"data:"}}]"#, r#""content":[{"type":"text"}]"#]
    {
        let stream = chunk(&format!(r#"{{"index":0,"delta":{{{delta}}},"finish_reason":null}}"#));
        let passed = pass_text(OpenAiChat, AnthropicMessages, &stream);
        assert!(passed.garbage.is_some() && passed.is_broken(), "{delta}");
        assert!(pass_text(OpenAiChat, OpenAiChat, &stream).garbage.is_none());
    }
    let second = chunk(r#"{"index":1,"delta":{"content":"x"},"finish_reason":null}"#);
    assert!(pass_text(OpenAiChat, AnthropicMessages, &second).garbage.is_some(), "o34: one choice");
}
