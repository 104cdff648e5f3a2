//! What must hold, as functions of the evidence alone.
//!
//! `must` is the contract: whoever breaks it misleads a client or pays for nothing. `should` is what Weir does besides,
//! where another gateway may honestly do otherwise.

use serde_json::Value;

use super::evidence::{End, Evidence, Step, Target};
use super::pair::ClientApi;
use super::requests::RESULT;
use super::verdict::{Checks, Verdict};

/// The text of so many of the stub's chunks.
pub(super) fn words(chunks: usize) -> String {
    (0..chunks).map(|chunk| format!("word{chunk} ")).collect()
}

/// What every answer must be, whole or not: a stream that an SDK can read, with one identity.
fn well_formed(step: &Step, c: &mut Checks) {
    let reading = &step.reading;
    for violation in &reading.violations {
        c.fail(violation.clone());
    }
    c.must(reading.ids.len() <= 1, || format!("one answer has several ids: {:?}", reading.ids));
    c.must(reading.models.len() <= 1, || format!("one answer has several models: {:?}", reading.models));
    c.must(reading.after_end == 0, || format!("{} events after the end", reading.after_end));
}

/// Nothing more can be said of an answer that is none.
fn is_ok(step: &Step, c: &mut Checks) -> bool {
    let status = step.transcript.status;
    c.must(status == Some(200), || format!("the status is {status:?}"));
    status == Some(200)
}

fn whole_step(step: &Step, c: &mut Checks, text: &str) {
    let (reading, transcript) = (&step.reading, &step.transcript);
    if !is_ok(step, c) {
        return;
    }
    well_formed(step, c);
    c.must(reading.text == text, || {
        format!("the text is not what the provider wrote: {}", difference(&reading.text, text))
    });
    c.must(reading.errors.is_empty(), || format!("an error: {}", reading.errors[0]));
    c.must(!reading.finishes.is_empty(), || "no finish reason".to_owned());
    if reading.is_stream {
        c.must(reading.terminals == 1, || format!("{} ends", reading.terminals));
    }
    c.must(transcript.end == End::Whole, || format!("the connection ended: {:?}", transcript.end));
}

fn difference(got: &str, expected: &str) -> String {
    let same = got.chars().zip(expected.chars()).take_while(|(got, expected)| got == expected).count();
    let at = |text: &str| text.chars().skip(same).take(20).collect::<String>();
    format!("`{}` instead of `{}` at character {same}", at(got), at(expected))
}

/// A whole answer by the first target, or by whoever was asked.
pub(super) fn whole(evidence: &Evidence, c: &mut Checks, text: &str) {
    for step in &evidence.steps {
        whole_step(step, c, text);
        c.must(step.calls.len() == 1, || format!("{} calls for one answer", step.calls.len()));
    }
}

/// The same, and the second target was never asked.
pub(super) fn by_first(evidence: &Evidence, c: &mut Checks, text: &str) {
    whole(evidence, c, text);
    let second: usize = evidence.steps.iter().map(|step| step.calls_of(Target::Second)).sum();
    c.must(second == 0, || "the second target was asked as well".to_owned());
}

pub(super) fn large(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        let text = &step.reading.text;
        c.must(text.len() == 1_000_000, || format!("{} of 1,000,000 bytes arrived", text.len()));
        whole_step(step, c, &text.clone());
    }
}

pub(super) fn usage(evidence: &Evidence, c: &mut Checks, input: i64, output: i64) {
    for step in &evidence.steps {
        let usages = &step.reading.usages;
        c.must(usages.last() == Some(&(input, output)), || format!("the last usage is {:?}", usages.last()));
        if evidence.pair.client == ClientApi::Chat {
            c.must(usages.len() == 1, || format!("{} usages where one was asked for", usages.len()));
        }
        well_formed(step, c);
    }
}

pub(super) fn two_calls(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        whole_step(step, c, "");
        let expected = [("call_a", r#"{"city":"Köln"}"#), ("call_b", r#"{"city":"Bonn","days":2}"#)];
        let tools = &step.reading.tools;
        c.must(tools.len() == expected.len(), || format!("{} tool calls instead of two", tools.len()));
        for (tool, (id, arguments)) in tools.iter().zip(expected) {
            c.must(tool.id == id, || format!("the call `{id}` is called `{}`", tool.id));
            let as_json = |text: &str| serde_json::from_str::<Value>(text).ok();
            c.must(as_json(&tool.arguments).is_some() && as_json(&tool.arguments) == as_json(arguments), || {
                format!("the arguments of `{id}` are `{}`", tool.arguments)
            });
        }
    }
}

/// A normal end with one of these reasons, and nobody else was asked.
pub(super) fn finish(evidence: &Evidence, c: &mut Checks, reasons: &[&str]) {
    by_first(evidence, c, &words(3));
    for step in &evidence.steps {
        let finishes = &step.reading.finishes;
        let is_said = finishes.last().is_some_and(|finish| reasons.contains(&finish.as_str()));
        c.must(is_said, || format!("the finish reason is {finishes:?}, not one of {reasons:?}"));
    }
}

/// A whole answer from the other target; else an honest error.
pub(super) fn recovered(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        c.must(step.calls_of(Target::First) > 0, || "the first target was never asked".to_owned());
        let mut answered = Checks::default();
        whole_step(step, &mut answered, "from the other one");
        if answered.verdict() == Verdict::Pass {
            c.must(step.calls_of(Target::Second) == 1, || "the second target's answer was made twice".to_owned());
            continue;
        }
        honest_error(step, c, "no other target is asked");
    }
}

/// An error that nobody can take for an answer; anything else is a failure.
fn honest_error(step: &Step, c: &mut Checks, why: &str) {
    let (reading, transcript) = (&step.reading, &step.transcript);
    match transcript.status {
        Some(status @ 400..) => {
            c.must(reading.errors.len() == 1, || format!("the body of a {status} is no error of this API"));
            c.differ(format!("{why}; the client gets {status}"));
        }
        Some(_) if reading.terminals > 0 || !reading.finishes.is_empty() => {
            c.fail("a failed call is told as a complete answer");
        }
        Some(_) if reading.errors.len() == 1 => {
            well_formed(step, c);
            c.differ(format!("{why}; the error comes inside a 200"));
        }
        Some(_) => end_without_a_word(step, c),
        None => c.fail(format!("no answer: {:?}", transcript.end)),
    }
}

/// A stream that is neither whole nor says that it is not.
fn end_without_a_word(step: &Step, c: &mut Checks) {
    match &step.transcript.end {
        End::Whole => c.fail("the stream ends without an end and without an error: SDKs take it for complete"),
        End::Broken(_) => c.differ("no error event; only the broken connection tells"),
        End::TimedOut => c.fail(format!("nothing came for {} ms", step.transcript.ended_ms)),
        End::Left | End::NoAnswer(_) => c.fail(format!("{:?}", step.transcript.end)),
    }
}

/// A status that an SDK raises on, in the client's own envelope, before any stream.
pub(super) fn true_status(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        let (reading, transcript) = (&step.reading, &step.transcript);
        match transcript.status {
            Some(429 | 500..) => {
                c.must(!reading.is_stream, || "an error status with a stream".to_owned());
                c.must(reading.errors.len() == 1, || "the body is no error of this API".to_owned());
            }
            Some(_) | None => honest_error(step, c, "the status does not tell"),
        }
        c.should(step.calls_of(Target::Second) > 0, || "the second target was never asked".to_owned());
    }
}

/// After a long silence the status may be out already; then the error event says that nothing was delivered.
pub(super) fn exhausted_late(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        match step.transcript.status {
            Some(200) => told_as_broken(evidence, step, c),
            Some(_) | None => honest_error(step, c, "the status was not out after a long silence"),
        }
        c.should(step.calls_of(Target::Second) > 0, || "the second target was never asked".to_owned());
    }
}

/// A whole answer from the first target, and signs of life before it: comments, or the API's own pings.
pub(super) fn kept_alive(evidence: &Evidence, c: &mut Checks) {
    by_first(evidence, c, &words(3));
    for step in &evidence.steps {
        c.should(step.reading.comments + step.reading.pings > 0, || {
            let first = step.transcript.pieces.first().map_or(0, |piece| piece.at_ms);
            format!("the connection was silent for {first} ms: load balancers cut it")
        });
    }
}

/// What comes behind an opening that no buffer holds: the client has the status by then, or another target answered.
pub(super) fn behind_the_bound(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        let mut answered = Checks::default();
        whole_step(step, &mut answered, "from the other one");
        match (answered.verdict(), step.transcript.status) {
            (Verdict::Pass, _) => {}
            (Verdict::Differs | Verdict::Fail, Some(200)) => broken_step(evidence, step, c),
            (Verdict::Differs | Verdict::Fail, _) => honest_error(step, c, "no other target is asked"),
        }
    }
}

pub(super) fn relayed_limit(evidence: &Evidence, c: &mut Checks) {
    true_status(evidence, c);
    for step in &evidence.steps {
        let transcript = &step.transcript;
        c.should(transcript.status == Some(429), || format!("the status is {:?}", transcript.status));
        c.should(transcript.header("retry-after").is_some(), || "the provider's retry-after is lost".to_owned());
    }
}

/// The provider's 400 is the client's.
pub(super) fn refused_by_provider(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        let (reading, transcript) = (&step.reading, &step.transcript);
        c.must(transcript.status == Some(400), || format!("the status is {:?}", transcript.status));
        c.must(reading.errors.len() == 1, || "the body is no error of this API".to_owned());
        c.must(step.calls_of(Target::Second) == 0, || "another target was asked with a wrong request".to_owned());
        c.should(step.calls.len() == 1, || format!("asked {} times", step.calls.len()));
    }
}

pub(super) fn not_again(evidence: &Evidence, c: &mut Checks) {
    true_status(evidence, c);
    for step in &evidence.steps {
        let told = step.transcript.header("x-should-retry");
        c.should(told == Some("false"), || "SDKs will send it again: `x-should-retry: false` is missing".to_owned());
    }
}

/// A refusal by the gateway itself: no provider hears of it.
pub(super) fn refused(evidence: &Evidence, c: &mut Checks, statuses: &[u16]) {
    for step in &evidence.steps {
        let (reading, status) = (&step.reading, step.transcript.status);
        c.must(step.calls.is_empty(), || format!("{} calls reached the provider", step.calls.len()));
        c.must(status.is_some_and(|status| statuses.contains(&status)), || format!("the status is {status:?}"));
        c.must(reading.errors.len() == 1 && !reading.is_stream, || "the body is no error of this API".to_owned());
    }
}

/// Exactly what came, then one error, and no sign of an end.
pub(super) fn broken(evidence: &Evidence, c: &mut Checks, chunks: usize) {
    for step in &evidence.steps {
        if !is_ok(step, c) {
            continue;
        }
        broken_step(evidence, step, c);
        let text = &step.reading.text;
        let expected = words(chunks);
        c.must(expected.starts_with(text.as_str()) || *text == expected, || {
            format!("the text is not a part of the answer: {}", difference(text, &expected))
        });
        c.should(*text == expected, || format!("{} of {} characters arrived", text.len(), expected.len()));
    }
}

fn broken_step(evidence: &Evidence, step: &Step, c: &mut Checks) {
    c.must(step.calls_of(Target::Second) == 0, || "another target was asked after content was out".to_owned());
    told_as_broken(evidence, step, c);
}

/// One error that says what an SDK and a person need, and no sign of an end.
fn told_as_broken(evidence: &Evidence, step: &Step, c: &mut Checks) {
    let reading = &step.reading;
    well_formed(step, c);
    c.must(reading.terminals == 0, || "a broken answer is told as complete".to_owned());
    c.must(reading.finishes.is_empty(), || format!("an invented finish reason: {:?}", reading.finishes));
    match reading.errors.as_slice() {
        [] => end_without_a_word(step, c),
        [error] => {
            let is = |field: &str| error.get(field).is_some_and(|value| !value.is_null());
            c.should(error.get("incomplete") == Some(&Value::Bool(true)), || {
                "the error does not say `incomplete: true`".to_owned()
            });
            c.should(is("reason"), || "the error does not say its `reason`".to_owned());
            let told = error.get("chunks_delivered").and_then(Value::as_u64);
            let expected = u64::try_from(reading.pieces).ok();
            c.should(told == expected, || format!("`chunks_delivered` is {told:?}, and {expected:?} came"));
            c.must(
                evidence.pair.client != ClientApi::Chat || error.get("message").is_some_and(Value::is_string),
                || "older SDKs raise only on an error with a message".to_owned(),
            );
        }
        several => c.fail(format!("{} errors", several.len())),
    }
}

/// Another target went on, and the client can see where; or nobody did, and the client is told.
pub(super) fn continued(evidence: &Evidence, c: &mut Checks, chunks: usize) {
    for step in &evidence.steps {
        if step.calls_of(Target::Second) == 0 {
            c.differ("nobody goes on with a broken stream");
            if is_ok(step, c) {
                broken_step(evidence, step, c);
            }
            continue;
        }
        whole_step(step, c, &(words(chunks) + "from the other one"));
        let body = String::from_utf8_lossy(&step.transcript.body()).into_owned();
        c.must(body.contains("continuation"), || "two answers are spliced: nothing marks the seam".to_owned());
    }
}

/// The same where the answer was a tool call.
pub(super) fn broken_call(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        if !is_ok(step, c) {
            continue;
        }
        broken_step(evidence, step, c);
        c.should(step.reading.tools.len() == 1, || format!("{} tool calls were begun", step.reading.tools.len()));
    }
}

/// The same bytes in other reads are the same to the client.
pub(super) fn same_twice(evidence: &Evidence, c: &mut Checks) {
    let seen: Vec<_> = evidence
        .steps
        .iter()
        .map(|step| (step.reading.text.clone(), step.reading.errors.len(), step.reading.terminals))
        .collect();
    c.must(seen.windows(2).all(|pair| pair[0] == pair[1]), || {
        format!("how reads fell decides what the client gets: {seen:?}")
    });
    for step in &evidence.steps {
        let reading = &step.reading;
        c.must(
            reading.text.is_empty() || !reading.text.contains("the other") || reading.text == "from the other one",
            || "two answers were spliced".to_owned(),
        );
        well_formed(step, c);
        if reading.text == "from the other one" {
            c.differ("the first content is held back for the error that follows it");
        } else if is_ok(step, c) {
            broken_step(evidence, step, c);
        }
    }
}

/// The client runs a tool only in a turn that is whole, and sends what it stored.
pub(super) fn agent(evidence: &Evidence, c: &mut Checks) {
    let [call, failed, again] = evidence.steps.as_slice() else { return c.fail("the three turns were not played") };
    let mut runs = 0;
    whole_step(call, c, "");
    let is_whole = |step: &Step| !step.reading.finishes.is_empty() && step.reading.errors.is_empty();
    runs += if is_whole(call) { call.reading.tools.len() } else { 0 };
    if is_ok(failed, c) {
        broken_step(evidence, failed, c);
    }
    runs += if is_whole(failed) { failed.reading.tools.len() } else { 0 };
    whole_step(again, c, &words(4));
    runs += if is_whole(again) { again.reading.tools.len() } else { 0 };
    c.must(runs == 1, || format!("a careful client would have run the tool {runs} times"));
    for step in [failed, again] {
        let is_told = step.calls.iter().all(|call| call.body.contains(RESULT));
        c.must(is_told, || "the tool's result did not reach the provider".to_owned());
    }
}

/// The provider's work ends soon after the client has left, and nothing else begins.
pub(super) fn left(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        c.must(step.transcript.end == End::Left, || format!("the stream ended by itself: {:?}", step.transcript.end));
        c.must(step.calls.len() == 1, || format!("{} calls for a client that left", step.calls.len()));
        for call in &step.calls {
            if call.state == "running" || call.outlived_ms > 1_000 {
                c.differ(format!("the provider went on for {} ms or longer: somebody pays", call.outlived_ms));
            }
        }
    }
}

/// Twice the same, of one call.
pub(super) fn replayed(evidence: &Evidence, c: &mut Checks) {
    let [first, second] = evidence.steps.as_slice() else { return c.fail("the two requests were not sent") };
    whole_step(first, c, &words(4));
    match (second.transcript.status, second.calls.len()) {
        (Some(200), 0) => {
            let (first, second) = (first.transcript.body(), second.transcript.body());
            c.must(first == second, || "the second answer has other bytes than the first".to_owned());
        }
        (Some(status @ 409..=422), 0) => c.differ(format!("the second request is refused with {status}")),
        (_, calls) => c.differ(format!("`Idempotency-Key` is ignored: {calls} calls more, and a second bill")),
    }
}

pub(super) fn failed_response(evidence: &Evidence, c: &mut Checks) {
    for step in &evidence.steps {
        let reading = &step.reading;
        is_ok(step, c);
        well_formed(step, c);
        c.must(reading.errors.len() == 1 && reading.terminals == 0, || {
            "a failed response is told as another".to_owned()
        });
    }
}

#[cfg(test)]
#[path = "expect_tests.rs"]
mod tests;
