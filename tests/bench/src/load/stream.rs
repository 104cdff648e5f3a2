//! Streamed requests: each connection asks, reads to the end, and asks again.
//!
//! It reads HTTP only as far as timing needs: the status line, the first byte of the body, the last chunk's mark. The
//! number of events is checked at the end of every stream, so that a stream that was cut counts as a failure.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_runtime::tasks::Tasks;

use super::{ANTHROPIC_VERSION, Seen, as_f64};
use crate::case::{Api, CHUNKS, Case};
use crate::error::BenchError;
use crate::subject::Target;

/// A stream of 44 chunks takes at most half a second here; this is a hang.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);

/// Asks for `time` on `connections`; streams that are open then are read to their end.
pub(crate) async fn run(target: &Target, case: &Case, time: Duration) -> Result<Seen, BenchError> {
    let (tasks, connections, api) = (Tasks::new(), case.connections, case.ingress);
    let request = request(target, api, &case.body());
    let started = Instant::now();
    let until = started + time;
    let clients: Vec<_> =
        (0..connections).map(|_| tasks.spawn("client", client(target.address, api, request.clone(), until))).collect();
    let mut waits = Vec::new();
    for each in clients {
        let seen = each.await.map_err(|lost| BenchError::unexpected("a client", lost))?;
        waits.extend(seen.map_err(|error| failed(target, error))?);
    }
    let seconds = started.elapsed().as_secs_f64();
    waits.sort_unstable();
    let at = |percent: usize| {
        let place = (waits.len() * percent / 100).min(waits.len().saturating_sub(1));
        waits.get(place).map_or(0.0, Duration::as_secs_f64) * 1e3
    };
    let requests = u64::try_from(waits.len()).unwrap_or(u64::MAX);
    Ok(Seen { requests, seconds, p50_ms: at(50), p99_ms: at(99) })
}

fn failed(target: &Target, error: BenchError) -> BenchError {
    BenchError::unexpected(format!("streamed load on {}", target.name), error)
}

/// The bytes of one request.
pub(crate) fn request(target: &Target, api: Api, body: &str) -> Vec<u8> {
    format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\nanthropic-version: {ANTHROPIC_VERSION}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        api.path(),
        target.address,
        target.authorization,
        body.len()
    )
    .into_bytes()
}

/// From the request's first byte to the first byte of the answer's body, for each stream.
async fn client(address: SocketAddr, api: Api, request: Vec<u8>, until: Instant) -> Result<Vec<Duration>, BenchError> {
    let mut answers = Answers::connect(address).await?;
    let mut waits = Vec::new();
    while Instant::now() < until {
        let asked = Instant::now();
        answers.ask(&request).await?;
        let wait = answers.begin().await?.duration_since(asked);
        answers.finish(api.last_event()).await?;
        waits.push(wait);
    }
    Ok(waits)
}

/// One connection and the answer that is being read from it.
#[derive(Debug)]
pub(crate) struct Answers {
    socket: TcpStream,
    buffer: Vec<u8>,
    events: usize,
}

const EVENT: &[u8] = b"data: ";
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";
/// Of what is looked for at the end of an answer: the last event of either API with all its data, and the last chunk.
const LONGEST_MARK: usize = 128;
const READ_BYTES: usize = 16 * 1024;

impl Answers {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Self, BenchError> {
        let socket = TcpStream::connect(address).await.map_err(BenchError::io("connecting"))?;
        socket.set_nodelay(true).map_err(BenchError::io("connecting"))?;
        Ok(Self { socket, buffer: Vec::with_capacity(2 * READ_BYTES), events: 0 })
    }

    pub(crate) async fn ask(&mut self, request: &[u8]) -> Result<(), BenchError> {
        self.buffer.clear();
        self.events = 0;
        self.socket.write_all(request).await.map_err(BenchError::io("asking"))
    }

    /// Reads up to the first byte of the body; returns when it came.
    pub(crate) async fn begin(&mut self) -> Result<Instant, BenchError> {
        loop {
            self.read().await?;
            let Some(head) = memmem::find(&self.buffer, b"\r\n\r\n") else { continue };
            if !self.buffer.starts_with(b"HTTP/1.1 200") {
                let text = String::from_utf8_lossy(&self.buffer).into_owned();
                return Err(BenchError::unexpected("an answer", text));
            }
            if self.buffer.len() > head + 4 {
                return Ok(Instant::now());
            }
        }
    }

    /// Reads to the end of the answer.
    async fn finish(&mut self, last_event: &[u8]) -> Result<(), BenchError> {
        while !self.buffer.ends_with(LAST_CHUNK) {
            self.shorten();
            self.read().await?;
        }
        let is_done = memmem::rfind(&self.buffer, last_event).is_some();
        self.events += memmem::find_iter(&self.buffer, EVENT).count();
        if is_done && self.events > CHUNKS {
            return Ok(());
        }
        Err(BenchError::unexpected("a stream", format!("{} events came, done: {is_done}", self.events)))
    }

    /// Counts the events that are complete and lets them go; what may be the start of a mark stays.
    fn shorten(&mut self) {
        if self.buffer.len() < READ_BYTES {
            return;
        }
        let keep = self.buffer.len() - LONGEST_MARK;
        self.events += memmem::find_iter(&self.buffer[..keep + EVENT.len() - 1], EVENT).count();
        self.buffer.drain(..keep);
    }

    async fn read(&mut self) -> Result<(), BenchError> {
        let read = tokio::time::timeout(LONGEST_ANSWER, self.socket.read_buf(&mut self.buffer)).await;
        match read {
            Ok(Ok(0)) => Err(BenchError::unexpected("an answer", "the connection ended before it")),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(source)) => Err(BenchError::io("reading an answer")(source)),
            Err(_) => Err(BenchError::unexpected("an answer", "nothing came for 30 s")),
        }
    }
}

/// What a run counts in chunks.
pub(crate) fn chunks(requests: u64) -> f64 {
    as_f64(requests) * as_f64(CHUNKS as u64)
}
