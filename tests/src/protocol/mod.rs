//! The accounting protocol as a world that can be searched: gateways, log, spools, builder, corrector, reports, sweep,
//! a store that fails over, and providers who know what they bill.
//!
//! Everything that decides is the real thing: `decide` and `apply` inside `Book`, `Fold` with the ledger's ranks,
//! `reconcile::plan`, and the sweep's `moves`, `told_again` and `unheard`. What is written here is the order in which a
//! gateway and the consumers use them, cut into the steps between which a process can die or another can act.
//!
//! Why an own search, and not a model checker's: the parts of a state (a book, a fold, a gateway) are real values with
//! maps inside, while a whole run has only a few thousand different ones of each. So each part is kept once and a state
//! is a few numbers; a step of a part is computed once and then looked up. That is what makes millions of states take
//! seconds without optimisation, and `stateright` has no place for it.
//!
//! **Start** with [`Scenario`]; `gateway.rs` reads like the request path; `rest.rs` says what must be true at the end.

mod pool;
mod scenario;
mod state;
mod values;
mod world;

mod gateway;
mod followers;
mod reports;
mod sweep;
mod faults;

mod rest;
mod search;

pub use scenario::{Faults, Mutation, ReportsSay, Scenario};
pub use search::{Found, search};
