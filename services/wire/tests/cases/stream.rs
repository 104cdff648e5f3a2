//! Streams: framing, commitment, completion, usage, owned fields.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use serde_json::json;
use weir_wire::openai::chat::stream::StreamStep;
use weir_wire::openai::chat::{StreamEditor, StreamReader, StreamState};
use weir_wire::sse::Decoder;

use crate::support::*;

#[test]
fn o01_cut_characters_reach_the_client_whole() {
    let stream = [ok("中文"), stop(), DONE.to_owned()].concat();
    let bytes = stream.as_bytes();
    let start = bytes.iter().position(|byte| *byte == 0xE4).unwrap();
    for cut in start + 1..start + 6 {
        let relayed = relay(&[&bytes[..cut], &bytes[cut..]], 1, false);
        assert_eq!(relayed.text(0), "中文");
        assert!(relayed.reader.is_complete());
    }
}

#[test]
fn o02_other_line_ends_make_no_other_events() {
    for end in ["\r\n", "\r"] {
        let stream = [ok("a"), ok("b"), stop(), usage(5, 2), DONE.to_owned()].concat().replace('\n', end);
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        let relayed = relay(&pieces, 1, false);
        assert_eq!(relayed.content_chunks, 2);
        assert_eq!((relayed.text(0).as_str(), tokens(&relayed.reader)), ("ab", Some((5, 2))));
        assert_eq!(relayed.events().iter().filter(|data| *data == "[DONE]").count(), 1);
        assert!(!relayed.client.contains('\r'), "line ends that naive clients do not know are not passed on");
    }
}

#[test]
fn o03_comments_are_neither_content_nor_data() {
    let preamble = format!("{}:\n\n", ": PROCESSING\n\n".repeat(20));
    let relayed = relay_text(&preamble, 1, false);
    assert_eq!((relayed.client.as_str(), relayed.reader.state()), ("", StreamState::Preamble));
    let relayed = relay_text(&[preamble, ok("hi"), stop(), usage(5, 1), DONE.into()].concat(), 1, false);
    assert_eq!((relayed.text(0).as_str(), relayed.client.contains("PROCESSING")), ("hi", false));
}

#[test]
fn o04_upstream_ids_and_event_names_are_not_passed_on() {
    let stream = format!("id: 1\n{}event: message\nretry: 5\nid: 2\n{}{}", ok("a"), ok("b"), stop());
    let relayed = relay_text(&stream, 1, false);
    assert_eq!(relayed.text(0), "ab");
    for line in relayed.client.lines().filter(|line| !line.is_empty()) {
        assert!(line.starts_with("data: "), "{line}");
    }
}

#[test]
fn o05_a_3_mb_line_passes_byte_for_byte() {
    let picture = "A".repeat(3_145_728);
    let delta = format!(r#"{{"images":[{{"image_url":{{"url":"data:image/png;base64,{picture}"}}}}]}}"#);
    let big = chunk(&format!(r#"{{"index":0,"delta":{delta},"finish_reason":null}}"#));
    let stream = [ok("a"), big, stop(), usage(10, 900), DONE.into()].concat();
    let pieces: Vec<&[u8]> = stream.as_bytes().chunks(16 * 1024).collect();
    let relayed = relay(&pieces, 1, false);
    assert_eq!(tokens(&relayed.reader), Some((10, 900)));
    assert_eq!(relayed.content_chunks, 2, "a picture is content");
    assert!(relayed.client.contains(&delta));
}

#[test]
fn o06_an_error_before_content_leaves_the_stream_uncommitted() {
    let stream = "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":503}}\n\n";
    let relayed = relay_text(stream, 1, false);
    let error = relayed.error.unwrap();
    assert_eq!((error.message.as_str(), error.status), ("overloaded", Some(503)));
    assert_eq!((relayed.reader.state(), relayed.client.as_str()), (StreamState::Preamble, ""));
}

#[test]
fn o06_errors_in_other_forms_are_errors() {
    for stream in [
        "event: error\ndata: {\"message\":\"boom\"}\n\n",
        "event: error\ndata: boom\n\n",
        "data: {\"object\":\"error\",\"message\":\"boom\",\"code\":400}\n\n",
        "data: {\"error\":\"boom\"}\n\n",
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"},\"finish_reason\":\"error\"}]}\n\n",
        "data: {\"error\":{\"message\":\"boom\"},\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n",
    ] {
        let relayed = relay_text(stream, 1, false);
        assert!(relayed.error.is_some(), "{stream}");
        assert_eq!((relayed.reader.state(), relayed.client.as_str()), (StreamState::Preamble, ""), "{stream}");
    }
    for stream in ["data: {\"error\":null,\"choices\":[]}\n\n", "data: {\"error\":{},\"choices\":[]}\n\n"] {
        assert!(relay_text(stream, 1, false).error.is_none(), "{stream}");
    }
}

#[test]
fn o07_a_clean_close_without_a_finish_reason_is_not_an_end() {
    let stream = [role(), ok("The answer is")].concat();
    for rest in ["", DONE] {
        let relayed = relay_text(&format!("{stream}{rest}"), 1, false);
        assert_eq!(relayed.reader.state(), StreamState::Content);
        assert!(!relayed.client.contains("[DONE]"));
        assert_eq!(tokens(&relayed.reader), None);
    }
    let half = [stop(), chunk(r#"{"index":1,"delta":{"content":"x"},"finish_reason":null}"#)].concat();
    assert!(!relay_text(&half, 2, false).reader.is_complete());
    assert!(!relay_text(&stop(), 2, false).reader.is_complete(), "the second choice never came");
}

#[test]
fn o08_a_missing_sentinel_is_given_once() {
    let relayed = relay_text(&[ok("hi"), stop(), usage(9, 1)].concat(), 1, false);
    assert!(relayed.reader.is_settled());
    assert_eq!(tokens(&relayed.reader), Some((9, 1)));
    assert_eq!(relayed.events().last().map(String::as_str), Some("[DONE]"));
    let relayed = relay_text(&[ok("hi"), stop()].concat(), 1, false);
    assert!(relayed.reader.is_complete() && !relayed.reader.is_settled(), "usage may still come");
    let relayed = relay_text(&[ok("hi"), stop(), DONE.into(), DONE.into()].concat(), 1, false);
    assert_eq!(relayed.events().iter().filter(|data| *data == "[DONE]").count(), 1);
    assert!(relayed.client.ends_with(DONE));
    let relayed = relay_text(&format!("{}{}data: [DONE]", ok("hi"), stop()), 1, false);
    assert!(relayed.reader.saw_done(), "a sentinel without a line end");
}

#[test]
fn o09_a_role_is_not_content() {
    let relayed = relay_text(&role(), 1, false);
    assert_eq!((relayed.reader.state(), relayed.content_chunks), (StreamState::Preamble, 0));
    let relayed = relay_text(&[role(), stop()].concat(), 1, false);
    assert_eq!((relayed.reader.state(), relayed.reader.has_content()), (StreamState::Finished, false));
}

#[test]
fn o10_content_before_an_error_is_content_however_the_reads_fall() {
    let stream = [role(), ok("Hel"), "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n".into()].concat();
    let whole = relay_text(&stream, 1, false);
    assert_eq!((whole.text(0).as_str(), whole.content_chunks), ("Hel", 1));
    assert_eq!(whole.error.as_ref().map(|error| error.message.as_str()), Some("boom"));
    for size in 1..stream.len() {
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
        let cut = relay(&pieces, 1, false);
        assert_eq!((&cut.client, &cut.error, cut.content_chunks), (&whole.client, &whole.error, 1));
    }
}

#[test]
fn o11_delivered_chunks_are_counted_by_content() {
    let stream: String = std::iter::once(role()).chain((1..=17).map(|n| ok(&format!("w{n} ")))).collect();
    let relayed = relay_text(&stream, 1, false);
    assert_eq!((relayed.content_chunks, relayed.reader.state()), (17, StreamState::Content));
}

#[test]
fn what_counts_as_content() {
    for (delta, is_content) in [
        (r#"{"content":"x"}"#, true),
        (r#"{"content":[{"type":"text","text":"x"}]}"#, true),
        (r#"{"refusal":"no"}"#, true),
        (r#"{"tool_calls":[{"index":0}]}"#, true),
        (r#"{"function_call":{"name":"f"}}"#, true),
        (r#"{"audio":{"id":"a"}}"#, true),
        (r#"{"reasoning_content":"hm"}"#, true),
        (r#"{"reasoning":"hm"}"#, true),
        (r#"{"content":""}"#, false),
        (r#"{"content":null,"tool_calls":[],"refusal":null,"reasoning":""}"#, false),
        (r#"{"role":"assistant","x_vendor":{"a":1}}"#, false),
        (r#"{}"#, false),
    ] {
        let relayed = relay_text(&chunk(&format!(r#"{{"index":0,"delta":{delta}}}"#)), 1, false);
        assert_eq!(relayed.reader.has_content(), is_content, "{delta}");
    }
}

#[test]
fn o13_usage_is_hidden_from_a_client_that_did_not_ask() {
    let stream = [ok("hi"), stop(), usage(20, 1), DONE.into()].concat();
    let hidden = relay_text(&stream, 1, false);
    assert_eq!(tokens(&hidden.reader), Some((20, 1)));
    for chunk in hidden.chunks() {
        assert!(!chunk["choices"].as_array().unwrap().is_empty() && chunk["usage"].is_null(), "{chunk}");
    }
    let shown = relay_text(&stream, 1, true);
    let chunks = shown.chunks();
    assert_eq!(chunks.iter().filter(|chunk| chunk["usage"].is_object()).count(), 1);
    assert_eq!(chunks.last().map(|chunk| &chunk["choices"]), Some(&json!([])));
    assert!(shown.client.ends_with(DONE));
}

#[test]
fn o13_cumulative_usage_in_every_chunk_is_nulled_and_the_last_counts() {
    let with_usage = |text: &str, completion: u64| {
        let usage = format!(
            r#","usage":{{"prompt_tokens":3,"completion_tokens":{completion},"total_tokens":{}}}}}"#,
            3 + completion
        );
        ok(text).replace("]}\n\n", &format!("]{usage}\n\n"))
    };
    let relayed = relay_text(&[with_usage("a", 1), with_usage("b", 2), stop()].concat(), 1, false);
    assert_eq!((relayed.text(0).as_str(), tokens(&relayed.reader)), ("ab", Some((3, 2))));
    assert!(relayed.chunks().iter().all(|chunk| chunk["usage"].is_null()));
    assert!(relayed.reader.is_complete() && !relayed.reader.is_settled(), "the last usage is still to come");
    let final_usage = [with_usage("a", 1), stop(), usage(3, 2)].concat();
    assert!(relay_text(&final_usage, 1, false).reader.is_settled());
}

#[test]
fn o14_odd_usage_and_preamble_chunks() {
    let counts = r#""usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}"#;
    let preamble = "data: {\"id\":\"\",\"object\":\"\",\"created\":0,\"model\":\"\",\"prompt_filter_results\":[{\"prompt_index\":0,\"content_filter_results\":{}}],\"choices\":[]}\n\n";
    let odd = |members: &str| format!("data: {{\"id\":\"c1\",\"model\":\"m\",{members}}}\n\n");
    let streams = [
        [preamble.to_owned(), ok("hi"), stop(), usage(7, 1), DONE.into()].concat(),
        [ok("hi"), stop(), odd(&format!(r#""choices":null,{counts}"#)), DONE.into()].concat(),
        [ok("hi"), stop(), odd(counts), DONE.into()].concat(),
        [ok("hi"), stop(), odd(&format!(r#""choices":[{{"delta":{{}}}}],{counts}"#)), DONE.into()].concat(),
    ];
    for (stream, wants_usage) in streams.iter().flat_map(|stream| [(stream, false), (stream, true)]) {
        let relayed = relay_text(stream, 1, wants_usage);
        assert_eq!(tokens(&relayed.reader), Some((7, 1)), "{stream}");
        assert_eq!((relayed.text(0).as_str(), relayed.reader.state()), ("hi", StreamState::Finished), "{stream}");
        let chunks = relayed.chunks();
        let shown = chunks.iter().filter(|chunk| chunk["usage"].is_object()).count();
        assert_eq!(shown, usize::from(wants_usage), "{stream}");
        let preambles = usize::from(stream.starts_with(preamble));
        assert_eq!(chunks.len(), 2 + preambles + shown, "a hidden chunk leaves nothing behind: {stream}");
        let id = chunks[0]["id"].as_str().unwrap();
        assert!(!id.is_empty() && chunks.iter().all(|chunk| chunk["id"] == id), "{stream}");
        assert!(chunks.iter().all(|chunk| chunk["choices"].is_array() && chunk["model"] == ALIAS), "{stream}");
    }
    assert_eq!(relay_text(preamble, 1, false).reader.state(), StreamState::Preamble);
}

#[test]
fn o14_an_empty_chunk_between_tool_call_fragments_changes_nothing() {
    let call = |arguments: &str| {
        let function = format!(r#"{{"arguments":"{arguments}"}}"#);
        chunk(&format!(
            r#"{{"index":0,"delta":{{"tool_calls":[{{"index":0,"function":{function}}}]}},"finish_reason":null}}"#
        ))
    };
    let end = chunk(r#"{"index":0,"delta":{},"finish_reason":"tool_calls"}"#);
    let relayed = relay_text(&[call("{\\\"a\\\":"), chunk(""), call("1}"), end, usage(7, 1)].concat(), 1, false);
    let fragments: String = relayed
        .chunks()
        .iter()
        .filter_map(|chunk| {
            chunk["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!((fragments.as_str(), relayed.content_chunks, relayed.reader.is_complete()), (r#"{"a":1}"#, 2, true));
}

#[test]
fn usage_in_places_of_vendors_own_is_found() {
    let counts = r#"{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}"#;
    let in_choice = chunk(&format!(r#"{{"index":0,"delta":{{}},"finish_reason":"stop","usage":{counts}}}"#));
    let groq = stop().replace("]}\n\n", &format!("],\"x_groq\":{{\"id\":\"r\",\"usage\":{counts}}}}}\n\n"));
    for end in [in_choice, groq] {
        assert_eq!(tokens(&relay_text(&[ok("hi"), end].concat(), 1, false).reader), Some((7, 1)));
    }
}

#[test]
fn o20_the_served_tier_is_the_last_one_said() {
    let tier =
        |event: String, tier: &str| event.replace("\"choices\"", &format!("\"service_tier\":{tier},\"choices\""));
    let stream = [tier(ok("a"), "null"), tier(ok("b"), "\"priority\""), tier(stop(), "\"default\"")].concat();
    assert_eq!(relay_text(&stream, 1, false).reader.served_tier().as_deref(), Some("default"));
}

#[test]
fn o33_every_chunk_says_the_alias_and_text_is_not_touched() {
    let stream = [role(), ok("I am \\\"model\\\":\\\"vendor/m\\\" m"), stop(), usage(1, 1)].concat();
    let stream = stream.replace("\"model\":\"m\"", "\"model\":\"vendor/m\"");
    let relayed = relay_text(&stream, 1, true);
    assert!(relayed.chunks().iter().all(|chunk| chunk["model"] == ALIAS));
    assert_eq!(relayed.text(0), "I am \"model\":\"vendor/m\" m");
    assert_eq!(relayed.reader.served_model().as_deref(), Some("vendor/m"));
    assert_eq!(relayed.reader.response_id().as_deref(), Some("c1"));
}

#[test]
fn o34_choices_finish_one_by_one() {
    let of = |index: u32, delta: &str, finish: &str| {
        chunk(&format!(r#"{{"index":{index},"delta":{delta},"finish_reason":{finish}}}"#))
    };
    let stream = [
        of(0, r#"{"content":"A1"}"#, "null"),
        of(1, r#"{"content":"B1"}"#, "null"),
        of(0, "{}", "\"stop\""),
        of(1, r#"{"content":"B2"}"#, "null"),
        of(1, "{}", "\"length\""),
        usage(4, 3),
        DONE.to_owned(),
    ];
    for last in 0..5 {
        let relayed = relay_text(&stream[..last].concat(), 2, false);
        assert!(!relayed.reader.is_complete(), "after {last} events");
    }
    let relayed = relay_text(&stream.concat(), 2, false);
    assert_eq!((relayed.text(0).as_str(), relayed.text(1).as_str()), ("A1", "B1B2"));
    assert_eq!((tokens(&relayed.reader), relayed.reader.is_complete()), (Some((4, 3)), true));
}

proptest! {
    #[test]
    fn damaged_streams_never_panic_and_leave_the_client_whole_events(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6), size in 1usize..400,
    ) {
        let mut stream = [role(), ok("中文"), ok("b"), stop(), usage(4, 3), DONE.into()].concat().into_bytes();
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        let mut decoder = Decoder::new(1_000);
        let mut reader = StreamReader::new(1);
        let mut editor = StreamEditor::new(ALIAS, FALLBACK_ID, false);
        let mut out = BytesMut::new();
        for piece in stream.chunks(size) {
            decoder.push(Bytes::copy_from_slice(piece));
            while let Ok(Some(event)) = decoder.next_event() {
                if let StreamStep::Chunk(facts) = reader.feed(&event) {
                    editor.edit(&event, &facts, &mut out);
                }
            }
        }
        prop_assert!(out.is_empty() || out.ends_with(b"\n\n"));
        for event in out.as_ref().split(|byte: &u8| *byte == b'\n').filter(|line| !line.is_empty()) {
            prop_assert!(event.starts_with(b"data: "));
        }
        prop_assert!(reader.usage().is_none_or(|usage| usage.usage.is_some() || !usage.flags.is_empty()));
    }

    #[test]
    fn any_read_boundaries_give_the_client_the_same_bytes(
        texts in prop::collection::vec("[a-z中é😀 ]{0,8}", 1..6),
        line_end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")],
        size in 1usize..200,
        wants_usage in any::<bool>(),
    ) {
        let mut stream: String = texts.iter().map(|text| ok(text)).collect();
        stream.push_str(": note\n\n");
        stream.push_str(&[stop(), usage(4, 3), DONE.into()].concat());
        let stream = stream.replace('\n', line_end);
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
        let (cut, whole) = (relay(&pieces, 1, wants_usage), relay_text(&stream, 1, wants_usage));
        prop_assert_eq!(&cut.client, &whole.client);
        prop_assert_eq!(cut.text(0), texts.concat());
        prop_assert_eq!(tokens(&cut.reader), Some((4, 3)));
    }
}

#[test]
fn i6_debug_never_shows_a_completion() {
    let mut decoder = Decoder::new(1_000);
    decoder.push(Bytes::from(ok("SECRET")));
    let before = format!("{decoder:?}");
    let event = decoder.next_event().unwrap().unwrap();
    let mut reader = StreamReader::new(1);
    let step = reader.feed(&event);
    assert!(!format!("{before}{event:?}{step:?}{reader:?}").contains("SECRET"));
}
