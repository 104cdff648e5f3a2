//! The control store on a real CQL server: the suite, and the faults that only a server has.
//!
//! One server for the whole binary, one keyspace, and one test at a time, because the suite expects an empty store.
//! `WEIR_SKIP_STACK=1` runs the suite on the embedded backend and says so.

#![cfg(test)]

mod conformance;
mod faults;
#[path = "../../../ledger/tests/cql/proxy.rs"]
mod proxy;
#[path = "../../../ledger/tests/cql/server.rs"]
mod server;
mod support;
