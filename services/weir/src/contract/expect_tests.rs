//! Every expectation, with transcripts that keep it and transcripts that break it.

use serde_json::json;

use super::*;
use crate::contract::evidence::{Call, Piece, Transcript};
use crate::contract::pair::{Pair, ProviderApi};
use crate::contract::reading::Reading;

const PAIR: Pair = Pair { client: ClientApi::Chat, provider: ProviderApi::OpenAi };

fn content(text: &str) -> String {
    let chunk = json!({"id": "a", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]});
    format!("data: {chunk}\n\n")
}

fn contents(chunks: usize) -> String {
    (0..chunks).map(|chunk| content(&format!("word{chunk} "))).collect()
}

fn finished(reason: &str) -> String {
    let chunk = json!({"id": "a", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    format!("data: {chunk}\n\n")
}

fn tool(id: &str, index: usize, arguments: &str) -> String {
    let call = json!({"index": index, "id": id, "function": {"name": "weather", "arguments": arguments}});
    format!("data: {}\n\n", json!({"choices": [{"delta": {"tool_calls": [call]}}]}))
}

const DONE: &str = "data: [DONE]\n\n";

fn error(pieces: usize) -> String {
    let error = json!({
        "message": "broken", "reason": "transport_error", "incomplete": true, "chunks_delivered": pieces,
    });
    format!("data: {}\n\n", json!({"error": error}))
}

const HONEST_ERROR: &str = "data: {\"error\":{\"message\":\"broken\"}}\n\n";

fn transcript(status: u16, kind: &str, body: &str, end: End) -> Transcript {
    Transcript {
        status: Some(status),
        headers: vec![("content-type".to_owned(), kind.to_owned())],
        pieces: vec![Piece { at_ms: 1, bytes: body.as_bytes().to_vec() }],
        end,
        ended_ms: 2,
    }
}

fn call(target: Target) -> Call {
    Call { target, body: RESULT.to_owned(), state: "complete".to_owned(), outlived_ms: 0 }
}

fn step_of(transcript: Transcript, calls: &[Target]) -> Step {
    let reading = Reading::of(ClientApi::Chat, &transcript);
    Step { transcript, reading, calls: calls.iter().map(|target| call(*target)).collect() }
}

/// A stream, and the calls that it took.
fn stream(body: &str, calls: &[Target]) -> Step {
    step_of(transcript(200, "text/event-stream", body, End::Whole), calls)
}

fn answer(status: u16, body: &str, calls: &[Target]) -> Step {
    step_of(transcript(status, "application/json", body, End::Whole), calls)
}

const ERROR_BODY: &str = r#"{"error":{"message":"no"}}"#;
const FIRST: &[Target] = &[Target::First];
const BOTH: &[Target] = &[Target::First, Target::Second];

fn judged(steps: Vec<Step>, expect: impl Fn(&Evidence, &mut Checks)) -> (Verdict, String) {
    let mut checks = Checks::default();
    expect(&Evidence { pair: PAIR, steps }, &mut checks);
    (checks.verdict(), checks.into_findings().join("; "))
}

/// Each case: what was recorded, the verdict, and a part of what is said about it.
fn table(expect: impl Fn(&Evidence, &mut Checks), cases: Vec<(Vec<Step>, Verdict, &str)>) {
    for (number, (steps, verdict, said)) in cases.into_iter().enumerate() {
        let (found, findings) = judged(steps, &expect);
        assert_eq!(found, verdict, "case {number}: {findings}");
        assert!(findings.contains(said), "case {number}: {findings}");
    }
}

use Verdict::{Differs, Fail, Pass};

#[test]
fn whole_answers() {
    let ok = format!("{}{}{DONE}", contents(2), finished("stop"));
    let text = words(2);
    table(
        |e, c| whole(e, c, &text),
        vec![
            (vec![stream(&ok, FIRST)], Pass, ""),
            (vec![stream(&ok, BOTH)], Fail, "2 calls for one answer"),
            (vec![stream(&format!("{ok}{DONE}"), FIRST)], Fail, "2 ends"),
            (vec![stream(&format!("{}{DONE}", contents(2)), FIRST)], Fail, "no finish reason"),
            (vec![stream(&format!("{}{}{DONE}", contents(1), finished("stop")), FIRST)], Fail, "not what the provider"),
            (vec![stream(&format!("{ok}{}", content("more")), FIRST)], Fail, "1 events after the end"),
            (vec![stream(&ok.replacen("\"a\"", "\"b\"", 1), FIRST)], Fail, "several ids"),
            (vec![stream(&format!("{}{}", contents(2), error(2)), FIRST)], Fail, "an error"),
            (vec![answer(500, ERROR_BODY, FIRST)], Fail, "the status is Some(500)"),
            (
                vec![step_of(transcript(200, "text/event-stream", &ok, End::Broken("cut".to_owned())), FIRST)],
                Fail,
                "the connection ended",
            ),
        ],
    );
    table(
        |e, c| by_first(e, c, &text),
        vec![(vec![stream(&ok, FIRST)], Pass, ""), (vec![stream(&ok, &[Target::Second])], Fail, "second target")],
    );
}

#[test]
fn finish_reasons_usage_and_tool_calls() {
    let ended = |reason: &str| vec![stream(&format!("{}{}{DONE}", contents(3), finished(reason)), FIRST)];
    table(|e, c| finish(e, c, &["length"]), vec![(ended("length"), Pass, ""), (ended("stop"), Fail, "not one of")]);
    let told = |count: usize, output: i64| {
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": output}});
        let usages = format!("data: {usage}\n\n").repeat(count);
        vec![stream(&format!("{}{}{usages}{DONE}", contents(3), finished("stop")), FIRST)]
    };
    table(
        |e, c| usage(e, c, 12, 5),
        vec![
            (told(1, 5), Pass, ""),
            (told(2, 5), Fail, "2 usages"),
            (told(1, 6), Fail, "the last usage"),
            (told(0, 0), Fail, "the last usage is None"),
        ],
    );
    let calls = |body: String| vec![stream(&format!("{body}{}{DONE}", finished("tool_calls")), FIRST)];
    let (a, b) = (tool("call_a", 0, r#"{"city":"Köln"}"#), tool("call_b", 1, r#"{"city":"Bonn","days":2}"#));
    table(
        two_calls,
        vec![
            (calls(format!("{a}{b}")), Pass, ""),
            (calls(a.clone()), Fail, "1 tool calls"),
            (calls(format!("{a}{}", tool("call_b", 1, r#"{"city":"#))), Fail, "the arguments of `call_b`"),
            (calls(format!("{a}{}", tool("other", 1, r#"{"city":"Bonn","days":2}"#))), Fail, "is called `other`"),
        ],
    );
}

#[test]
fn recoveries() {
    let other = format!("{}{}{DONE}", content("from the other one"), finished("stop"));
    table(
        recovered,
        vec![
            (vec![stream(&other, BOTH)], Pass, ""),
            (vec![stream(&other, &[Target::First, Target::Second, Target::Second])], Fail, "made twice"),
            (vec![stream(&other, &[Target::Second])], Fail, "never asked"),
            (vec![answer(503, ERROR_BODY, FIRST)], Differs, "the client gets 503"),
            (vec![answer(503, "<html>", FIRST)], Fail, "no error of this API"),
            (vec![stream(HONEST_ERROR, FIRST)], Differs, "inside a 200"),
            (vec![stream("", FIRST)], Fail, "SDKs take it for complete"),
            (vec![stream(&format!("{}{DONE}", finished("stop")), FIRST)], Fail, "told as a complete answer"),
            (vec![stream(&format!("{}{other}", content("x")), BOTH)], Fail, "told as a complete answer"),
            (
                vec![step_of(transcript(200, "text/event-stream", "", End::TimedOut), FIRST)],
                Fail,
                "nothing came for 2 ms",
            ),
            (
                vec![step_of(transcript(200, "text/event-stream", "", End::Broken("reset".to_owned())), FIRST)],
                Differs,
                "only the broken connection tells",
            ),
        ],
    );
}

#[test]
fn statuses() {
    table(
        true_status,
        vec![
            (vec![answer(503, ERROR_BODY, BOTH)], Pass, ""),
            (vec![answer(503, ERROR_BODY, FIRST)], Differs, "never asked"),
            (vec![answer(503, "busy", BOTH)], Fail, "no error of this API"),
            (vec![stream(HONEST_ERROR, BOTH)], Differs, "inside a 200"),
            (vec![stream(DONE, BOTH)], Fail, "told as a complete answer"),
        ],
    );
    let with = |status: u16, header: Option<(&str, &str)>| {
        let mut step = answer(status, ERROR_BODY, BOTH);
        step.transcript.headers.extend(header.map(|(name, value)| (name.to_owned(), value.to_owned())));
        vec![step]
    };
    table(
        relayed_limit,
        vec![
            (with(429, Some(("Retry-After", "7"))), Pass, ""),
            (with(429, None), Differs, "retry-after is lost"),
            (with(503, Some(("retry-after", "7"))), Differs, "the status is Some(503)"),
        ],
    );
    table(
        not_again,
        vec![
            (with(504, Some(("x-should-retry", "false"))), Pass, ""),
            (with(504, None), Differs, "SDKs will send it again"),
        ],
    );
    table(
        refused_by_provider,
        vec![
            (vec![answer(400, ERROR_BODY, FIRST)], Pass, ""),
            (vec![answer(400, ERROR_BODY, BOTH)], Fail, "with a wrong request"),
            (vec![answer(400, ERROR_BODY, &[Target::First, Target::First])], Differs, "asked 2 times"),
            (vec![answer(502, ERROR_BODY, FIRST)], Fail, "the status is Some(502)"),
            (vec![answer(400, "", FIRST)], Fail, "no error of this API"),
        ],
    );
    table(
        |e, c| refused(e, c, &[403, 404]),
        vec![
            (vec![answer(404, ERROR_BODY, &[])], Pass, ""),
            (vec![answer(404, ERROR_BODY, FIRST)], Fail, "1 calls reached the provider"),
            (vec![answer(200, "{}", &[])], Fail, "the status is Some(200)"),
            (vec![answer(404, "", &[])], Fail, "no error of this API"),
        ],
    );
}

#[test]
fn broken_streams() {
    let kept = format!("{}{}", contents(3), error(3));
    table(
        |e, c| broken(e, c, 3),
        vec![
            (vec![stream(&kept, FIRST)], Pass, ""),
            (
                vec![stream(&format!("{}{HONEST_ERROR}", contents(3)), FIRST)],
                Differs,
                "does not say `incomplete: true`",
            ),
            (vec![stream(&format!("{}{}", contents(3), error(2)), FIRST)], Differs, "`chunks_delivered` is Some(2)"),
            (vec![stream(&format!("{}{}", contents(2), error(2)), FIRST)], Differs, "characters arrived"),
            (vec![stream(&contents(3), FIRST)], Fail, "SDKs take it for complete"),
            (vec![stream(&format!("{kept}{DONE}"), FIRST)], Fail, "told as complete"),
            (vec![stream(&format!("{}{}{}", contents(3), finished("stop"), error(3)), FIRST)], Fail, "invented finish"),
            (vec![stream(&kept, BOTH)], Fail, "after content was out"),
            (
                vec![stream(&format!("{}{}{}", contents(3), content("from the other one"), error(4)), FIRST)],
                Fail,
                "not a part",
            ),
            (vec![stream(&format!("{kept}{}", error(3)), FIRST)], Fail, "2 errors"),
            (vec![answer(502, ERROR_BODY, FIRST)], Fail, "the status is Some(502)"),
            (
                vec![step_of(transcript(200, "text/event-stream", &contents(3), End::TimedOut), FIRST)],
                Fail,
                "nothing came",
            ),
        ],
    );
    let half = tool("a", 0, "{\"city\":");
    table(
        broken_call,
        vec![
            (vec![stream(&format!("{half}{}", error(1)), FIRST)], Pass, ""),
            (vec![stream(&format!("{half}{}{DONE}", finished("tool_calls")), FIRST)], Fail, "told as complete"),
            (vec![stream(&half, FIRST)], Fail, "SDKs take it"),
        ],
    );
    let (relayed, held) = (format!("{}{}", contents(1), error(1)), "from the other one");
    let held = format!("{}{}{DONE}", content(held), finished("stop"));
    table(
        same_twice,
        vec![
            (vec![stream(&relayed, FIRST), stream(&relayed, FIRST)], Pass, ""),
            (vec![stream(&held, BOTH), stream(&held, BOTH)], Differs, "held back"),
            (vec![stream(&held, BOTH), stream(&relayed, FIRST)], Fail, "how reads fell decides"),
            (
                vec![stream(&format!("{}{held}", contents(1)), BOTH), stream(&format!("{}{held}", contents(1)), BOTH)],
                Fail,
                "spliced",
            ),
        ],
    );
}

#[test]
fn agents_leavers_and_repeats() {
    let called = stream(&format!("{}{}{DONE}", tool("a", 0, "{}"), finished("tool_calls")), FIRST);
    let failed = stream(&format!("{}{}", contents(2), error(2)), FIRST);
    let again = stream(&format!("{}{}{DONE}", contents(4), finished("stop")), FIRST);
    let forgotten = |mut step: Step| {
        step.calls[0].body = "no result".to_owned();
        step
    };
    table(
        agent,
        vec![
            (vec![called.clone(), failed.clone(), again.clone()], Pass, ""),
            (vec![called.clone(), called.clone(), again.clone()], Fail, "run the tool 2 times"),
            (vec![called.clone(), failed.clone(), forgotten(again.clone())], Fail, "did not reach the provider"),
            (vec![called.clone(), failed], Fail, "not played"),
        ],
    );
    let left_with = |end: End, calls: &[Target], outlived_ms: u64| {
        let mut step = step_of(transcript(200, "text/event-stream", &contents(3), end), calls);
        step.calls.iter_mut().for_each(|call| call.outlived_ms = outlived_ms);
        vec![step]
    };
    table(
        left,
        vec![
            (left_with(End::Left, FIRST, 20), Pass, ""),
            (left_with(End::Left, FIRST, 2_500), Differs, "went on for 2500 ms"),
            (left_with(End::Left, BOTH, 20), Fail, "2 calls for a client that left"),
            (left_with(End::Whole, FIRST, 20), Fail, "ended by itself"),
        ],
    );
    let same = |calls: &[Target]| Step { calls: calls.iter().map(|target| call(*target)).collect(), ..again.clone() };
    let other = stream(&format!("{}{}{DONE}", contents(4), finished("length")), &[]);
    table(
        replayed,
        vec![
            (vec![again.clone(), same(&[])], Pass, ""),
            (vec![again.clone(), same(FIRST)], Differs, "is ignored"),
            (vec![again.clone(), other], Fail, "other bytes"),
            (vec![again.clone(), answer(409, ERROR_BODY, &[])], Differs, "refused with 409"),
            (vec![again], Fail, "not sent"),
        ],
    );
}

#[test]
fn large_events_and_failed_responses() {
    let whole_text =
        |bytes: usize| vec![stream(&format!("{}{}{DONE}", content(&"x".repeat(bytes)), finished("stop")), FIRST)];
    table(large, vec![(whole_text(1_000_000), Pass, ""), (whole_text(999), Fail, "999 of 1,000,000")]);
    table(
        failed_response,
        vec![(vec![stream(&error(1), FIRST)], Pass, ""), (vec![stream(DONE, FIRST)], Fail, "told as another")],
    );
}

#[test]
fn silence_and_what_follows_it() {
    let ended = format!("{}{}{DONE}", contents(3), finished("stop"));
    table(
        kept_alive,
        vec![
            (vec![stream(&format!(": waiting\n\n{ended}"), FIRST)], Pass, ""),
            (vec![stream(&ended, FIRST)], Differs, "the connection was silent for 1 ms"),
            (vec![stream(&format!(": waiting\n\n{ended}"), BOTH)], Fail, "2 calls"),
        ],
    );
    table(
        exhausted_late,
        vec![
            (vec![stream(&error(0), BOTH)], Pass, ""),
            (vec![answer(503, ERROR_BODY, BOTH)], Differs, "not out after a long silence"),
            (vec![stream(&error(0), FIRST)], Differs, "never asked"),
            (vec![stream(DONE, BOTH)], Fail, "told as complete"),
        ],
    );
    let other = format!("{}{}{DONE}", content("from the other one"), finished("stop"));
    table(
        behind_the_bound,
        vec![
            (vec![stream(&error(0), FIRST)], Pass, ""),
            (vec![stream(&other, BOTH)], Pass, ""),
            (vec![answer(503, ERROR_BODY, FIRST)], Differs, "no other target"),
            (vec![stream(DONE, FIRST)], Fail, "told as complete"),
            (vec![stream(&error(0), BOTH)], Fail, "after content was out"),
        ],
    );
}

#[test]
fn streams_that_go_on() {
    let rest = format!("{}{}{DONE}", content("from the other one"), finished("stop"));
    let seam = "data: {\"id\":\"a\",\"choices\":[],\"weir_continuation\":{\"reason\":\"transport_error\"}}\n\n";
    table(
        |e, c| continued(e, c, 2),
        vec![
            (vec![stream(&format!("{}{seam}{rest}", contents(2)), BOTH)], Pass, ""),
            (vec![stream(&format!("{}{rest}", contents(2)), BOTH)], Fail, "nothing marks the seam"),
            (vec![stream(&format!("{}{seam}{rest}{DONE}", contents(2)), BOTH)], Fail, "2 ends"),
            (vec![stream(&format!("{}{}", contents(2), error(2)), FIRST)], Differs, "nobody goes on"),
            (vec![stream(&contents(2), FIRST)], Fail, "without an end"),
        ],
    );
}
