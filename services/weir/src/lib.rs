//! The one binary: every role of Weir, in one process or apart, and the commands that people type.
//!
//! **Owns** the composition: which parts there are, in which order they start and stop, where they keep their files, and
//! how a configuration, a command or an error looks to a person. **Must not know** any rule: whatever decides about
//! money, routes or policy is in a crate below.
//!
//! **Start** with [`up`], which is the whole system on one page; then `roles`, the same apart on Kafka, CQL and Redis; then
//! [`config`], what an operator may set; then [`cli`]. Everything is a library, so that tests run the same process inside their own.
//!
//! **Promises kept here**: I11 and I13 (the order of start and stop: nothing is admitted before the counters are folded,
//! and nothing ends before what it appended is derived), I15 (the quota store opens only with books that were folded
//! from the log), I6 (secrets are made once, readable by their owner alone, and printed never).

pub mod up;
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
pub mod roles;
mod process;

pub mod config;
pub mod data;

pub mod events;
mod parked;
pub mod records;
pub mod story;

pub mod contract;

pub mod cli;
