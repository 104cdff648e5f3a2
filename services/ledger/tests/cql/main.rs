//! The ledger on a real CQL server: the suites, and the faults that only a server has.
//!
//! One server for the whole binary, one keyspace, and one test at a time, because the suites count everything that is
//! in a store. `WEIR_SKIP_STACK=1` runs the suites on the embedded backend and says so.

#![cfg(test)]

mod builder;
mod conformance;
mod faults;
mod migrations;
mod proxy;
mod server;
mod support;
