//! Acts without sockets: every position of a fault, and what must not change the bytes.

use bytes::Bytes;
use proptest::prelude::*;

use super::{Act, Player};
use crate::dialect::{Answer, Asked, Figures, for_path};
use crate::script::{Fault, FaultKind, Prepared, Script, ToolCall};

fn answer(script: Script, include_usage: bool) -> Answer {
    let choices = script.n.unwrap_or(1);
    let chunks = script.chunks;
    let asked = Asked { model: "m".to_owned(), stream: true, include_usage, ..Asked::default() };
    let prepared = Prepared::new(script).unwrap();
    let figures = Figures { prompt: 1, completion: 2, ..Figures::default() };
    Answer { asked, prepared, id: "x".to_owned(), created: 0, choices, chunks, capped: false, figures }
}

struct Played {
    bytes: Vec<u8>,
    chunks: u64,
    whole_chunks: u64,
    last: Act,
}

const CHAT: &str = "/v1/chat/completions";

fn play_as(path: &str, script: Script, include_usage: bool) -> Played {
    let dialect = for_path(path).unwrap();
    let mut answer = answer(script, include_usage);
    answer.choices = answer.choices.min(dialect.max_choices());
    let mut player = Player::stream(answer, dialect);
    let (mut bytes, mut chunks) = (Vec::new(), 0);
    let whole_chunks = player.whole_chunks();
    loop {
        match player.next() {
            Act::Write { bytes: written, chunks: carried } => {
                bytes.extend_from_slice(&written);
                chunks += carried;
            }
            Act::WaitMs(_) | Act::Flush => {}
            last @ (Act::End { .. } | Act::Reset | Act::Cut | Act::Stall) => {
                return Played { bytes, chunks, whole_chunks, last };
            }
        }
    }
}

fn fault(kind: FaultKind, after_chunks: usize, after_bytes: Option<usize>) -> Option<Fault> {
    Some(Fault { kind, after_chunks, after_bytes, code: None, message: None, bytes: None })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_stream_is_the_same_however_it_is_cut_and_a_fault_leaves_a_prefix(
        chunks in 0_usize..6, n in 1_usize..4, fragments in prop::collection::vec(0_usize..4, 0..3),
        include_usage: bool, role_chunk: bool, write_bytes in 1_usize..50, at in 0_usize..3000, thinks: bool,
        path in prop::sample::select(vec![CHAT, "/v1/messages", "/v1/responses"]),
    ) {
        let play = |script, include_usage| play_as(path, script, include_usage);
        let call = |fragments| ToolCall { name: "f".to_owned(), arguments: "{\"k\": [1, 2]}".to_owned(), id: None, fragments };
        let tool_calls = fragments.into_iter().map(call).collect();
        let thinking = thinks.then(|| "let me see".to_owned());
        let script = Script { chunks, n: Some(n), tool_calls, role_chunk, thinking, ..Script::default() };
        let whole = play(script.clone(), include_usage);
        prop_assert_eq!(whole.chunks, whole.whole_chunks);
        prop_assert_eq!(whole.last, Act::End { early: false });

        let cut = play(Script { write_bytes: Some(write_bytes), gap_ms: 5, ..script.clone() }, include_usage);
        prop_assert_eq!((&cut.bytes, cut.chunks), (&whole.bytes, whole.chunks));

        let at = at.min(whole.bytes.len());
        let struck = play(Script { fault: fault(FaultKind::Reset, 0, Some(at)), ..script.clone() }, include_usage);
        prop_assert_eq!(&struck.bytes, &whole.bytes[..at]);
        prop_assert_eq!(struck.last, Act::Reset);
        prop_assert!(struck.chunks <= whole.chunks);

        for after in 0..=usize::try_from(whole.chunks).unwrap() {
            let struck = play(Script { fault: fault(FaultKind::Stall, after, None), ..script.clone() }, include_usage);
            prop_assert_eq!(struck.chunks, u64::try_from(after).unwrap());
            prop_assert!(whole.bytes.starts_with(&struck.bytes) && struck.bytes.len() < whole.bytes.len());
        }
    }
}

#[test]
fn a_ready_body_promises_its_length_only_where_nothing_follows_it() {
    let body = Bytes::from_static(b"0123456789");
    let promised = |script: Script| {
        let mut answer = answer(script, false);
        answer.asked.stream = false;
        Player::ready(answer, for_path(CHAT).unwrap(), vec![body.clone()]).content_length()
    };
    assert_eq!(promised(Script::default()), Some(10));
    assert_eq!(promised(Script { hold_open_ms: 1, ..Script::default() }), None);
    assert_eq!(promised(Script { gzip: true, ..Script::default() }), None);
    assert_eq!(promised(Script { fault: fault(FaultKind::Cut, 0, Some(9)), ..Script::default() }), Some(10));
    assert_eq!(promised(Script { fault: fault(FaultKind::Cut, 0, Some(10)), ..Script::default() }), None);
    assert_eq!(promised(Script { fault: fault(FaultKind::Cut, 1, None), ..Script::default() }), None);
}
