//! Streams across dialects: one writer for each direction, fed by the reader of the provider's dialect.
//!
//! The end is written by `finish` alone, after the gateway knows that the answer is whole: finish reason, usage and
//! terminal together, so that a stream that breaks after the reason shows its client no end.

mod to_chat;
mod to_messages;

pub(crate) use to_chat::{ChatWriter, REASONING_FORMAT};
pub(crate) use to_messages::MessagesWriter;
