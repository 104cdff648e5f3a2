//! A scripted provider: it answers like OpenAI's and Anthropic's APIs, well or badly, exactly as told, and keeps a journal.
//!
//! **Owns** the provider's side of every test, demo and benchmark: what is sent, when, what goes wrong on the way, and
//! what a provider would bill for it. **Must not know** Weir: it shares only the process's tools (`weir-runtime`), so
//! that a mistake in Weir's reading of a dialect is not repeated here.
//!
//! **Start** with [`script::Script`], the vocabulary; then [`Stub::start`]; then `player`, which turns a script into
//! acts. `dialect` has one file an API: chat completions, responses and embeddings of OpenAI, messages (and their count
//! of tokens) of Anthropic. The same script plays in each of them, and costs the same in each.
//!
//! **Promises it helps to check**: I7, I9 and I12, by billing that depends only on the script and on the chunks that
//! were written ([`journal::Totals`]), so that a ledger can be compared with it to the last token.
//!
//! # Choosing a script
//!
//! First match: the queue of the request's model (`POST /stub/script`), the name in `x-stub-script`, the script named
//! like the model, the default. Then the request's own changes to it, later ones winning:
//!
//! ```text
//! "metadata": {"stub": {"chunks": 5}}            an object, or a text that holds one
//! hello [[stub {"chunks": 5, "gap_ms": 20}]]     in any message: passes through a gateway
//! x-stub-gap-ms: 20                              any field of a script, dashes for underscores
//! x-stub-json: {"fault": {"kind": "reset"}}      several fields at once
//! ```
//!
//! In a file, a default and scripts by name:
//!
//! ```toml
//! [default]
//! chunks = 20
//! gap_ms = 10
//!
//! [scripts.flaky]                                # for requests of model "flaky"
//! fault = { kind = "reset", after_chunks = 7 }
//! usage = { prompt = 1200, completion = 64, cached = 1024 }
//! ```
//!
//! # Pages
//!
//! `GET /stub/journal?since=N`, `DELETE /stub/journal`, `GET /stub/totals`, `POST /stub/script` with
//! `{"model": "m", "scripts": [{…}]}` (and `"replace": true` to forget what waits), `DELETE /stub/script`, `GET …/models`; `GET` and `DELETE …/responses/ID` of what
//! was stored.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use memchr::memmem;
use parking_lot::Mutex;
use thiserror::Error;
use weir_runtime::clock::{SharedClock, SystemClock};
use weir_runtime::listener::{ListenError, ListenerOptions, bind, serve};
use weir_runtime::tasks::{Tasks, Unfinished};

mod body;
mod dialect;
mod exchange;
pub mod journal;
mod outline;
mod pages;
mod player;
pub mod script;
mod server;
mod shelf;

use dialect::{Asked, Dialect};
use journal::{Entry, Journal, JournalOptions, Totals};
use script::{Overlay, Prepared, Script, ScriptError, Scripts};
use server::StubService;
use shelf::Shelf;

/// How a stub is started.
#[derive(Debug)]
pub struct StubOptions {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// HTTPS where present.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    pub scripts: Scripts,
    pub journal: JournalOptions,
    pub listener: ListenerOptions,
    /// Before the number in the ids of answers; of several stubs that one reconciler sees, each needs its own.
    pub id_prefix: String,
    pub clock: SharedClock,
}

impl Default for StubOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tls: None,
            scripts: Scripts::default(),
            journal: JournalOptions::default(),
            listener: ListenerOptions::default(),
            id_prefix: "chatcmpl-stub".to_owned(),
            clock: SystemClock::shared(),
        }
    }
}

/// Why a stub did not start.
#[derive(Debug, Error)]
pub enum StubError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the address of the stub cannot be read")]
    Address(#[source] std::io::Error),
    #[error("script `{name}`")]
    Script { name: String, source: ScriptError },
}

/// A running stub. It ends with [`stop`](Self::stop), or with its runtime.
#[derive(Debug)]
pub struct Stub {
    state: Arc<StubState>,
    address: SocketAddr,
    scheme: &'static str,
    tasks: Tasks,
}

impl Stub {
    /// Checks the scripts, then listens. Call it on a tokio runtime.
    pub fn start(options: StubOptions) -> Result<Self, StubError> {
        let prepare = |name: &str, script: &Script| {
            Prepared::new(script.clone()).map_err(|source| StubError::Script { name: name.to_owned(), source })
        };
        let default = prepare("default", &options.scripts.default)?;
        let by_name = options
            .scripts
            .scripts
            .iter()
            .map(|(name, script)| Ok((name.clone(), prepare(name, script)?)))
            .collect::<Result<_, StubError>>()?;
        let state = Arc::new(StubState {
            default,
            by_name,
            queues: Mutex::default(),
            queued: AtomicUsize::new(0),
            journal: Arc::new(Journal::new(options.journal)),
            shelf: Shelf::default(),
            clock: options.clock,
            id_prefix: options.id_prefix,
        });
        let listener = bind(options.listen)?;
        let address = listener.local_addr().map_err(StubError::Address)?;
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let tasks = Tasks::new();
        let service = StubService { state: state.clone() };
        drop(serve(listener, options.tls, options.listener, service, &tasks));
        Ok(Self { state, address, scheme, tasks })
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The base URL, without `/v1` and without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// All entries that are kept, oldest first.
    #[must_use]
    pub fn journal(&self) -> Vec<Entry> {
        self.state.journal.entries(0)
    }

    #[must_use]
    pub fn totals(&self) -> Totals {
        self.state.journal.totals()
    }

    pub fn clear_journal(&self) {
        self.state.journal.clear();
    }

    /// The next requests for `model` get these scripts, in order, one each.
    pub fn queue(&self, model: &str, scripts: Vec<Script>) -> Result<(), ScriptError> {
        self.state.queue(model, scripts, false)
    }

    /// Waits `within` for open answers, then cuts them.
    pub async fn stop(&self, within: Duration) -> Unfinished {
        self.tasks.stop(within).await
    }
}

/// More scripts in waiting than any test asks for.
const MAX_QUEUED: usize = 100_000;

#[derive(Debug)]
pub(crate) struct StubState {
    default: Arc<Prepared>,
    by_name: HashMap<String, Arc<Prepared>>,
    queues: Mutex<HashMap<String, VecDeque<Arc<Prepared>>>>,
    /// How many wait in all queues, so that a benchmark's request need not take the lock.
    queued: AtomicUsize,
    journal: Arc<Journal>,
    shelf: Shelf,
    clock: SharedClock,
    id_prefix: String,
}

impl StubState {
    fn queue(&self, model: &str, scripts: Vec<Script>, replace: bool) -> Result<(), ScriptError> {
        let prepared = scripts.into_iter().map(Prepared::new).collect::<Result<Vec<_>, _>>()?;
        let mut queues = self.queues.lock();
        let queue = queues.entry(model.to_owned()).or_default();
        let dropped = if replace { std::mem::take(queue).len() } else { 0 };
        let waiting = self.queued.load(Ordering::Relaxed) - dropped + prepared.len();
        if waiting > MAX_QUEUED {
            self.queued.fetch_sub(dropped, Ordering::Relaxed);
            return Err(ScriptError::TooLarge { field: "scripts", value: waiting, max: MAX_QUEUED });
        }
        self.queued.store(waiting, Ordering::Relaxed);
        queue.extend(prepared);
        Ok(())
    }

    fn clear_queue(&self) {
        let mut queues = self.queues.lock();
        queues.clear();
        self.queued.store(0, Ordering::Relaxed);
    }

    fn next_queued(&self, model: &str) -> Option<Arc<Prepared>> {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut queues = self.queues.lock();
        let next = queues.get_mut(model)?.pop_front()?;
        self.queued.fetch_sub(1, Ordering::Relaxed);
        Some(next)
    }

    fn choose(
        &self,
        dialect: &dyn Dialect,
        headers: &HeaderMap,
        asked: &Asked,
        body: &[u8],
    ) -> Result<Arc<Prepared>, ScriptError> {
        let base = match self.next_queued(&asked.model) {
            Some(queued) => queued,
            None => self.named(headers, &asked.model)?,
        };
        let mut overlay = Overlay::default();
        if let Some(metadata) = &asked.metadata {
            overlay.merge_value(metadata.clone())?;
        }
        if memmem::find(body, script::MARKER.as_bytes()).is_some() {
            for text in dialect.prompt_texts(body) {
                if overlay.merge_marker(&text)? {
                    break;
                }
            }
        }
        overlay.merge_headers(headers)?;
        if overlay.is_empty() { Ok(base) } else { overlay.apply(&base) }
    }

    fn named(&self, headers: &HeaderMap, model: &str) -> Result<Arc<Prepared>, ScriptError> {
        let Some(name) = headers.get(script::HEADER_SCRIPT) else {
            return Ok(self.by_name.get(model).unwrap_or(&self.default).clone());
        };
        let name = String::from_utf8_lossy(name.as_bytes());
        self.by_name
            .get(&*name)
            .cloned()
            .ok_or_else(|| ScriptError::NotScript(format!("there is no script named `{name}`")))
    }

    /// Known before the body is read, so only from a header or the default script.
    fn read_delay_ms(&self, headers: &HeaderMap) -> u64 {
        let from_header = headers.get("x-stub-read-delay-ms").and_then(|value| value.to_str().ok()?.parse().ok());
        from_header.unwrap_or(self.default.script.read_delay_ms)
    }

    fn model_names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.by_name.keys().map(String::as_str).collect();
        names.sort_unstable();
        if names.is_empty() {
            names.push("stub");
        }
        names
    }
}

#[cfg(test)]
mod tests;
