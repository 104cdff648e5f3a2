//! The suites: what every backend of [`crate::EventLog`] and every pair of consumer stores must pass.
//!
//! A backend's test file is a harness and one call of the macro. Each case gets a fresh harness, so that cases need
//! not know of each other, and returns an error rather than panicking, so that it can name what it saw.

pub mod consumer;
pub mod faults;
pub mod log;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::contract::EventLog;

/// Failed assertions panic; everything else that goes wrong is one of these.
pub type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// How long a case waits for what should come at once: long enough for a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// One empty storage, which can be opened again after it was closed.
#[async_trait]
pub trait Harness: Send + Sync {
    /// # Errors
    /// When the backend cannot be opened.
    async fn open(&self) -> Result<Arc<dyn EventLog>, Box<dyn Error + Send + Sync>>;
}

/// Backends of this machine are never skipped.
#[must_use]
pub const fn never(_case: &str) -> bool {
    false
}

/// One `#[tokio::test]` per case of [`log`], for a backend with an `async fn() -> impl Harness` named `$fresh`. A backend
/// with a real server names a function that says whether a case is skipped, and tells so.
#[macro_export]
macro_rules! event_log_conformance {
    ($fresh:path) => {
        $crate::event_log_conformance!($fresh, unless $crate::conformance::never);
    };
    ($fresh:path, unless $skips:path) => {
        $crate::event_log_conformance!($fresh, unless $skips:
            keeps_the_order_of_each_key, keeps_batches_contiguous, keeps_what_was_durable_over_a_reopen,
            reads_from_any_position, wakes_who_waits, keeps_the_order_of_concurrent_appenders,
            knows_where_partitions_end, takes_a_big_record, takes_empty_keys_and_values,
            reads_nothing_beyond_the_end, stores_copies_as_records, refuses_what_is_out_of_bounds,
            takes_nothing_after_close, shows_only_durable_records_by_default,
        );
    };
    ($fresh:path, unless $skips:path: $($case:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() -> $crate::conformance::Outcome {
                if $skips(stringify!($case)) {
                    return Ok(());
                }
                $crate::conformance::log::$case(&$fresh().await).await
            }
        )+
    };
}
