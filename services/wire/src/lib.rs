//! The bytes of clients and providers, understood and edited without I/O.
//!
//! **Owns** every protocol detail: request facts and rewrites, event-stream framing, what a chunk says, usage reports as
//! disjoint meters, what an attempt's end means for money, error envelopes, header allow-lists. **Must not know** a
//! runtime, a clock, randomness, sockets or the HTTP library: statuses are `u16`, headers are `(&str, &str)`, time and
//! ids are arguments.
//!
//! **Start** with [`request`]: a request comes in as [`ClientRequest`] and goes out by its `for_target`; a plain answer
//! comes back as [`ProviderAnswer`], a stream through a [`Translator`]. Behind these, [`openai`] and [`anthropic`] know one
//! protocol each, and [`translate`] leads from one to the other. Every function that differs by protocol takes a
//! [`Dialect`] and matches it exhaustively. `README.md` shows the whole path in code.
//!
//! **Promises kept here**: I4 (content is a fact of the bytes alone), I6 (no credential or header passes that no list
//! names), I7 and I9 (usage is the provider's; what cannot be read is unknown, never zero). Relay is observe and splice:
//! bytes that Weir does not own pass unchanged.

mod dialect;

pub mod request;

pub mod answer;
pub mod translator;

pub mod translate;

pub mod continuation;

pub mod anthropic;
pub mod openai;

pub mod envelope;
pub mod headers;
pub mod rate_limit;
pub mod retry_after;
pub mod sse;
pub mod usage;
pub mod verdict;

pub mod bound;
pub mod json;
pub mod splice;

mod request_error;

pub use answer::ProviderAnswer;
pub use dialect::{Dialect, Family};
pub use request::{ClientRequest, Target, UpstreamRequest};
pub use request_error::{RequestError, RequestErrorCode};
pub use translate::Untranslatable;
pub use translator::{ClientSide, Garbage, ProviderSide, Step, StreamFacts, Translator};
