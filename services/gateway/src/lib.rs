//! The request path: from a client's first byte to the last event of its reservation.
//!
//! **Owns** the life of a request, and nothing else: authenticate, authorize, estimate, reserve, execute, relay,
//! finalize. **Must not know** how a catalog is edited, how the ledger is built, or where the log and the counters live:
//! it holds a snapshot, an event log and a quota store behind their contracts.
//!
//! **Start** with [`lifecycle`], which reads like the table of contents of the system; each stage is the file of its
//! name.
//!
//! **Promises kept here**: I1 (order of the stages), I3 (one reservation a request), I4 (no splice), I8 (log first), I9
//! (unknown stays held), I11 (every path ends in `finalize`), I14 (the mark before the call, durable before content).

pub mod lifecycle;

mod attempt;
mod authenticate;
mod authorize;
mod body;
mod call;
mod continuation;
mod course;
mod deliver;
mod drain;
mod dialects;
mod estimate;
mod execute;
mod finalize;
mod peek;
mod recount;
mod relay;
mod replay;
mod reserve;
mod route;

mod respond;

mod arrival;
mod circuits;
mod client;
mod credentials;
mod headers;
mod leases;
mod metrics;
mod models;
mod options;
mod record;
mod server;
mod states;
mod terms;

pub use authenticate::Pepper;
pub use options::GatewayOptions;
pub use server::{Gateway, GatewayParts};
