//! Memory per idle open stream: streams that began, deliver nothing, and stay open.

use std::time::Duration;

use crate::case::{Api, IDLE_MODEL, body};
use crate::cost;
use crate::error::BenchError;
use crate::load::as_f64;
use crate::load::stream::{Answers, request};
use crate::subject::Process;

/// Streams before the first reading, so that what a process allocates once does not count.
const WARM: usize = 50;
/// Asked at once, so that the listener's queue never fills.
const AT_ONCE: usize = 50;
const SETTLE: Duration = Duration::from_millis(500);

/// KiB per stream, over `streams` of them, in a process that has served nothing yet.
pub(crate) async fn kib_per_stream(process: &Process, streams: usize) -> Result<f64, BenchError> {
    let request = request(&process.target, Api::Chat, &body(IDLE_MODEL, 200, true));
    let mut open = Vec::with_capacity(WARM + streams);
    hold(process, &request, WARM, &mut open).await?;
    let before = cost::rss_kib(process.pid())?;
    hold(process, &request, streams, &mut open).await?;
    let after = cost::rss_kib(process.pid())?;
    drop(open);
    Ok(as_f64(after.saturating_sub(before)) / as_f64(u64::try_from(streams).unwrap_or(u64::MAX)))
}

/// Opens `streams` more and reads each to its first event.
async fn hold(process: &Process, request: &[u8], streams: usize, open: &mut Vec<Answers>) -> Result<(), BenchError> {
    let mut left = streams;
    while left > 0 {
        let mut asked = Vec::with_capacity(AT_ONCE);
        for _ in 0..left.min(AT_ONCE) {
            let mut answers = Answers::connect(process.target.address).await?;
            answers.ask(request).await?;
            asked.push(answers);
        }
        left -= asked.len();
        for answers in &mut asked {
            answers.begin().await?;
        }
        open.append(&mut asked);
    }
    tokio::time::sleep(SETTLE).await;
    Ok(())
}
