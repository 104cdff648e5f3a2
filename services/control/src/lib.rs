//! The control plane: catalogs, virtual keys, the control store, snapshots, and the admin API.
//!
//! **Owns** what is configured rather than counted: who the tenants are, which keys, models, limits and prices are in
//! force, and how a change of them becomes the next snapshot. **Must not know** the request path, quota, the log or the
//! ledger: what the admin API shows of those comes through the ports of [`ports`], and no gateway ever calls this crate
//! while it serves a request.
//!
//! **Start** with [`Control`], whose acts all have one shape, then [`catalog`] (what people write) and [`document`] (what
//! a snapshot publishes). [`store`] is where the state lives: one contract, a backend for one process and one for any
//! number of control planes, one suite for both.
//!
//! **Promises kept here**: I6 (keys as HMACs under a pepper, tenants' secrets inside the master key, credentials as
//! references: [`secrets`]); I10 and I13 (every published price book is kept by its content: [`store`]); O21 (a model
//! without a price is refused when its catalog is read: [`catalog`]).

pub mod admin;
mod apply;
pub mod catalog;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod control;
pub mod document;
pub mod litellm;
pub mod ports;
mod prices;
pub mod published;
pub mod secrets;
pub mod state;
pub mod store;
mod virtual_key;

pub use apply::Collision;
pub use control::{Applied, Control, ControlError, CreatedKey, KeyRequest, KeyStatus, KeyView, SnapshotSource};
pub use prices::{ShippedPricesError, shipped_prices};
pub use published::{FollowOptions, Publisher, SnapshotFollower};
pub use virtual_key::VirtualKey;
