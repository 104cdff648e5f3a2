//! A provider that answers with given bytes, cut where the test says, and remembers what it was asked.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use weir_runtime::tasks::Tasks;

/// What follows the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The framing's own end.
    Whole,
    /// The connection closes in order, in the middle of its framing.
    Close,
    Reset,
    /// Nothing, until the gateway closes.
    Stall,
}

/// One answer: its pieces are written one by one.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub content_type: &'static str,
    pub pieces: Vec<Bytes>,
    pub ending: Ending,
    /// Between two pieces, so that they are two reads.
    pub gap: Duration,
}

impl Reply {
    pub fn stream(body: impl Into<Bytes>) -> Self {
        Self {
            status: 200,
            content_type: "text/event-stream",
            pieces: vec![body.into()],
            ending: Ending::Whole,
            gap: Duration::ZERO,
        }
    }

    pub fn json(body: impl Into<Bytes>) -> Self {
        Self { content_type: "application/json", ..Self::stream(body) }
    }

    pub fn error(status: u16, body: impl Into<Bytes>) -> Self {
        Self { status, ..Self::json(body) }
    }

    pub fn ending(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }
}

/// A request as the provider got it. Names of headers are in lower case.
#[derive(Debug, Clone)]
pub struct Asked {
    pub target: String,
    pub headers: HashMap<String, String>,
    pub body: Bytes,
}

impl Asked {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Debug)]
pub struct Canned {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    reply: Arc<Mutex<Reply>>,
    open: Arc<AtomicUsize>,
    _tasks: Tasks,
}

impl Canned {
    pub async fn start(reply: Reply) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let reply = Arc::new(Mutex::new(reply));
        let tasks = Tasks::new();
        let open = Arc::<AtomicUsize>::default();
        let (owner, seen, replies, count) = (tasks.clone(), Arc::clone(&asked), Arc::clone(&reply), Arc::clone(&open));
        drop(tasks.spawn("accept", async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let (seen, replies, count) = (Arc::clone(&seen), Arc::clone(&replies), Arc::clone(&count));
                drop(owner.spawn("connection", async move {
                    serve(stream, seen, replies).await;
                    count.fetch_sub(1, Ordering::Relaxed);
                }));
            }
        }));
        Self { address, asked, reply, open, _tasks: tasks }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What is answered from now on.
    pub fn answer(&self, reply: Reply) {
        *self.reply.lock() = reply;
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    /// Waits until a request was read whole.
    pub async fn until_asked(&self) {
        let deadline = Instant::now() + super::PATIENCE;
        while self.asked.lock().is_empty() {
            assert!(Instant::now() < deadline, "nobody asks");
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the gateway has closed every connection.
    pub async fn until_closed(&self) {
        let deadline = Instant::now() + super::PATIENCE;
        while self.open.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < deadline, "a connection is left open");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn serve(mut stream: TcpStream, asked: Arc<Mutex<Vec<Asked>>>, reply: Arc<Mutex<Reply>>) {
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await {
        asked.lock().push(request);
        let reply = reply.lock().clone();
        if write_reply(&mut stream, &reply).await.is_none() || reply.ending != Ending::Whole {
            return;
        }
    }
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Asked> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        more(stream, buffer).await?;
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let target = head.split(' ').nth(1)?.to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers: HashMap<_, _> = head.lines().skip(1).filter_map(header).collect();
    let length: usize = headers.get("content-length")?.parse().ok()?;
    while buffer.len() < head_end + length {
        more(stream, buffer).await?;
    }
    let body = Bytes::copy_from_slice(&buffer[head_end..head_end + length]);
    buffer.drain(..head_end + length);
    Some(Asked { target, headers, body })
}

async fn more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut bytes = [0; 16 * 1024];
    match stream.read(&mut bytes).await {
        Ok(0) | Err(_) => None,
        Ok(count) => {
            buffer.extend_from_slice(&bytes[..count]);
            Some(())
        }
    }
}

async fn write_reply(stream: &mut TcpStream, reply: &Reply) -> Option<()> {
    let head = format!(
        "HTTP/1.1 {} x\r\ncontent-type: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        reply.status, reply.content_type
    );
    stream.write_all(head.as_bytes()).await.ok()?;
    for (number, piece) in reply.pieces.iter().filter(|piece| !piece.is_empty()).enumerate() {
        if number > 0 && !reply.gap.is_zero() {
            sleep(reply.gap).await;
        }
        let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
        chunk.extend_from_slice(piece);
        chunk.extend_from_slice(b"\r\n");
        stream.write_all(&chunk).await.ok()?;
    }
    match reply.ending {
        Ending::Whole => stream.write_all(b"0\r\n\r\n").await.ok(),
        Ending::Close => stream.shutdown().await.ok(),
        Ending::Reset => {
            // What was written must arrive before the reset throws it away.
            sleep(Duration::from_millis(2)).await;
            socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).ok()
        }
        Ending::Stall => {
            while more(stream, &mut Vec::new()).await.is_some() {}
            None
        }
    }
}
