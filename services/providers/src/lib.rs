//! Calls to providers over HTTP: connections, deadlines, and an exact account of how far a call got.
//!
//! **Owns** the connection pools, TLS to providers, decoding of compressed answers, and [`CallError`], which says
//! whether a byte of the request may have left. **Must not know** money, policy, dialects' bodies or the client: what an
//! answer means is in `weir-wire`.
//!
//! **Start** with [`Upstream::call`].
//!
//! **Promises kept here**: I6 (credentials are header values marked sensitive and are never printed), I9 (a failure
//! after the first byte is never reported as "not sent").

mod decode;
mod upstream;

pub use decode::{AnswerBody, BodyError, UnsupportedEncoding};
pub use upstream::{Answer, Call, CallError, Upstream, UpstreamOptions};
