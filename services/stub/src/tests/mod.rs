//! The stub from outside, through a raw client: exact bytes, real resets, real disconnects.

mod client;
mod embeddings;
mod faults;
mod journals;
mod messages;
mod responses;
mod selection;
mod streams;
mod whole;

use std::time::Duration;

use client::Client;

use crate::journal::{Entry, State};
use crate::script::{Script, Scripts};
use crate::{Stub, StubOptions};

/// Longer than anything here takes on a busy machine; a test that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn script(toml: &str) -> Script {
    toml::from_str(toml).unwrap()
}

/// A stub whose default script is `toml`.
fn stub(toml: &str) -> Stub {
    let scripts = Scripts { default: script(toml), ..Scripts::default() };
    Stub::start(StubOptions { scripts, ..StubOptions::default() }).unwrap()
}

const PLAIN: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
const STREAM_WITH_USAGE: &str = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}"#;

/// The one entry of the journal, once it has ended.
async fn ended(stub: &Stub) -> Entry {
    until(|| {
        let mut entries = stub.journal();
        assert!(entries.len() <= 1, "one request was sent");
        entries.pop().filter(|entry| entry.state != State::Running)
    })
    .await
}

/// Looks until there is something, or fails.
async fn until<T>(look: impl Fn() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "nothing came in time");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// One request and the whole answer, on a connection of its own.
async fn ask(stub: &Stub, body: &str) -> client::Answer {
    Client::connect(stub).await.ask(body).await
}
