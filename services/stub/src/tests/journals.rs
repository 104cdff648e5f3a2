//! The journal and the totals, by library and over HTTP, and cancellations.

use std::time::Duration;

use super::{Client, PLAIN, STREAM, ask, ended, stub, until};
use crate::journal::{Billed, Entry, JournalOptions, State, Totals};
use crate::{Stub, StubOptions};

#[tokio::test]
async fn a_client_that_leaves_in_a_gap_is_noticed_while_nothing_is_written() {
    let stub = stub("chunks = 2\ngap_ms = 600000\nusage = { prompt = 7, completion = 2 }");
    let mut client = Client::connect(&stub).await;
    client.send("POST", "/v1/chat/completions", "", STREAM).await;
    client.read_until("word0").await;
    drop(client);
    let entry = ended(&stub).await;
    assert_eq!((entry.state, entry.chunks_written), (State::Cancelled, 1));
    assert_eq!(entry.billed, Some(Billed { prompt: 7, completion: 1, ..Billed::default() }));
    assert!(entry.ended_at_ms.unwrap() >= entry.at_ms);
    let totals = stub.totals();
    assert_eq!((totals.requests, totals.executed, totals.cancelled, totals.open), (1, 1, 1, 0));
}

#[tokio::test]
async fn a_client_that_leaves_before_the_head_pays_by_the_providers_rule() {
    for (billing, completion) in [("generated", 0), ("full", 5)] {
        let toml = "before_headers_ms = 600000\nusage = { prompt = 7, completion = 5 }";
        let stub = stub(&format!("{toml}\nbilling = '{billing}'"));
        let mut client = Client::connect(&stub).await;
        client.send("POST", "/v1/chat/completions", "", PLAIN).await;
        until(|| stub.journal().first().filter(|entry| !entry.model.is_empty()).map(drop)).await;
        drop(client);
        let entry = ended(&stub).await;
        assert_eq!((entry.state, entry.billed.unwrap().completion), (State::Cancelled, completion), "{billing}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_its_own_request_is_not_billed() {
    let stub = stub("");
    let mut client = Client::connect(&stub).await;
    tokio::io::AsyncWriteExt::write_all(
        &mut client.stream,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
    )
    .await
    .unwrap();
    until(|| (stub.totals().open == 1).then_some(())).await;
    drop(client);
    let entry = ended(&stub).await;
    assert_eq!((entry.state, entry.billed), (State::Cancelled, None));
}

#[tokio::test]
async fn the_journal_is_read_cleared_and_summed_over_http() {
    let stub = stub("usage = { prompt = 5, completion = 3, cached = 2 }");
    let headers = "authorization: Bearer sk-provider\r\n";
    let mut client = Client::connect(&stub).await;
    for _ in 0..3 {
        client.call("POST", "/v1/chat/completions", headers, PLAIN).await;
    }
    let entries: Vec<Entry> = serde_json::from_value(client.call("GET", "/stub/journal", "", "").await.json()).unwrap();
    assert_eq!(entries, stub.journal());
    assert!(entries[0].headers.contains(&("authorization".to_owned(), "Bearer sk-provider".to_owned())));
    assert_eq!((entries[0].method.as_str(), entries[0].path.as_str()), ("POST", "/v1/chat/completions"));
    let later: Vec<Entry> =
        serde_json::from_value(client.call("GET", "/stub/journal?since=2", "", "").await.json()).unwrap();
    assert_eq!(later.iter().map(|entry| entry.id).collect::<Vec<_>>(), [3]);
    assert_eq!(client.call("GET", "/stub/journal?from=2", "", "").await.status, 400);

    let totals: Totals = serde_json::from_value(client.call("GET", "/stub/totals", "", "").await.json()).unwrap();
    let billed = Billed { prompt: 15, completion: 9, cached: 6, ..Billed::default() };
    assert_eq!(totals, Totals { requests: 3, executed: 3, cancelled: 0, open: 0, billed });
    assert_eq!(client.call("DELETE", "/stub/journal", "", "").await.status, 204);
    assert_eq!((stub.journal().len(), stub.totals()), (0, Totals::default()));
}

#[tokio::test]
async fn the_journal_is_bounded_and_can_be_off_while_totals_go_on() {
    let start = |entries| {
        let journal = JournalOptions { entries, body_bytes: 4 };
        Stub::start(StubOptions { journal, ..StubOptions::default() }).unwrap()
    };
    let (small, off) = (start(2), start(0));
    for _ in 0..3 {
        ask(&small, PLAIN).await;
        ask(&off, PLAIN).await;
    }
    let kept: Vec<_> = small.journal().into_iter().map(|entry| (entry.id, entry.body)).collect();
    assert_eq!(kept, [(2, "{\"mo".to_owned()), (3, "{\"mo".to_owned())]);
    assert_eq!((off.journal().len(), off.totals().executed), (0, 3));
}

#[tokio::test]
async fn stopping_finishes_what_is_open() {
    let stub = stub("chunks = 3\ngap_ms = 20");
    let mut client = Client::connect(&stub).await;
    client.send("POST", "/v1/chat/completions", "", STREAM).await;
    client.read_until("word0").await;
    let (unfinished, rest) = tokio::join!(stub.stop(Duration::from_secs(20)), client.read_until("[DONE]"));
    assert!(unfinished.is_empty() && rest.contains("word2"));
}
