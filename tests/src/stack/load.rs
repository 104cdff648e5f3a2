//! Requests that come at their own pace, whatever happens to the servers, and what their clients see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Notify;

use weir_domain::ids::ReservationId;
use weir_runtime::tasks::{Task, Tasks};

use crate::client::{Client, chat};

use super::{LONG, Stack};

/// Fifty a second.
const EVERY: Duration = Duration::from_millis(20);
/// One in so many has the second key.
const SECOND_KEY_EVERY: usize = 5;
/// Longer than a gateway takes to refuse while a store is away.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So many good answers in a row are no accident.
const FLOWS: usize = 25;

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The answer came to its end in good order.
    Whole,
    /// A status that is no success, with its code.
    Refused(u16, String),
    /// No answer, or one that broke.
    Broken(String),
}

/// One request as its client saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Since the load began.
    pub sent: Duration,
    pub took: Duration,
    pub reservation: Option<ReservationId>,
    pub end: End,
    pub is_second_key: bool,
}

/// Requests to all gateways in turn, plain and streamed, until it is stopped.
#[derive(Debug)]
pub struct Load {
    began: Instant,
    stop: Arc<Notify>,
    seen: Arc<Mutex<Vec<Seen>>>,
    sender: Task<()>,
}

impl Load {
    /// With the key of the tests, and now and then with `second_key`.
    #[must_use]
    pub fn start(stack: &Stack, second_key: &str) -> Self {
        let clients: Vec<Client> = (0..stack.gateways.len()).map(|gateway| stack.client(gateway)).collect();
        let seconds: Vec<Client> = clients.iter().map(|client| client.with_key(second_key)).collect();
        let (began, stop, seen) = (Instant::now(), Arc::new(Notify::new()), Arc::default());
        let tasks = Tasks::new();
        let sending = send_until(Arc::clone(&stop), began, [clients, seconds], Arc::clone(&seen), tasks.clone());
        let sender = tasks.spawn("load", sending);
        Self { began, stop, seen, sender }
    }

    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until requests that were sent after `from` are answered one after another; when the first of them was.
    ///
    /// # Errors
    /// How the newest ended instead.
    pub async fn flows(&self, from: Duration) -> Result<Duration, String> {
        let deadline = Instant::now() + LONG;
        loop {
            let mut seen = self.seen.lock().expect("nobody panicked").clone();
            seen.retain(|seen| seen.sent >= from && !seen.is_second_key);
            seen.sort_by_key(|seen| seen.sent);
            let bad = seen.iter().rposition(|seen| seen.end != End::Whole);
            let good = &seen[bad.map_or(0, |bad| bad + 1)..];
            if good.len() >= FLOWS {
                return Ok(good[0].sent + good[0].took);
            }
            if Instant::now() > deadline {
                return Err(summary(&seen[seen.len().saturating_sub(4 * FLOWS)..]));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Sends no more, waits for what is under way; all that was seen, in the order in which it was sent.
    pub async fn stop(self) -> Vec<Seen> {
        self.stop.notify_one();
        self.sender.await.expect("the sender does not panic");
        let mut seen = self.seen.lock().expect("nobody panicked").clone();
        seen.sort_by_key(|seen| seen.sent);
        seen
    }
}

async fn send_until(
    stop: Arc<Notify>,
    began: Instant,
    clients: [Vec<Client>; 2],
    seen: Arc<Mutex<Vec<Seen>>>,
    tasks: Tasks,
) {
    let mut ticks = tokio::time::interval(EVERY);
    let mut under_way = Vec::new();
    for number in 0_usize.. {
        tokio::select! {
            () = stop.notified() => break,
            _ = ticks.tick() => {}
        }
        let is_second_key = number % SECOND_KEY_EVERY == 0;
        let of_key = &clients[usize::from(is_second_key)];
        let client = of_key[number % of_key.len()].clone();
        let seen = Arc::clone(&seen);
        under_way.push(tasks.spawn("request", async move {
            let sent = began.elapsed();
            // Not in step with the gateways, so that each gets both.
            let (reservation, end) = ask(&client, number, number / 2 % 2 == 0).await;
            let took = began.elapsed() - sent;
            seen.lock().expect("nobody panicked").push(Seen { sent, took, reservation, end, is_second_key });
        }));
    }
    for request in under_way {
        request.await.expect("a client does not panic");
    }
}

async fn ask(client: &Client, number: usize, is_stream: bool) -> (Option<ReservationId>, End) {
    let usage = json!({ "prompt": 20 + number % 7, "completion": 10 + number % 11 });
    let body = chat("fast", is_stream, &json!({ "usage": usage }));
    match tokio::time::timeout(ANSWER_WITHIN, read(client, &body, is_stream)).await {
        Ok(read) => read,
        Err(_) => (None, End::Broken(format!("no answer within {ANSWER_WITHIN:?}"))),
    }
}

async fn read(client: &Client, body: &Value, is_stream: bool) -> (Option<ReservationId>, End) {
    let mut open = match client.open_chat(body).await {
        Ok(open) => open,
        Err(error) => return (None, End::Broken(format!("{error:?}"))),
    };
    let reservation = open.reservation().and_then(|id| id.parse().ok());
    let mut text = Vec::new();
    while let Some(piece) = open.next().await {
        match piece {
            Ok(piece) => text.extend_from_slice(&piece),
            Err(error) => return (reservation, End::Broken(error.to_string())),
        }
    }
    let text = String::from_utf8_lossy(&text);
    if !open.status.is_success() {
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        let code = told["error"]["code"].as_str().unwrap_or("no code").to_owned();
        return (reservation, End::Refused(open.status.as_u16(), code));
    }
    let is_whole = if is_stream { text.contains("data: [DONE]") } else { text.contains("\"usage\"") };
    (reservation, if is_whole { End::Whole } else { End::Broken(text.into_owned()) })
}

/// Reservations of which a client has the whole answer.
#[must_use]
pub fn answered(seen: &[Seen]) -> BTreeSet<ReservationId> {
    seen.iter().filter(|seen| seen.end == End::Whole).filter_map(|seen| seen.reservation).collect()
}

/// How many ended how, in words.
#[must_use]
pub fn summary(seen: &[Seen]) -> String {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for seen in seen {
        let end = match &seen.end {
            End::Whole => "whole".to_owned(),
            End::Refused(status, code) => format!("{status} {code}"),
            End::Broken(how) => format!("broken: {how}"),
        };
        *ends.entry(end).or_default() += 1;
    }
    let whole = seen.iter().filter(|seen| seen.end == End::Whole);
    let mut took: Vec<Duration> = whole.map(|seen| seen.took).collect();
    took.sort_unstable();
    let middle = took.get(took.len() / 2).copied().unwrap_or_default();
    let worst = took.last().copied().unwrap_or_default();
    format!("{ends:?}, answers took {middle:.0?}, at most {worst:.0?}")
}
