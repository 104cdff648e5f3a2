//! The harness of the end-to-end tests: a real `weir up` before a scripted provider, and everything that can be asked of
//! both from outside.
//!
//! **Owns** how a test starts, watches, breaks and stops a process, and how it reads what that process leaves behind.
//! **Must not know** the inside of any service: what is asserted is seen through HTTP, the commands and the files, as an
//! operator or an auditor would see it. The few crates of the workspace that it uses are the vocabulary (`weir-domain`),
//! the provider's side (`weir-stub`) and the reader of the ledger file (`weir-ledger`).
//!
//! **Start** with [`House`]; then [`catalog`] and [`client`]. The tests lie one folder up, one file per promise;
//! `README.md` there says what each shows.
//!
//! A test that cannot be set up has failed, so nothing here returns an error: it panics and says what it saw.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "this crate is part of the tests: a panic with what was seen is how a test fails"
)]

mod house;

pub mod catalog;
pub mod client;
pub mod commands;
pub mod rest;

pub mod bill;
pub mod random;

pub mod protocol;
pub mod growth;

pub mod crash;
pub mod failpoints;

mod binary;
mod process;

pub mod sdk;

pub mod stack;

pub use binary::weir_binary;
pub use house::{House, Setup};
pub use process::Process;
pub use rest::AtRest;

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long a test waits for something that must happen soon. Generous, because machines are shared.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate has a parent folder").to_owned()
}

/// Asks again and again until `look` finds something; panics with `what` when it does not in time.
pub async fn eventually<T>(what: &str, within: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    /// Short beside whatever is waited for.
    const AGAIN: Duration = Duration::from_millis(10);
    let deadline = Instant::now() + within;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen within {within:?}");
        tokio::time::sleep(AGAIN).await;
    }
}
