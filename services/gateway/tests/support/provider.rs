//! A provider made of bare sockets: it hangs up, hashes and answers in ways that an HTTP server does not offer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use weir_runtime::tasks::Tasks;

/// What the provider does after an answer.
#[derive(Debug, Clone, Copy)]
pub enum After {
    /// Waits for the next request.
    Keep,
    /// Closes in order when nothing came for this long, without having said so.
    CloseIdle(Duration),
    /// Resets the connection as soon as the first byte of another request is there: it was not read.
    ResetOnReuse,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub body_bytes: usize,
    /// Of the body, which is not kept.
    pub digest: [u8; 32],
}

#[derive(Debug)]
pub struct SocketProvider {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    /// While it is false, answers wait.
    gate: tokio::sync::watch::Sender<bool>,
    _tasks: Tasks,
}

impl SocketProvider {
    /// Answers every request with one token.
    pub async fn start(after: After) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::<AtomicUsize>::default());
        let tasks = Tasks::new();
        let gate = tokio::sync::watch::Sender::new(true);
        let peer = Peer { after, seen: Arc::clone(&seen), gate: gate.subscribe() };
        let (owner, count) = (tasks.clone(), Arc::clone(&connections));
        drop(tasks.spawn("accept", async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                drop(owner.spawn("connection", peer.clone().run(stream)));
            }
        }));
        Self { address, seen, connections, gate, _tasks: tasks }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers wait from now on, until `open_gate`.
    pub fn close_gate(&self) {
        self.gate.send_replace(false);
    }

    pub fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// Waits until `count` requests were read whole.
    pub async fn until_seen(&self, count: usize) {
        let deadline = Instant::now() + super::PATIENCE;
        while self.seen.lock().len() < count {
            assert!(Instant::now() < deadline, "{} of {count} requests came", self.seen.lock().len());
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// How many connections were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Peer {
    after: After,
    seen: Arc<Mutex<Vec<Seen>>>,
    gate: tokio::sync::watch::Receiver<bool>,
}

const ANSWER: &str = r#"{"id":"c1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;

impl Peer {
    async fn run(mut self, mut stream: TcpStream) {
        let mut buffer = Vec::new();
        let mut served = 0;
        loop {
            let arrived = match (self.after, served) {
                (After::CloseIdle(idle), 1..) => {
                    tokio::time::timeout(idle, read_some(&mut stream, &mut buffer)).await.unwrap_or(false)
                }
                (After::ResetOnReuse, 1..) => {
                    if stream.readable().await.is_ok() {
                        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                    }
                    return;
                }
                (After::Keep | After::CloseIdle(_) | After::ResetOnReuse, _) => {
                    read_some(&mut stream, &mut buffer).await
                }
            };
            if !arrived || self.serve(&mut stream, &mut buffer).await.is_none() {
                return;
            }
            served += 1;
        }
    }

    /// Reads one request and answers it; `None` when the peer is gone.
    async fn serve(&mut self, stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
        let head_end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            read_some(stream, buffer).await.then_some(())?;
        };
        let head = String::from_utf8_lossy(&buffer[..head_end]).to_ascii_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: "))?.trim().parse::<usize>().ok()?;
        buffer.drain(..head_end);
        let mut hash = Sha256::new();
        let mut left = length;
        loop {
            let part = buffer.len().min(left);
            hash.update(&buffer[..part]);
            buffer.drain(..part);
            left -= part;
            if left == 0 {
                break;
            }
            read_some(stream, buffer).await.then_some(())?;
        }
        self.seen.lock().push(Seen { body_bytes: length, digest: hash.finalize().into() });
        self.gate.wait_for(|open| *open).await.ok()?;
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{ANSWER}",
            ANSWER.len()
        );
        stream.write_all(answer.as_bytes()).await.ok()
    }
}

async fn read_some(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    let mut bytes = [0; 64 * 1024];
    match stream.read(&mut bytes).await {
        Ok(0) | Err(_) => false,
        Ok(count) => {
            buffer.extend_from_slice(&bytes[..count]);
            true
        }
    }
}
