//! Every cut of a recorded stream, for all pairs: the client gets a prefix, then exactly one end that is true.
//!
//! What is not committed yet is judged by [`Peek`], as the attempt does; no socket and no clock is involved, so each of
//! the cuts takes microseconds. A stall is what its owner does after the idle timeout.

use proptest::prelude::*;
use serde_json::json;

use weir_wire::{ClientSide, Dialect, ProviderSide};

use super::*;
use crate::peek::{Peek, Seen};

const PAIRS: [(Dialect, Dialect); 4] = [
    (Dialect::OpenAiChat, Dialect::OpenAiChat),
    (Dialect::OpenAiChat, Dialect::AnthropicMessages),
    (Dialect::AnthropicMessages, Dialect::OpenAiChat),
    (Dialect::AnthropicMessages, Dialect::AnthropicMessages),
];

const TEXTS: usize = 40;
const ARGUMENTS: usize = 17;

/// A stream of sixty events: a role, text with characters of three bytes, a tool call in pieces, finish and usage. Of an
/// event, `comments` puts a comment before it; `line_end` ends its lines.
fn recorded(provider: Dialect, line_end: &str, comments: bool) -> String {
    let (mut events, text) = (Vec::new(), |number: usize| format!("w{number}€ "));
    match provider {
        Dialect::AnthropicMessages => {
            let mut event = |value: serde_json::Value| {
                events.push(format!("event: {}\ndata: {value}", value["type"].as_str().unwrap()));
            };
            event(
                json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 1}}}),
            );
            event(json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}));
            for number in 0..TEXTS {
                event(
                    json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text(number)}}),
                );
            }
            event(json!({"type": "content_block_stop", "index": 0}));
            event(
                json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}}),
            );
            for number in 0..ARGUMENTS {
                let part = format!("{}{number}", if number == 0 { "[" } else { "," });
                event(
                    json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": part}}),
                );
            }
            event(
                json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "]"}}),
            );
            event(json!({"type": "content_block_stop", "index": 1}));
            event(
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {"output_tokens": 70}}),
            );
            event(json!({"type": "message_stop"}));
        }
        Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => {
            let mut chunk = |choices: serde_json::Value, usage: serde_json::Value| {
                events.push(format!("data: {}", json!({"id": "c", "choices": choices, "usage": usage})));
            };
            let mut delta = |delta: serde_json::Value, finish: serde_json::Value| {
                chunk(json!([{"index": 0, "delta": delta, "finish_reason": finish}]), json!(null));
            };
            delta(json!({"role": "assistant", "content": ""}), json!(null));
            for number in 0..TEXTS {
                delta(json!({"content": text(number)}), json!(null));
            }
            let call =
                json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}});
            delta(json!({"tool_calls": [call]}), json!(null));
            for number in 0..ARGUMENTS {
                let part = format!("{}{number}", if number == 0 { "[" } else { "," });
                delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}), json!(null));
            }
            delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "]"}}]}), json!(null));
            delta(json!({}), json!("tool_calls"));
            chunk(json!([]), json!({"prompt_tokens": 9, "completion_tokens": 70, "total_tokens": 79}));
            events.push("data: [DONE]".to_owned());
        }
    }
    let comment = if comments { ": PROCESSING\n\n" } else { "" };
    let framed: String = events.iter().map(|event| format!("{comment}{event}\n\n")).collect();
    framed.replace('\n', line_end)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Close,
    Reset,
    Stall,
}

/// What came of a stream: nothing before its commitment, else the client's bytes and how it ended.
type Came = Option<(Vec<u8>, RelayOutcome)>;

/// Plays `pieces` to a client, then the ending.
fn play<'a>(client: Dialect, provider: Dialect, pieces: impl Iterator<Item = &'a [u8]>, ending: Ending) -> Came {
    let provider = ProviderSide { dialect: provider, choices: 1, max_event_bytes: 1 << 20 };
    let side =
        ClientSide { dialect: client, alias: "fast", fallback_id: "id", wants_usage: false, created_s: 1, ids: None };
    let mut peek = Some(Peek::new(Translator::new(&provider, &side).unwrap()));
    let mut running: Option<(Course, BytesMut)> = None;
    let mut ended = None;
    let commit = |peek: Peek| {
        let outcome = peek.has_ended.then_some(RelayOutcome::Complete);
        ((Course::new(peek.stream, Arc::from("req_1")), peek.held), outcome)
    };
    for piece in pieces {
        let piece = Bytes::copy_from_slice(piece);
        if let Some(mut before) = peek.take() {
            before.stream.push(piece);
            match before.read_events(1 << 18) {
                Seen::Nothing => peek = Some(before),
                Seen::Commit => {
                    let (committed, outcome) = commit(before);
                    (running, ended) = (Some(committed), outcome);
                }
                Seen::Broken(_) => panic!("nothing is wrong with the stream but its end"),
            }
        } else if let Some((course, _)) = running.as_mut() {
            course.push(piece);
        }
        if let (Some((course, out)), None) = (running.as_mut(), &ended) {
            ended = course.take_events(out);
        }
    }
    if let (Some(mut before), Ending::Close) = (peek, ending)
        && let Seen::Commit = before.close()
    {
        let (committed, outcome) = commit(before);
        (running, ended) = (Some(committed), outcome);
    }
    let (mut course, mut out) = running?;
    let outcome = ended.unwrap_or_else(|| match ending {
        Ending::Close => course.close(BreakReason::StreamIncomplete, &mut out),
        Ending::Reset => course.close(BreakReason::TransportError, &mut out),
        Ending::Stall if course.stream.is_complete() => RelayOutcome::Complete,
        Ending::Stall => RelayOutcome::Broke(BreakReason::ReadTimeout),
    });
    course.finish(&outcome, &mut out);
    Some((out.to_vec(), outcome))
}

/// What the whole stream gives, without its last event.
fn whole(client: Dialect, provider: Dialect) -> (Vec<u8>, Vec<u8>) {
    let stream = recorded(provider, "\n", false);
    let (out, outcome) = play(client, provider, [stream.as_bytes()].into_iter(), Ending::Close).unwrap();
    assert!(matches!(outcome, RelayOutcome::Complete));
    let terminal: &[u8] = match client {
        Dialect::AnthropicMessages => b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => b"data: [DONE]\n\n",
    };
    (out.strip_suffix(terminal).unwrap().to_vec(), terminal.to_vec())
}

/// The bytes of the last event, and those before it.
fn last_event(out: &[u8]) -> (&[u8], &[u8]) {
    let body = out.strip_suffix(b"\n\n").unwrap();
    let at = body.windows(2).rposition(|window| window == b"\n\n").map_or(0, |at| at + 2);
    out.split_at(at)
}

/// A prefix of the whole, then one end; and the end says what is true.
fn check(client: Dialect, (body, terminal): &(Vec<u8>, Vec<u8>), came: &Came, at: &str) -> bool {
    let Some((out, outcome)) = came else { return false };
    let (before, last) = last_event(out);
    match outcome {
        RelayOutcome::Complete => assert!(last == terminal.as_slice(), "{at}"),
        RelayOutcome::ClientLeft => panic!("{at}: nobody left"),
        RelayOutcome::Broke(reason) => {
            assert!(body.starts_with(before), "{at}: what was delivered is no prefix");
            let text = std::str::from_utf8(last).unwrap();
            let data = match client {
                Dialect::AnthropicMessages => text.strip_prefix("event: error\ndata: ").unwrap(),
                Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => {
                    text.strip_prefix("data: ").unwrap()
                }
            };
            let error = &serde_json::from_str::<serde_json::Value>(data).unwrap()["error"];
            assert_eq!((&error["reason"], &error["incomplete"]), (&json!(reason.as_str()), &json!(true)), "{at}");
            let delivered = std::str::from_utf8(before).unwrap().split_terminator("\n\n");
            let content = delivered.filter(|event| is_content(event)).count();
            assert_eq!(error["chunks_delivered"], json!(content), "{at}");
            for never in ["[DONE]", "message_stop", "\"finish_reason\":\"stop\""] {
                assert!(!std::str::from_utf8(before).unwrap().contains(never), "{at}: {never}");
            }
        }
    }
    true
}

/// Text, and a tool call from its name on.
fn is_content(event: &str) -> bool {
    let has = |what: &str| event.contains(what);
    has("\"content\":\"w")
        || has("\"tool_calls\":[")
        || has("\"text\":\"w")
        || has("\"partial_json\":")
        || (has("\"tool_use\"") && has("content_block_start"))
}

#[test]
fn o07_o08_o11_every_cut_of_a_stream_is_a_prefix_and_one_true_end() {
    for (client, provider) in PAIRS {
        let stream = recorded(provider, "\n", false);
        let whole = whole(client, provider);
        for ending in [Ending::Close, Ending::Reset, Ending::Stall] {
            let mut committed = None;
            for cut in 0..=stream.len() {
                let at = format!("{client} from {provider}, {ending:?} at {cut}");
                let came = play(client, provider, [&stream.as_bytes()[..cut]].into_iter(), ending);
                if check(client, &whole, &came, &at) {
                    committed.get_or_insert(cut);
                } else {
                    assert_eq!(committed, None, "{at}: what was committed stays so");
                }
            }
            let first = stream.find("w0").unwrap();
            let committed = committed.unwrap();
            assert!((first..first + 200).contains(&committed), "{client} from {provider}: {committed}");
        }
    }
}

proptest! {
    /// O01, O02, O03, O10: where reads fall, how lines end and what comments stand between changes nothing.
    #[test]
    fn o01_o02_o10_reads_may_fall_anywhere(
        pair in 0..PAIRS.len(),
        line_end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        comments: bool,
        cut: prop::sample::Index,
        reads in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ending in prop::sample::select(vec![Ending::Close, Ending::Reset, Ending::Stall]),
    ) {
        let (client, provider) = PAIRS[pair];
        let stream = recorded(provider, line_end, comments);
        let cut = cut.index(stream.len() + 1);
        let bytes = &stream.as_bytes()[..cut];
        let mut ends: Vec<usize> = reads.iter().map(|read| read.index(cut + 1)).chain([cut]).collect();
        ends.sort_unstable();
        let starts = [0].into_iter().chain(ends.clone());
        let pieces: Vec<&[u8]> = starts.zip(&ends).map(|(start, end)| &bytes[start..*end]).collect();
        let came = play(client, provider, pieces.into_iter(), ending);
        let at_once = play(client, provider, [bytes].into_iter(), ending);
        check(client, &whole(client, provider), &came, "in pieces");
        prop_assert_eq!(came.map(|came| came.0), at_once.map(|came| came.0));
    }
}
