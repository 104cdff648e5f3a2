//! What clients, providers and the log see of a gateway in this process; one program, because linking one for each file
//! took longer than running it.
//!
//! Three files stay programs of their own: `slow_readers` and `large_bodies` measure the memory of their whole process,
//! and `brownout` wants the machine for itself.
#![cfg(test)]

mod abandoned;
mod attempts;
mod bad_input;
mod continuations;
mod contract;
mod cuts;
mod dialects;
mod endpoints;
mod envelopes;
mod exact_count;
mod headers;
mod leases;
mod lost_log;
mod lost_replies;
mod pair_streams;
mod races;
mod rebuilds;
mod replays;
mod requests;
mod streams;

#[expect(dead_code, reason = "each program uses its own part of the harness")]
mod support;
