//! `weir contract`: what a gateway does to a stream when its provider misbehaves, clause by clause.
//!
//! **Owns** the clauses (`clauses`: what is asked, what the provider is told to do, what must hold), the reading of what
//! a client got, and the report. It knows nothing of Weir: a gateway under test is a URL and a key, and its provider is
//! `weir stub`, whose journal is the other side of every statement. What streams say is read here anew and not by
//! `weir-wire`, so that a mistake there cannot excuse itself here.
//!
//! Read `clauses` first, then `expect`: expectations are functions of recorded evidence, tested with transcripts that
//! keep a clause and transcripts that break it.

mod pair;

mod clauses;
mod expect;
mod verdict;

mod evidence;
mod reading;
mod requests;

mod client;
mod provider;
mod runner;

pub mod report;
pub mod setup;

pub use clauses::{ALL, Clause, find};
pub use client::{Gateway, GatewayError};
pub use pair::{ClientApi, Pair, ProviderApi};
pub use provider::{Provider, ProviderError};
pub use runner::{Plan, run};
pub use verdict::{Outcome, Verdict};
