//! A raw HTTP/1.1 client that shows what came over the wire, in which reads, and how the connection ended.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::PATIENCE;
use crate::Stub;

pub(super) struct Client {
    pub(super) stream: TcpStream,
}

/// A whole answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// The head, names in lower case as the server writes them.
    pub(super) head: String,
    /// The body without its transfer coding; each item one chunk of it.
    pub(super) writes: Vec<Vec<u8>>,
    /// Whether the body ended as its framing promised.
    pub(super) complete: bool,
    /// How the connection ended, if it did before the body was complete.
    pub(super) ended: Option<io::ErrorKind>,
}

impl Client {
    pub(super) async fn connect(stub: &Stub) -> Self {
        Self { stream: TcpStream::connect(stub.addr()).await.unwrap() }
    }

    pub(super) async fn send(&mut self, method: &str, path: &str, headers: &str, body: &str) {
        let length = body.len();
        let request =
            format!("{method} {path} HTTP/1.1\r\nhost: stub\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        self.stream.write_all(request.as_bytes()).await.unwrap();
    }

    pub(super) async fn ask(&mut self, body: &str) -> Answer {
        self.send("POST", "/v1/chat/completions", "", body).await;
        self.answer().await
    }

    pub(super) async fn call(&mut self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        self.send(method, path, headers, body).await;
        self.answer().await
    }

    /// Reads until the answer is complete or the connection ends.
    pub(super) async fn answer(&mut self) -> Answer {
        let mut received = Vec::new();
        loop {
            if let Some(answer) = Answer::parse(&received, None).filter(|answer| answer.complete) {
                return answer;
            }
            if let Err(kind) = self.read_more(&mut received).await {
                return Answer::parse(&received, Some(kind)).unwrap_or(Answer::none(kind));
            }
        }
    }

    /// Reads until `text` was seen.
    pub(super) async fn read_until(&mut self, text: &str) -> String {
        let mut received = Vec::new();
        loop {
            let seen = String::from_utf8_lossy(&received).into_owned();
            if seen.contains(text) {
                return seen;
            }
            self.read_more(&mut received).await.expect("the text comes before the end");
        }
    }

    async fn read_more(&mut self, received: &mut Vec<u8>) -> Result<(), io::ErrorKind> {
        let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(received)).await.expect("an answer in time");
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof),
            Ok(_) => Ok(()),
            Err(error) => Err(error.kind()),
        }
    }
}

impl Answer {
    fn none(kind: io::ErrorKind) -> Self {
        Self { status: 0, head: String::new(), writes: Vec::new(), complete: false, ended: Some(kind) }
    }

    fn parse(received: &[u8], ended: Option<io::ErrorKind>) -> Option<Self> {
        let head_ends = received.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8(received[..head_ends].to_vec()).unwrap();
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let body = &received[head_ends + 4..];
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        let (writes, complete) = match length {
            Some(length) => (vec![body.to_vec()], body.len() == length),
            None if head.contains("transfer-encoding: chunked") => dechunk(body),
            None => (Vec::new(), true),
        };
        Some(Self { status, head, writes, complete, ended })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.writes.concat()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes()).unwrap()
    }

    /// The JSON events of a stream, and whether `[DONE]` ended it.
    pub(super) fn events(&self) -> (Vec<Value>, bool) {
        let text = self.text();
        let data: Vec<_> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        let done = data.last() == Some(&"[DONE]");
        let events = data.iter().filter(|data| **data != "[DONE]").map(|data| serde_json::from_str(data).unwrap());
        (events.collect(), done)
    }

    /// The events of a stream that names them, each with its data; fails where the two names differ.
    pub(super) fn named_events(&self) -> Vec<Value> {
        let text = self.text();
        let events = text.split_terminator("\n\n").map(|event| {
            let (name, data) = event.split_once('\n').expect("an event has two lines");
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
            data
        });
        events.collect()
    }

    /// The content of choice 0, from a stream.
    pub(super) fn content(&self) -> String {
        let (events, _) = self.events();
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
    }
}

fn dechunk(mut body: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut writes = Vec::new();
    loop {
        let Some(line_ends) = body.windows(2).position(|window| window == b"\r\n") else { return (writes, false) };
        let size = usize::from_str_radix(std::str::from_utf8(&body[..line_ends]).unwrap(), 16).unwrap();
        let rest = &body[line_ends + 2..];
        if size == 0 {
            return (writes, rest.starts_with(b"\r\n"));
        }
        if rest.len() < size + 2 {
            return (writes, false);
        }
        writes.push(rest[..size].to_vec());
        body = &rest[size + 2..];
    }
}
