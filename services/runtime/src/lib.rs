//! What every process of Weir needs and no rule: time, randomness, tasks, sockets, health, metrics, logs, TLS, secrets,
//! units in configuration, and fail points.
//!
//! **Owns** every place where a process touches the outside world without touching money. **Must not know** tenants,
//! reservations, providers or dialects; the one domain type here is the reservation id, because making one needs
//! randomness and a clock, which `weir-domain` must not have.
//!
//! **Start** with [`tasks`], whose `Tasks` owns everything that runs, then [`listener`], which runs on it.
//!
//! **Promises kept here**: I3 (a reservation id is always new: [`entropy::new_reservation_id`]), I6 (a secret is a
//! reference until the moment of use, and never prints: [`secrets`], [`telemetry::Redacted`]), and the ground under I11
//! (every task has an owner that waits for it: [`tasks`]).

pub mod clock;
pub mod entropy;
pub mod failpoint;
pub mod health;
pub mod listener;
pub mod metrics;
pub mod secrets;
pub mod story;
pub mod tasks;
pub mod telemetry;
pub mod tls;
pub mod units;
