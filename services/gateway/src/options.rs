//! What an operator may set of the request path. Every bound says why it is there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use weir_runtime::units::{ByteSize, HumanDuration};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayOptions {
    /// The region that owns the reservations made here.
    pub region: String,
    /// The largest request body. Larger ones get 413 before any reservation.
    pub max_body: ByteSize,
    /// What all request bodies together may take; beyond it new ones get 503 instead of the process being killed.
    pub max_bodies: ByteSize,
    /// How long a client may take to send its body.
    pub body_deadline: HumanDuration,
    /// The largest plain answer of a provider.
    pub max_answer: ByteSize,
    /// The largest single event of a provider's stream.
    pub max_event: ByteSize,
    /// What of a stream is held back until its first content: role, metadata, comments. At the bound the stream counts
    /// as committed.
    pub max_preamble: ByteSize,
    /// How long a reservation lives without a renewal. A dead process is found after this.
    pub lease: HumanDuration,
    /// How often leases are renewed; several tries fit into one lease.
    pub renew_every: HumanDuration,
    /// When a silent stream gets its status line, so that load balancers do not cut it. `0s` switches it off: then
    /// exhaustion is always a true status.
    pub status_after: HumanDuration,
    /// How often a silent, committed stream gets a comment. `0s` switches it off, for clients that choke on comments.
    pub keep_alive_every: HumanDuration,
    /// How much of one answer to a request with an `Idempotency-Key` is kept for those who ask again: a long answer is
    /// some 100 KiB. A longer one can be had once only.
    pub replay_entry: ByteSize,
    /// What all kept answers together may take; the oldest make room, and where that is not enough new ones can be had
    /// once only.
    pub replay_total: ByteSize,
    /// How long an answer is kept after its end, and a call goes on whose client left: what a client needs to try again.
    /// `0s` keeps nothing; the key still never calls a provider twice.
    pub replay_for: HumanDuration,
    /// How long the rest of an abandoned attempt is read where its provider says `on_abandon = "drain"`: as long as an
    /// answer may take.
    pub drain_for: HumanDuration,
    /// The same for `on_abandon = "drain_within"`: what an answer takes that was almost done.
    pub drain_within: HumanDuration,
    /// How much of it is read; beyond it the connection is closed and the usage stays unknown.
    pub drain_bytes: ByteSize,
    /// How many abandoned attempts are read at once; each keeps a connection. Beyond it they are closed.
    pub max_drains: u32,
    /// How many tokens 1,000 bytes of text can be at most where a deployment does not say. 1,000 holds for every
    /// byte-level tokenizer.
    pub tokens_per_kilobyte: u32,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            region: "local".to_owned(),
            max_body: ByteSize::mib(32),
            max_bodies: ByteSize::mib(512),
            body_deadline: HumanDuration::from_ms(30_000),
            max_answer: ByteSize::mib(64),
            max_event: ByteSize::mib(16),
            max_preamble: ByteSize::kib(256),
            lease: HumanDuration::from_ms(60_000),
            renew_every: HumanDuration::from_ms(20_000),
            status_after: HumanDuration::from_ms(30_000),
            keep_alive_every: HumanDuration::from_ms(15_000),
            replay_entry: ByteSize::mib(1),
            replay_total: ByteSize::mib(64),
            replay_for: HumanDuration::from_ms(120_000),
            drain_for: HumanDuration::from_ms(600_000),
            drain_within: HumanDuration::from_ms(10_000),
            drain_bytes: ByteSize::mib(16),
            max_drains: 1_000,
            tokens_per_kilobyte: 1000,
        }
    }
}
