//! Thousands of clients that hardly read, and then not at all (s06): what the process holds for them, what others notice,
//! and how they end.
//!
//! Each reader takes some bytes now and then, so that it stays below the bound of a write stall for as long as the figures
//! are taken; the provider would push five megabytes to each. Then all stop, and the bound ends them. Everything of one
//! subject alone: a proxy that only forwards has no such bound to be compared with.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::case::{Api, Case, SLOW_MODEL, body};
use crate::cost;
use crate::error::BenchError;
use crate::load::stream::{self, request};
use crate::load::{Seen, as_f64};
use crate::report::{Metric, Report};
use crate::subject::Process;

/// What a provider would push to each, in the figures of the stub's script.
pub(crate) const CHUNKS: usize = 5_000;
pub(crate) const CHUNK_BYTES: usize = 1_000;

/// Small, so that what a reader does not take is soon the gateway's and not the kernel's on this side.
const RECEIVE_BUFFER_BYTES: u32 = 16 * 1024;
/// Opened at once: far below the listener's queue.
const AT_ONCE: usize = 100;
/// What each takes at a time, and how often: 2 KiB a second, below any bound of a stall.
const SIP_BYTES: usize = 4 * 1024;
const BETWEEN_SIPS: Duration = Duration::from_secs(2);
/// Until the buffers on the way are full and nothing flows but what is sipped.
const FILLING: Duration = Duration::from_secs(20);
/// Another client's streams, one after the other.
const BESIDE: Duration = Duration::from_secs(5);
/// The bound of a stall is 60 s by default; then a busy machine ends thousands of streams.
const UNTIL_ENDED: Duration = Duration::from_secs(150);
const LOOK: Duration = Duration::from_secs(1);

const MIB: f64 = 1024.0;

/// What the tests of a run ask of it.
pub(crate) struct Slow<'a> {
    pub process: &'a Process,
    pub readers: usize,
    /// The data folder of the process, where its admin API is named.
    pub data: &'a Path,
}

impl Slow<'_> {
    /// Runs all of it and adds its figures to `report`.
    pub(crate) async fn measure(&self, report: &mut Report) -> Result<(), BenchError> {
        let mut tell = |metric, value, unit| {
            println!("   {metric}: {value:.2} {unit}");
            report.metrics.push(Metric { metric, value, unit });
        };
        tell("slow_readers", as_f64(self.readers as u64), "streams");
        // Twice: what a process allocates once is none of the streams' cost.
        self.others().await?;
        let alone = self.others().await?;
        let idle = self.rss_mib()?;
        tell("slow_readers_memory_idle", idle, "MiB");
        tell("slow_readers_first_content_alone", alone.p50_ms, "ms");

        let mut readers = Readers::open(self.process, self.readers).await?;
        let most = readers.sip(FILLING, || self.rss_mib()).await?;
        tell("slow_readers_memory_above_idle", most - idle, "MiB");
        tell("slow_readers_kernel_memory", kernel_mib()?, "MiB");
        let (beside, most) = tokio::join!(self.others(), readers.sip(BESIDE, || self.rss_mib()));
        let beside = beside?;
        tell("slow_readers_first_content_beside", beside.p50_ms, "ms");
        tell("slow_readers_first_content_ratio", beside.p50_ms / alone.p50_ms, "× alone");
        tell("slow_readers_memory_above_idle_beside", most? - idle, "MiB");
        tell("slow_readers_cut_while_they_read", as_f64(readers.cut as u64), "streams");

        // Nobody reads any more.
        let stopped = Instant::now();
        let mut most = self.rss_mib()?;
        while self.counted("pending")? < self.readers as u64 && stopped.elapsed() < UNTIL_ENDED {
            tokio::time::sleep(LOOK).await;
            most = most.max(self.rss_mib()?);
        }
        tell("slow_readers_memory_above_idle_stalled", most - idle, "MiB");
        tell("slow_readers_ended_pending", as_f64(self.counted("pending")?), "streams");
        tell("slow_readers_left_reserved", as_f64(self.counted("reserved")?), "streams");
        tell("slow_readers_ended_after", stopped.elapsed().as_secs_f64(), "s");
        tell("slow_readers_told_by_reset", as_f64(readers.resets() as u64), "streams");
        drop(readers);
        let after = self.others().await?;
        tell("slow_readers_first_content_after", after.p50_ms, "ms");
        tell("slow_readers_memory_above_idle_after", self.rss_mib()? - idle, "MiB");
        Ok(())
    }

    fn rss_mib(&self) -> Result<f64, BenchError> {
        Ok(as_f64(cost::rss_kib(self.process.pid())?) / MIB)
    }

    /// Streams of an ordinary client.
    async fn others(&self) -> Result<Seen, BenchError> {
        stream::run(&self.process.target, &Case::quick_stream(), BESIDE).await
    }

    /// A number of the tenant's counters, by the admin API.
    fn counted(&self, field: &str) -> Result<u64, BenchError> {
        let (admin, token) = self.process.admin(self.data)?;
        let page: Value = ureq::get(format!("{admin}/admin/v1/counters?tenant=bench"))
            .header("authorization", format!("Bearer {token}"))
            .call()
            .and_then(|mut answer| answer.body_mut().read_json())
            .map_err(|error| BenchError::unexpected("the counters", error))?;
        page[field].as_u64().ok_or_else(|| BenchError::unexpected("the counters", &page))
    }
}

struct Readers {
    open: Vec<TcpStream>,
    /// How many were ended although they read.
    cut: usize,
}

impl Readers {
    async fn open(process: &Process, count: usize) -> Result<Self, BenchError> {
        let request = request(&process.target, Api::Chat, &body(SLOW_MODEL, 200, true));
        let mut open = Vec::with_capacity(count);
        while open.len() < count {
            let mut asked = Vec::with_capacity(AT_ONCE);
            for _ in 0..AT_ONCE.min(count - open.len()) {
                asked.push(connect(process.target.address, &request).await?);
            }
            for socket in &asked {
                let readable = tokio::time::timeout(UNTIL_ENDED, socket.readable()).await;
                readable
                    .map_err(|_| BenchError::unexpected("a slow reader", "no answer began"))?
                    .map_err(BenchError::io("a slow reader"))?;
            }
            open.append(&mut asked);
        }
        Ok(Self { open, cut: 0 })
    }

    /// Lets each take its sips for `time`; returns the most that `looked` found meanwhile.
    async fn sip(&mut self, time: Duration, looked: impl Fn() -> Result<f64, BenchError>) -> Result<f64, BenchError> {
        let until = Instant::now() + time;
        let mut most = looked()?;
        let mut bytes = [0; SIP_BYTES];
        while Instant::now() < until {
            let round = Instant::now();
            let before = self.open.len();
            for piece in self.open.chunks(AT_ONCE) {
                for socket in piece {
                    // Nothing there is a sip too: it comes with the next one.
                    let _nothing_yet = socket.try_read(&mut bytes);
                }
                tokio::task::yield_now().await;
            }
            self.open.retain(|socket| !has_ended(socket));
            self.cut += before - self.open.len();
            most = most.max(looked()?);
            tokio::time::sleep(BETWEEN_SIPS.saturating_sub(round.elapsed())).await;
        }
        Ok(most)
    }

    /// How many were told by a reset that nobody sends any more.
    fn resets(&self) -> usize {
        self.open.iter().filter(|socket| has_ended(socket)).count()
    }
}

/// Whether the connection was reset.
fn has_ended(socket: &TcpStream) -> bool {
    !matches!(socket.take_error(), Ok(None))
}

async fn connect(address: SocketAddr, request: &[u8]) -> Result<TcpStream, BenchError> {
    let socket = TcpSocket::new_v4().map_err(BenchError::io("a slow reader's socket"))?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES).map_err(BenchError::io("a slow reader's socket"))?;
    let mut socket = socket.connect(address).await.map_err(BenchError::io("a slow reader connects"))?;
    socket.write_all(request).await.map_err(BenchError::io("a slow reader asks"))?;
    Ok(socket)
}

/// What all sockets of this machine hold in the kernel: no process's resident memory, and bounded all the same.
fn kernel_mib() -> Result<f64, BenchError> {
    const PAGE_KIB: u64 = 4;
    let text = std::fs::read_to_string("/proc/net/sockstat").map_err(BenchError::io("the kernel's socket memory"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
    let pages = line.split_whitespace().skip_while(|word| *word != "mem").nth(1);
    let pages: Option<u64> = pages.and_then(|pages| pages.parse().ok());
    let pages = pages.ok_or_else(|| BenchError::unexpected("the kernel's socket memory", line))?;
    Ok(as_f64(pages * PAGE_KIB) / MIB)
}
