//! The log on Kafka, on real brokers: they are started by these tests and gone when the process is.
//!
//! Without a broker these tests fail; `WEIR_SKIP_STACK=1` skips them, and each says so.

#![cfg(test)]

mod conformance;
mod faults;
mod groups;
mod spool;

mod support;
