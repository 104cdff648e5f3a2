//! Real processes of this package's binary: how they start and stop, and what the commands say.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a helper that fails is a failed test")]

mod commands;
mod lifecycle;
mod operators;
mod support;
mod terminal;
