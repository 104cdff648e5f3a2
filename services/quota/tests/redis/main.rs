//! The quota store on real Redis servers, which the project's own script starts. Skipped only by `WEIR_SKIP_STACK=1`.
#![cfg(test)]

mod cluster;
mod failover;
mod faults;
mod proxy;
mod single;
mod support;
