//! Calls to providers over HTTP: connections, deadlines, and an exact account of how far a call got.
//!
//! **Owns** the connections and their pools, HTTP/1.1 towards providers, TLS to them, decoding of compressed answers, and
//! [`CallError`], which says whether a byte of the request may have left. **Must not know** money, policy, dialects'
//! bodies or the client: what an answer means is in `weir-wire`.
//!
//! **Start** with [`Upstream::call`]. Why HTTP is spoken here and not by a client library: in `connection`.
//!
//! **Promises kept here**: I6 (credentials are header values marked sensitive and are never printed), I9 (a failure
//! after the first byte is never reported as "not sent").

mod upstream;

mod endpoint;
mod pool;

mod connection;

mod body;

pub use body::{AnswerBody, BodyError, UnsupportedEncoding};
pub use endpoint::{BadAddress, Endpoint};
pub use upstream::{Answer, Call, CallError, Upstream, UpstreamOptions};
