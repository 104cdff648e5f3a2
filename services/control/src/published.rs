//! The way of a snapshot over the log: published by the control plane, followed by every other role.
//!
//! ```text
//!   document ─▶ parts ─▶ weir.snapshots     tenants/0a3  keys/0a3  models/1f  prices/9c…/0-of-2  …  head
//!                                           only what changed, each under its own scope;         last, signed
//! ```
//!
//! A record has a bound and a policy has none: with 100,000 tenants it is some 70 MB. So it is cut into parts by a hash
//! of what they hold. A new key publishes one part and the head, and on a compacted topic the newest record of every
//! scope is the whole policy. The head names the version, how many parts it has and one hash over all of theirs, under an HMAC
//! with a key of the master key's: a reader takes a version only when everything that it names is there, so a publication
//! that was cut in the middle changes nothing.
//!
//! Price books are parts of their own under the hash of their content and are never replaced: a report that comes late
//! is priced by the book of its admission (I10).

mod follower;
mod last_good;
mod parts;
mod publisher;

pub use follower::{FollowOptions, SnapshotFollower};
pub use parts::{Assembled, Head, Parts, PartsError};
pub use publisher::{PublishError, Publisher};

#[cfg(test)]
#[path = "published_tests.rs"]
mod tests;
