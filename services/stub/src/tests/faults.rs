//! What goes wrong, and what the client sees of it: nothing is delivered beyond the fault.

use std::io::ErrorKind;

use serde_json::json;

use super::{Client, PLAIN, STREAM, ask, client::Answer, ended, stub};
use crate::journal::{Billed, Entry, State};

/// The answer to a stream of four chunks with a fault, and the journal's entry.
async fn struck(fault: &str) -> (Answer, Entry) {
    let stub = stub(&format!("chunks = 4\nusage = {{ prompt = 100, completion = 8 }}\nfault = {{ {fault} }}"));
    let answer = ask(&stub, STREAM).await;
    (answer, ended(&stub).await)
}

#[tokio::test]
async fn a_reset_comes_after_exactly_the_chunks_before_it() {
    let (answer, entry) = struck("kind = 'reset', after_chunks = 2").await;
    assert_eq!((answer.ended, answer.content().as_str()), (Some(ErrorKind::ConnectionReset), "word0 word1 "));
    assert_eq!((entry.state, entry.chunks_written), (State::Broken, 2));
    assert_eq!(entry.billed, Some(Billed { prompt: 100, completion: 4, ..Billed::default() }));
}

#[tokio::test]
async fn after_no_chunk_the_role_was_still_sent() {
    let (answer, entry) = struck("kind = 'reset'").await;
    let (events, _) = answer.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["choices"][0]["delta"]["role"], json!("assistant"));
    assert_eq!((answer.ended, entry.billed.unwrap().completion), (Some(ErrorKind::ConnectionReset), 0));
}

#[tokio::test]
async fn a_cut_an_early_close_an_error_and_garbage_end_differently() {
    let (cut, entry) = struck("kind = 'cut', after_chunks = 1").await;
    assert_eq!((cut.ended, cut.complete, cut.content().as_str()), (Some(ErrorKind::UnexpectedEof), false, "word0 "));
    assert_eq!(entry.state, State::Broken);

    let (close, entry) = struck("kind = 'close', after_chunks = 1").await;
    assert_eq!((close.complete, close.content().as_str(), close.events().1), (true, "word0 ", false));
    assert_eq!(entry.state, State::Broken);

    let (error, _) = struck("kind = 'error', after_chunks = 1, code = 'overloaded', message = 'gone'").await;
    let (events, done) = error.events();
    let expected = json!({"message": "gone", "type": "server_error", "param": null, "code": "overloaded"});
    assert_eq!((events.last().unwrap()["error"].clone(), done, error.complete), (expected, false, true));

    let (garbage, _) = struck("kind = 'garbage', after_chunks = 1").await;
    assert!(garbage.complete && garbage.bytes().ends_with(b"\xff\xfe not an event\n\n"));
}

#[tokio::test]
async fn a_fault_after_the_last_chunk_strikes_before_the_finish_and_a_later_one_after_the_end() {
    let (answer, entry) = struck("kind = 'cut', after_chunks = 4").await;
    assert!(!answer.text().contains("\"stop\"") && answer.content().ends_with("word3 "));
    assert_eq!(entry.billed.unwrap().completion, 8);
    let (answer, _) = struck("kind = 'reset', after_chunks = 99").await;
    assert!(answer.text().ends_with("[DONE]\n\n"));
    assert_eq!(answer.ended, Some(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn bytes_are_counted_exactly_in_streams_and_in_plain_answers() {
    let (whole, _) = struck("kind = 'close', after_chunks = 99").await;
    for after in [0, 1, 100, whole.bytes().len() - 1] {
        let (answer, _) = struck(&format!("kind = 'close', after_bytes = {after}")).await;
        assert_eq!(answer.bytes().len(), after);
    }
    for kind in ["reset", "cut", "close"] {
        let stub = stub(&format!("fault = {{ kind = '{kind}', after_bytes = 25 }}"));
        let answer = ask(&stub, PLAIN).await;
        assert_eq!((answer.bytes().len(), answer.complete), (25, false), "{kind}");
        assert_eq!(answer.ended.is_some_and(|kind| kind == ErrorKind::ConnectionReset), kind == "reset");
        let entry = ended(&stub).await;
        assert_eq!(
            (entry.state, entry.billed.unwrap().completion),
            (State::Broken, 3),
            "a plain answer was generated whole"
        );
    }
}

#[tokio::test]
async fn a_stall_ends_when_the_client_leaves_and_counts_as_cancelled() {
    let stub =
        stub("chunks = 4\nusage = { prompt = 10, completion = 4 }\nfault = { kind = 'stall', after_chunks = 3 }");
    let mut client = Client::connect(&stub).await;
    client.send("POST", "/v1/chat/completions", "", STREAM).await;
    client.read_until("word2").await;
    assert_eq!((stub.journal()[0].state, stub.totals().open), (State::Running, 1));
    drop(client);
    let entry = ended(&stub).await;
    assert_eq!((entry.state, entry.chunks_written), (State::Cancelled, 3));
    assert_eq!(entry.billed, Some(Billed { prompt: 10, completion: 3, ..Billed::default() }));
}

#[tokio::test]
async fn refusals_give_no_answer_at_all() {
    for (refuse, kind) in [("close", ErrorKind::UnexpectedEof), ("reset", ErrorKind::ConnectionReset)] {
        let stub = stub(&format!("refuse = '{refuse}'"));
        let answer = ask(&stub, PLAIN).await;
        assert_eq!((answer.status, answer.ended), (0, Some(kind)), "{refuse}");
        assert_eq!(ended(&stub).await.state, State::Broken);
    }
    let stub = stub("refuse = 'stall'");
    let mut client = Client::connect(&stub).await;
    client.send("POST", "/v1/chat/completions", "", PLAIN).await;
    super::until(|| stub.journal().first().filter(|entry| !entry.model.is_empty()).map(drop)).await;
    drop(client);
    assert_eq!(ended(&stub).await.state, State::Cancelled);
}
