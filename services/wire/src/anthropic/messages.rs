//! `POST /v1/messages`, both ways: what a client asks, what a provider is asked, what comes back.
//!
//! Same dialect in and out is observe and splice. Read [`request`] first, then [`event`], [`stream`] and [`editor`].

pub mod request;

mod blocks;
mod parse;

pub mod editor;
pub mod event;
pub mod response;
pub mod stream;
pub mod usage;

pub use editor::MessageEditor;
pub use event::{EventFacts, EventType, StopReason};
pub use request::{MessagesEdits, MessagesRequest, Purpose};
pub use response::{MessageAnswer, TokenCount};
pub use stream::{MessageReader, MessageStep};
