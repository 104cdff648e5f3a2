//! One target a reader. Each states what must hold for any bytes.

#![cfg(test)]

mod answer;
mod carried;
mod events;
mod growth;
mod request;
mod segment;
mod stream;
mod translator;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;
use weir_fuzz::Random;

/// Words of JSON and of the API, for requests and answers alike.
const WORDS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\\\"",
    b"null",
    b"true",
    b"false",
    b"0",
    b"-1",
    b"1e30",
    b"1.5",
    b"18446744073709551616",
    b"4294967295",
    b"128",
    b" ",
    b"\n",
    b"\t",
    b"\xEF\xBB\xBF",
    b"\xff",
    b"\"model\":",
    b"\"messages\":",
    b"\"max_tokens\":",
    b"\"max_completion_tokens\":",
    b"\"n\":",
    b"\"stream\":true,",
    b"\"stream_options\":",
    b"{\"include_usage\":true}",
    b"\"metadata\":",
    b"\"role\":\"developer\"",
    b"\"content\":",
    b"\"image_url\":",
    b"\"url\":\"data:image/png;base64,",
    b"\"tools\":",
    b"\"user\":",
    b"\"store\":",
    b"\"id\":",
    b"\"choices\":",
    b"\"delta\":",
    b"\"index\":",
    b"\"finish_reason\":\"stop\"",
    b"\"usage\":",
    b"\"prompt_tokens\":",
    b"\"completion_tokens\":",
    b"\"total_tokens\":",
    b"\"error\":",
    b"\"code\":",
    b"[DONE]",
    b"data: ",
    b"data:",
    b"event: error",
    b"id: 1",
    b"retry: 5",
    b": comment",
    b"\n\n",
    b"\r\n\r\n",
    b"\r",
    b"\r\n",
    b"\"reasoning\":",
    b"\"tool_calls\":",
    b"\"service_tier\":",
    b"\"prompt_tokens_details\":{\"cached_tokens\":",
    b"event: content_block_delta",
    b"\"type\":\"message_start\"",
    b"\"type\":\"content_block_start\"",
    b"\"type\":\"content_block_stop\"",
    b"\"type\":\"message_delta\"",
    b"\"type\":\"message_stop\"",
    b"\"type\":\"response.completed\"",
    b"\"type\":\"tool_use\"",
    b"\"type\":\"tool_result\"",
    b"\"type\":\"thinking\"",
    b"\"type\":\"text\"",
    b"\"signature\":",
    b"\"thinking\":",
    b"\"partial_json\":",
    b"\"stop_reason\":\"end_turn\"",
    b"\"input_tokens\":",
    b"\"output_tokens\":",
    b"\"input\":{}",
    b"\"arguments\":\"{}\"",
    b"\"role\":\"tool\"",
    b"\"system\":",
    b"\"cache_control\":",
    b"\"reasoning_details\":[",
    b"\"previous_response_id\":",
];

/// The members of a JSON object as they were written, by an independent reader. `None` when it reads no object, or when
/// it is stricter about names than the format is.
fn members(bytes: &[u8]) -> Option<BTreeMap<String, Box<RawValue>>> {
    serde_json::from_slice(bytes).ok()
}

/// Whether an independent reader takes `bytes` for one JSON value, whatever is in it.
fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok()
}

/// The peak of this process's resident memory, in MiB: no input may make a reader take more than it was given.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// The input as reads may cut it.
fn pieces(input: &[u8], random: &mut Random) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let mut rest = input;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(1 + random.below(rest.len().min(64)));
        pieces.push(Bytes::copy_from_slice(piece));
        rest = after;
    }
    pieces
}
