//! A client that writes exactly the bytes it is told to, because an HTTP library would not send what is wrong.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::{KEY, PATIENCE};

pub struct Raw {
    stream: TcpStream,
    /// Bytes that were read and belong to the next answer.
    rest: Vec<u8>,
}

/// An answer as it came.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl RawAnswer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The error code, or "" for an answer without a body: what the HTTP library says before there is a request.
    pub fn code(&self) -> String {
        if self.body.is_empty() {
            return String::new();
        }
        let value: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", self.text()));
        value["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Raw {
    pub async fn connect(to: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(to).await.unwrap(), rest: Vec::new() }
    }

    /// A client whose kernel receives `bytes` ahead of it at most: told before it connects, or its first window is larger.
    pub async fn connect_receiving(to: SocketAddr, bytes: u32) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(bytes).unwrap();
        Self { stream: socket.connect(to).await.unwrap(), rest: Vec::new() }
    }

    /// Writes everything; an error says that the gateway hung up meanwhile.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// No more bytes will come from here.
    pub async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    pub const fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// The next answer; `None` when the connection ended, in order or not, without one. Waits as long as a test waits.
    pub async fn answer(&mut self) -> Option<RawAnswer> {
        timeout(PATIENCE, self.read_answer()).await.expect("an answer or the end of the connection in time")
    }

    /// Whether the gateway closes the connection within `within`, whatever it still sends.
    pub async fn is_closed_within(&mut self, within: Duration) -> bool {
        let mut bytes = [0; 1024];
        let end = async { while !matches!(self.stream.read(&mut bytes).await, Ok(0) | Err(_)) {} };
        timeout(within, end).await.is_ok()
    }

    /// Reads until `text` has come.
    pub async fn until(&mut self, text: &str) {
        let found = async {
            while !String::from_utf8_lossy(&self.rest).contains(text) {
                assert!(self.more().await, "the connection ended before `{text}`");
            }
        };
        timeout(PATIENCE, found).await.expect("it comes in time");
    }

    async fn more(&mut self) -> bool {
        let mut bytes = [0; 16 * 1024];
        match self.stream.read(&mut bytes).await {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.rest.extend_from_slice(&bytes[..count]);
                true
            }
        }
    }

    async fn read_answer(&mut self) -> Option<RawAnswer> {
        let head_end = loop {
            if let Some(at) = self.rest.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if !self.more().await {
                return None;
            }
        };
        let head = String::from_utf8(self.rest.drain(..head_end).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = RawAnswer { status, head, body: Vec::new() };
        let length = answer.header("content-length").map(|length| length.parse::<usize>().unwrap());
        if status == 100 {
            return Some(answer);
        }
        // Without a length the body ends with the connection; chunked bodies are read by the library's client instead.
        while length.is_none_or(|length| self.rest.len() < length) && self.more().await {}
        let length = length.unwrap_or(self.rest.len()).min(self.rest.len());
        answer.body = self.rest.drain(..length).collect();
        Some(answer)
    }
}

/// A request head with the key, closed by its blank line. `headers` are whole lines without line ends.
pub fn head(start: &str, headers: &[&str]) -> String {
    let mut head = format!("{start}\r\nhost: weir\r\nauthorization: Bearer {KEY}\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head + "\r\n"
}

pub const CHAT: &str = "POST /v1/chat/completions HTTP/1.1";

/// A chat request with `body` and its length.
pub fn chat(body: &str) -> String {
    chat_with(&[], body)
}

pub fn chat_with(headers: &[&str], body: &str) -> String {
    let length = format!("content-length: {}", body.len());
    let mut all = vec!["content-type: application/json", &length];
    all.extend_from_slice(headers);
    head(CHAT, &all) + body
}
