//! The rules of Weir as pure, total functions of values: money, meters, prices, reservations, quota, policy, routing,
//! ledger lines and reconciliation.
//!
//! **Owns** every decision that touches money or access. **Must not know** a runtime, a clock, randomness or I/O: time,
//! ids and jitter come in as arguments, effects go out as data. Nothing here awaits, logs or panics.
//!
//! **Start** with [`reservation`], whose `decide` and `apply` are the table of the design's section 3; then [`quota`],
//! which turns the positions of reservations into counters; then [`ledger`] and [`reconcile`].
//!
//! **Promises kept here**: see [`invariants`]. Arithmetic on money is integer and never wraps.

pub mod invariants;

pub mod ids;
pub mod money;
pub mod usage;

pub mod price;
pub mod registry;
pub mod policy;
pub mod routing;
pub mod breaker;
pub mod retry;

pub mod attempt;
pub mod outcome;
pub mod reservation;

pub mod calendar;
pub mod rate;
pub mod quota;

pub mod ledger;
pub mod reconcile;
pub mod fold;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
