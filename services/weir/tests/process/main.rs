//! Real processes of this package's binary: how they start and stop, and what the commands say; and what takes hours, in
//! this process, on a clock of the test's own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails is a failed test")]

mod clocked;
mod commands;
mod lifecycle;
mod operators;
mod support;
mod terminal;
