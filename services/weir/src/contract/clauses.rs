//! The clauses, as data: what is asked, what goes wrong at the provider, what must hold.
//!
//! Each clause has two models of its own at the provider, `contract-<clause>-<pair>` and the same with `-b`, so that a
//! gateway that leaves a broken deployment alone does not spoil the next clause. A script is queued for each, often
//! enough that a gateway which asks again meets the same fault again. Where the sources number a case, its number stands
//! in `source`.

use super::evidence::Evidence;
use super::expect;
use super::pair::{ClientApi, Pair, ProviderApi};
use super::requests::{Ask, Key, Model};
use super::verdict::Checks;

/// One clause of the contract.
#[derive(Debug, Clone, Copy)]
pub struct Clause {
    /// Stable; also a part of its models' names.
    pub id: &'static str,
    /// What must hold.
    pub title: &'static str,
    /// What goes wrong.
    pub injected: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    pub(super) steps: &'static [Step],
    pub(super) expect: fn(&Evidence, &mut Checks),
    pub(super) applies: fn(Pair) -> bool,
}

impl Clause {
    /// What the gateway under test must be told about its models.
    pub(super) fn policy(&self) -> Policy {
        Policy::of(self.id)
    }
}

/// How a clause's models are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Policy {
    /// The wait for the first content, seconds.
    pub first_content_s: u32,
    /// The wait for the next bytes, seconds; an opening without content begins it too.
    pub idle_s: u32,
    /// Whether another target may go on with a broken stream.
    pub goes_on: bool,
}

impl Policy {
    pub const USUAL: Self = Self { first_content_s: 2, idle_s: 1, goes_on: false };

    /// Silence before content gets its status and signs of life after three seconds: two waits of one end before, two of
    /// two after it, and one of ten is long enough for some.
    fn of(clause: &str) -> Self {
        match clause {
            "silent-exhausted" => Self { first_content_s: 1, ..Self::USUAL },
            "late-exhausted" => Self { idle_s: 2, ..Self::USUAL },
            "keep-alive" => Self { first_content_s: 10, idle_s: 10, ..Self::USUAL },
            "continued" => Self { goes_on: true, ..Self::USUAL },
            _ => Self::USUAL,
        }
    }
}

/// One request, and the scripts that both models play meanwhile, as TOML.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub ask: Ask,
    pub first: &'static str,
    pub second: &'static str,
}

/// What the second model says when all is well.
const OTHER: &str = "text = 'from the other one'\nchunks = 2\nusage = { prompt = 9, completion = 4 }";

const fn step(ask: Ask, first: &'static str) -> [Step; 1] {
    [Step { ask, first, second: OTHER }]
}

const fn both(ask: Ask, script: &'static str) -> [Step; 1] {
    [Step { ask, first: script, second: script }]
}

fn everywhere(_: Pair) -> bool {
    true
}

fn of_openai(pair: Pair) -> bool {
    pair.provider == ProviderApi::OpenAi && pair.client != ClientApi::Responses
}

fn not_responses(pair: Pair) -> bool {
    pair.client != ClientApi::Responses
}

fn of_anthropic(pair: Pair) -> bool {
    pair.provider == ProviderApi::Anthropic
}

fn of_responses(pair: Pair) -> bool {
    pair.client == ClientApi::Responses
}

/// The clause of this name.
#[must_use]
pub fn find(id: &str) -> Option<&'static Clause> {
    ALL.iter().find(|clause| clause.id == id)
}

macro_rules! clauses {
    ($($id:literal, $title:literal, $injected:literal, $source:literal, $steps:expr, $expect:expr, $applies:expr;)*) => {
        /// All of them, in the order of an answer's life.
        pub const ALL: &[Clause] = &[$(Clause {
            id: $id, title: $title, injected: $injected, source: $source,
            steps: &$steps, expect: $expect, applies: $applies,
        },)*];
    };
}

clauses! {
    // What must hold when nothing goes wrong, or nothing that matters.
    "whole", "a whole stream arrives whole, with one end", "nothing", "basis",
        step(Ask::STREAM, "chunks = 40"), |e, c| expect::whole(e, c, &expect::words(40)), everywhere;
    "whole-plain", "a plain answer arrives whole", "nothing", "basis",
        step(Ask::PLAIN, "chunks = 40"), |e, c| expect::whole(e, c, &expect::words(40)), everywhere;
    "usage", "usage arrives as the provider told it", "nothing", "O13, O15",
        step(Ask { usage: true, ..Ask::STREAM }, "usage = { prompt = 120, completion = 50, cached = 20 }"),
        |e, c| expect::usage(e, c, 120, 50), everywhere;
    "tools", "parallel tool calls arrive as two, with whole arguments", "nothing", "O24, O28",
        step(Ask::WITH_TOOLS, TWO_CALLS), expect::two_calls, everywhere;
    "characters", "a character that is cut between two reads is not damaged", "writes of 41 bytes", "O01",
        step(Ask::STREAM, CUT_CHARACTERS), |e, c| expect::whole(e, c, CHARACTERS), everywhere;
    "line-ends", "CRLF cut between two reads is one line end", "CRLF, writes of 97 bytes", "O02",
        step(Ask::STREAM, "chunks = 90\nline_end = 'crlf'\nwrite_bytes = 97"),
        |e, c| expect::whole(e, c, &expect::words(90)), everywhere;
    "bare-cr", "a bare CR ends a line", "CR, writes of 97 bytes", "O02",
        step(Ask::STREAM, "chunks = 90\nline_end = 'cr'\nwrite_bytes = 97"),
        |e, c| expect::whole(e, c, &expect::words(90)), everywhere;
    "large-event", "an event of a megabyte arrives whole", "one content event of 1 MB", "O05",
        step(Ask::STREAM, "chunks = 1\nchunk_bytes = 1000000"),
        expect::large, everywhere;
    "no-sentinel", "an answer that finished is whole although [DONE] is missing", "the end without [DONE]", "O08",
        step(Ask::STREAM, "chunks = 3\ndone = false"), |e, c| expect::whole(e, c, &expect::words(3)), of_openai;
    "length", "an answer that reached its cap says so", "the provider's stop for length", "O29",
        [Step { ask: Ask::STREAM, first: "chunks = 3\nfinish_reason = 'length'", second: OTHER }],
        |e, c| expect::finish(e, c, &["length", "max_tokens"]), of_openai;
    "refusal", "a provider's refusal passes as what it is", "the stop reason `refusal`", "seed: content policy; O29",
        step(Ask::STREAM, "chunks = 3\nfinish_reason = 'refusal'"),
        |e, c| expect::finish(e, c, &["content_filter", "refusal"]), of_anthropic;
    "filtered", "a provider's content filter passes as what it is", "the finish reason `content_filter`",
        "seed: content policy", step(Ask::STREAM, "chunks = 3\nfinish_reason = 'content_filter'"),
        |e, c| expect::finish(e, c, &["content_filter", "refusal"]), of_openai;

    // Before content: whoever can still choose, chooses without the client's knowledge.
    "unavailable", "a provider that is overloaded is replaced", "503 before headers", "seed: pre-stream failure",
        step(Ask::STREAM, "status = 503"), expect::recovered, everywhere;
    "unavailable-plain", "the same without a stream", "503", "seed: pre-stream failure",
        step(Ask::PLAIN, "status = 503"), expect::recovered, everywhere;
    "connection-lost", "a provider that resets the connection is replaced", "a reset instead of an answer",
        "seed: pre-stream failure", step(Ask::STREAM, "refuse = 'reset'"), expect::recovered, everywhere;
    "exhausted", "nobody left is a true HTTP status", "503 from both", "seed: pre-stream failure",
        both(Ask::STREAM, "status = 503"), expect::true_status, everywhere;
    "provider-limit", "a provider's limit is told with its wait", "429 with retry-after from both", "issue: statuses",
        both(Ask::STREAM, "status = 429\nheaders = { retry-after = '7' }"), expect::relayed_limit, everywhere;
    "bad-request", "a request that the provider refuses is not tried elsewhere", "400", "O06",
        step(Ask::STREAM, "status = 400"), expect::refused_by_provider, everywhere;
    "not-again", "a 504 that may have cost money is not to be retried", "504 from both", "wire: SDKs retry",
        both(Ask::PLAIN, "status = 504"), expect::not_again, everywhere;
    "opening-close", "headers and an opening, then the end, is no answer", "200, opening, a clean close",
        "seed: headers, then nothing", step(Ask::STREAM, "fault = { kind = 'close' }"), expect::recovered, everywhere;
    "opening-reset", "the same with a reset", "200, opening, a reset", "O09",
        step(Ask::STREAM, "fault = { kind = 'reset' }"), expect::recovered, everywhere;
    "opening-stall", "the same with silence: the wait for content has a bound", "200, opening, silence",
        "issue: first-content budget", step(Ask::STREAM, "fault = { kind = 'stall' }"), expect::recovered, everywhere;
    "opening-error", "an error inside the 200, before content, is like one before it", "200, an error event", "O06",
        step(Ask::STREAM, "fault = { kind = 'error' }"), expect::recovered, everywhere;
    "opening-exhausted", "the same at both is a true HTTP status", "200, an error event, from both", "O06",
        both(Ask::STREAM, "fault = { kind = 'error' }"), expect::true_status, everywhere;
    "silent-exhausted", "nobody left after a short silence is still a true HTTP status",
        "200, opening, silence, from both", "issue: two boundaries", both(Ask::STREAM, "fault = { kind = 'stall' }"),
        expect::true_status, everywhere;
    "late-exhausted", "nobody left after a long silence is an error event with nothing delivered",
        "200, opening, silence, from both, beyond the wait for a status", "issue: two boundaries",
        both(Ask::STREAM, "fault = { kind = 'stall' }"), expect::exhausted_late, everywhere;
    "keep-alive", "a connection that waits for content is kept alive in words that decoders skip",
        "4.5 s until the first content", "issue: a silent minute; O04",
        step(Ask::STREAM, "chunks = 3\nbefore_content_ms = 4500"), expect::kept_alive, everywhere;
    "long-opening", "an opening that is longer than any buffer is no answer lost", "400 empty events, then content",
        "issue: bound of what is held back", step(Ask::STREAM, LONG_OPENING),
        |e, c| expect::by_first(e, c, &expect::words(1)), of_openai;
    "long-opening-error", "an error behind it is a fallback or an error event, never an end",
        "400 empty events, then an error event", "issue: bound of what is held back",
        step(Ask::STREAM, LONG_OPENING_ERROR), expect::behind_the_bound, of_openai;
    "comments", "comments are neither content nor data", "comments before the first content", "O03",
        step(Ask::STREAM, "chunks = 3\nbefore_content_ms = 300\ncomments = [{ text = 'PROCESSING' }, { text = '' }]"),
        |e, c| expect::by_first(e, c, &expect::words(3)), everywhere;
    "slow-first", "a slow preferred target is not overtaken", "600 ms until the first content",
        "issue: tiers in order", step(Ask::STREAM, "chunks = 3\nbefore_content_ms = 600"),
        |e, c| expect::by_first(e, c, &expect::words(3)), everywhere;

    // After content: the client owns the failure, and is told.
    "mid-reset", "a broken stream says so and is not continued", "17 of 40 chunks, a reset", "O11; s05",
        step(Ask::STREAM, "chunks = 40\nfault = { kind = 'reset', after_chunks = 17 }"),
        |e, c| expect::broken(e, c, 17), everywhere;
    "mid-cut", "the same where the connection closes", "17 of 40 chunks, the body is cut off", "seed: mid-stream",
        step(Ask::STREAM, "chunks = 40\nfault = { kind = 'cut', after_chunks = 17 }"),
        |e, c| expect::broken(e, c, 17), everywhere;
    "mid-close", "a clean close without a finish is no end", "17 of 40 chunks, a clean close", "O07",
        step(Ask::STREAM, "chunks = 40\nfault = { kind = 'close', after_chunks = 17 }"),
        |e, c| expect::broken(e, c, 17), everywhere;
    "mid-stall", "silence has a bound", "17 of 40 chunks, silence", "issue: idle timeout",
        step(Ask::STREAM, "chunks = 40\nfault = { kind = 'stall', after_chunks = 17 }"),
        |e, c| expect::broken(e, c, 17), everywhere;
    "mid-error", "an error event after content is relayed as one", "17 of 40 chunks, an error event", "O10",
        step(Ask::STREAM, "chunks = 40\nfault = { kind = 'error', after_chunks = 17 }"),
        |e, c| expect::broken(e, c, 17), everywhere;
    "mid-garbage", "bytes that are no event do not reach the client", "17 of 40 chunks, garbage", "O07",
        step(Ask::STREAM, "chunks = 40\nfault = { kind = 'garbage', after_chunks = 17 }"),
        |e, c| expect::broken(e, c, 17), everywhere;
    "unfinished", "all content without the finish is not whole", "all chunks, a clean close before the finish", "O07",
        step(Ask::STREAM, "chunks = 5\nfault = { kind = 'close', after_chunks = 5 }"),
        |e, c| expect::broken(e, c, 5), everywhere;
    "coalesced", "what counts is bytes, not reads", "content and an error in one write, then in several", "O10",
        [
            Step { ask: Ask::STREAM, first: ONE_WRITE, second: OTHER },
            Step { ask: Ask::STREAM, first: SEVERAL_WRITES, second: OTHER },
        ],
        expect::same_twice, everywhere;
    "continued", "whoever goes on with a broken stream says where, and ends it once",
        "17 of 40 chunks, a reset; another target may go on", "seed: continuation; O12",
        step(Ask::STREAM, "chunks = 40\nfault = { kind = 'reset', after_chunks = 17 }"),
        |e, c| expect::continued(e, c, 17), not_responses;
    "tool-cut", "half a tool call is no tool call", "a cut within the arguments", "seed: partial tool call",
        step(Ask::WITH_TOOLS, HALF_A_CALL), |e, c| expect::broken_call(e, c), everywhere;
    "tool-unfinished", "whole arguments without the finish are not to be run", "all arguments, a clean close",
        "seed: partial tool call", step(Ask::WITH_TOOLS, CALL_WITHOUT_FINISH),
        |e, c| expect::broken_call(e, c), everywhere;
    "agent", "a tool that ran is not run again: its stored result is sent again",
        "a tool call, then a broken turn, then the turn again", "seed: side effect, then failure",
        [
            Step { ask: Ask::WITH_TOOLS, first: ONE_CALL, second: OTHER },
            Step {
                ask: Ask { with_result: true, ..Ask::WITH_TOOLS },
                first: "chunks = 9\nfault = { kind = 'reset', after_chunks = 4 }",
                second: OTHER,
            },
            Step { ask: Ask { with_result: true, ..Ask::WITH_TOOLS }, first: "chunks = 4", second: "chunks = 4" },
        ],
        expect::agent, everywhere;

    // Refusals by the gateway, and clients that leave.
    "unknown-key", "a key that nobody was given opens nothing", "an unknown key", "seed: policy refusal; I1",
        step(Ask { key: Key::Unknown, ..Ask::STREAM }, "chunks = 3"),
        |e, c| expect::refused(e, c, &[401, 403]), everywhere;
    "refused-model", "a model that is not offered is refused, and nobody else is asked", "a model that is not offered",
        "seed: policy refusal; I1", step(Ask { model: Model::Refused, ..Ask::STREAM }, "chunks = 3"),
        |e, c| expect::refused(e, c, &[400, 401, 403, 404]), everywhere;
    "leave", "who leaves is not billed for long, and nothing starts for them", "the client leaves a slow stream",
        "issue: abandoned attempts", step(Ask { leave_at: Some("word2"), ..Ask::STREAM }, "chunks = 400\ngap_ms = 50"),
        expect::left, everywhere;
    "idempotent", "the same key is answered with the same bytes, for one call", "nothing; the request is sent twice",
        "issue: idempotency",
        [
            Step { ask: Ask { idempotent: true, ..Ask::STREAM }, first: "chunks = 4", second: OTHER },
            Step { ask: Ask { idempotent: true, ..Ask::STREAM }, first: "chunks = 4", second: OTHER },
        ],
        expect::replayed, not_responses;
    "failed-response", "a response that failed ends as failed", "the terminal event `response.failed`", "wire: 1.5",
        step(Ask::STREAM, "chunks = 3\nfinish_reason = 'failed'"), expect::failed_response, of_responses;
}

macro_rules! characters {
    () => {
        concat!(
            "中文字符不可以被切開這裡有很多漢字所以總會有一個被切成兩半",
            "中文字符不可以被切開這裡有很多漢字所以總會有一個被切成兩半",
            "中文字符不可以被切開這裡有很多漢字所以總會有一個被切成兩半",
            "中文字符不可以被切開這裡有很多漢字所以總會有一個被切成兩半",
        )
    };
}
/// Characters of three bytes, and at least two cuts in each chunk, 41 bytes apart: not both are between characters.
const CHARACTERS: &str = characters!();
const CUT_CHARACTERS: &str = concat!("text = '", characters!(), "'\nchunks = 4\nwrite_bytes = 41");
const TWO_CALLS: &str = r#"
tool_calls = [
    { name = "weather", arguments = '{"city":"Köln"}', id = "call_a", fragments = 3 },
    { name = "weather", arguments = '{"city":"Bonn","days":2}', id = "call_b", fragments = 4 },
]"#;
const ONE_CALL: &str = r#"tool_calls = [{ name = "weather", arguments = '{"city":"Köln"}', fragments = 3 }]"#;
const HALF_A_CALL: &str = r#"
tool_calls = [{ name = "weather", arguments = '{"city":"Köln","days":[1,2,3]}', fragments = 6 }]
fault = { kind = "cut", after_chunks = 4 }"#;
const CALL_WITHOUT_FINISH: &str = r#"
tool_calls = [{ name = "weather", arguments = '{"city":"Köln"}', fragments = 3 }]
fault = { kind = "close", after_chunks = 4 }"#;
macro_rules! empty_events {
    (1) => {
        "data: {\"id\":\"o\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":null}]}\n\n"
    };
    (5) => {
        concat!(empty_events!(1), empty_events!(1), empty_events!(1), empty_events!(1), empty_events!(1))
    };
    (20) => {
        concat!(empty_events!(5), empty_events!(5), empty_events!(5), empty_events!(5))
    };
    (80) => {
        concat!(empty_events!(20), empty_events!(20), empty_events!(20), empty_events!(20))
    };
    () => {
        concat!(empty_events!(80), empty_events!(80), empty_events!(80), empty_events!(80), empty_events!(80))
    };
}
const LONG_OPENING: &str = concat!(
    "raw = '''\n",
    empty_events!(),
    r#"data: {"id":"o","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"word0 "},"finish_reason":null}]}

data: {"id":"o","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

'''"#
);
const LONG_OPENING_ERROR: &str = concat!(
    "raw = '''\n",
    empty_events!(),
    r#"data: {"error":{"message":"no more","type":"server_error","code":"server_error"}}

'''"#
);
const ONE_WRITE: &str = "chunks = 9\ntogether = true\nfault = { kind = 'error', after_chunks = 1 }";
const SEVERAL_WRITES: &str = "chunks = 9\ngap_ms = 50\nfault = { kind = 'error', after_chunks = 1 }";

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use weir_stub::script::Script;

    use super::*;

    #[test]
    fn names_are_unique_and_every_script_can_be_played() {
        let ids: HashSet<_> = ALL.iter().map(|clause| clause.id).collect();
        assert_eq!(ids.len(), ALL.len());
        for clause in ALL {
            assert!(Pair::ALL.into_iter().any(clause.applies), "{} is never run", clause.id);
            for step in clause.steps {
                for script in [step.first, step.second] {
                    let parsed: Result<Script, _> = toml::from_str(script);
                    assert!(parsed.is_ok(), "{}: {script}: {parsed:?}", clause.id);
                }
            }
        }
    }
}
