//! Logs of the process: one subscriber, to stderr, as text or JSON; how lines get there: `lines`.
//!
//! Standard output stays free for what a command prints on purpose. Messages are fixed and lowercase, values are
//! fields; a prompt, a key or a completion is never a field (I6).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;

use lines::Lines;

mod fields;
mod lines;

pub use lines::Flush;

/// How the process logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    pub format: Format,
    /// Which spans and messages: `info`, or directives such as `warn,weir_gateway=debug`.
    pub filter: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One object per line, for machines.
    Json,
}

impl Default for Options {
    fn default() -> Self {
        Self { format: Format::Text, filter: "info".to_owned() }
    }
}

#[derive(Debug, Error)]
pub enum TelemetryError {
    #[error("`filter` is not a list of directives such as \"warn,weir_gateway=debug\"")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error("logging was already set up in this process")]
    AlreadySet(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("no thread can be started to write the log")]
    Thread(#[source] std::io::Error),
}

/// Sets up logging for the whole process; called once, first thing in `main`. What is buffered is written when the
/// returned guard is dropped, so it is held to the end.
pub fn init(options: &Options) -> Result<Flush, TelemetryError> {
    let filter = EnvFilter::try_new(&options.filter).map_err(TelemetryError::Filter)?;
    let lines = Lines::default();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(lines.clone());
    let started = match options.format {
        Format::Text => builder.with_ansi(false).fmt_fields(debug_fn(fields::write).delimited(" ")).try_init(),
        Format::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
    };
    started.map_err(TelemetryError::AlreadySet)?;
    lines.write_to(std::io::stderr()).map_err(TelemetryError::Thread)
}

/// A value that is carried and used but never printed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Redacted<T>(pub T);

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T> fmt::Display for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_redacted_prints_nowhere() {
        let carried = Redacted("sk-planted");
        assert_eq!(format!("{carried} {carried:?} {carried:#?}"), "[redacted] [redacted] [redacted]");
        assert_eq!(carried.0, "sk-planted");
    }

    #[test]
    fn a_wrong_filter_is_refused_and_a_second_set_up_too() {
        let wrong = Options { filter: "weir_gateway=loud".to_owned(), ..Options::default() };
        assert!(matches!(init(&wrong), Err(TelemetryError::Filter(_))));
        let _flush = init(&Options { filter: "off".to_owned(), format: Format::Json }).unwrap();
        assert!(matches!(init(&Options::default()), Err(TelemetryError::AlreadySet(_))));
    }

    #[test]
    fn unknown_options_are_errors() {
        let error = serde_json::from_str::<Options>(r#"{"fromat":"json"}"#).unwrap_err().to_string();
        assert!(error.contains("fromat"), "{error}");
    }
}
