//! `POST /v1/chat/completions`, both ways: what a client asks, what a provider is asked, what comes back.
//!
//! Same dialect in and out is observe and splice. Read [`request`] first, then [`stream`] and [`editor`].

pub mod request;

mod messages;
mod parse;
mod rewrite;
mod texts;
mod tool_calls;

pub mod answer;
pub mod editor;
pub mod response;
pub mod stream;
pub mod usage;

pub use answer::{AnswerFacts, Finish, InBandError};
pub use editor::StreamEditor;
pub use request::{CapField, ChatFacts, ChatRequest, IncludeUsage, Limits, ResponseFormat, Tool};
pub use response::PlainAnswer;
pub use rewrite::{DeveloperRole, UpstreamEdits};
pub use stream::{StreamReader, StreamState};
pub use texts::MessageTexts;
