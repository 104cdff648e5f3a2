//! What operators and the reconciler must know of the machinery: the topic `operations`.
//!
//! The only topic with records of several kinds beside `reservations`: [`Operation`] reads any of them.

use serde::{Deserialize, Serialize};
use uuid::Uuid;
use weir_domain::ids::{KeyId, ModelName, Region, TenantId};

use crate::frame::{self, DecodeError, FieldError};
use crate::parts::{millis, uuid_text};
use crate::record::{Record, check_figures};

/// A process of some role lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The process, by its configured name.
    pub gateway: String,
    pub region: Region,
    /// Rises with each start of this process.
    pub epoch: u64,
    #[serde(rename = "started_at", with = "millis")]
    pub started_at_ms: i64,
    #[serde(rename = "sent_at", with = "millis")]
    pub sent_at_ms: i64,
    /// The position after the newest event in the spool.
    pub spool_head: u64,
    /// Up to here the spool is in the log; equal to the head when it is drained.
    pub spool_forwarded: u64,
    /// What it does. Only gateways beat before there was this field.
    #[serde(default = "gateway")]
    pub role: String,
    /// Of Weir; empty where it did not say.
    #[serde(default)]
    pub release: String,
    /// The policy that it has in force; 0 for none.
    #[serde(default)]
    pub snapshot_version: u64,
    /// It said good-bye: nothing of it is to be waited for.
    #[serde(default)]
    pub leaves: bool,
}

fn gateway() -> String {
    "gateway".to_owned()
}

/// A person changed something by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorAct {
    #[serde(with = "uuid_text")]
    pub act_id: Uuid,
    pub who: String,
    pub why: String,
    /// `key.revoke`, `reconcile.import`, `quota.rebuild`, …
    pub act: String,
    /// What it was done to, by id.
    pub object: String,
    pub tenant: Option<TenantId>,
    #[serde(rename = "at", with = "millis")]
    pub at_ms: i64,
}

/// A person told a consumer to go on without a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumerSkip {
    pub consumer: String,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    pub key: String,
    pub error: String,
    pub who: String,
    pub why: String,
    #[serde(rename = "at", with = "millis")]
    pub at_ms: i64,
}

/// Requests were refused by a limit; sampled above a rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmissionDenied {
    pub tenant: TenantId,
    #[serde(rename = "key_id")]
    pub key: KeyId,
    pub model: ModelName,
    /// The limit in words, as its `Display` gives it.
    pub limit: String,
    /// How many refusals this record stands for.
    pub count: u64,
    pub gateway: String,
    #[serde(rename = "at", with = "millis")]
    pub at_ms: i64,
}

/// A step of a rebuild of counters that the quota store lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaRebuild {
    #[serde(with = "uuid_text")]
    pub rebuild_id: Uuid,
    /// One of [`QuotaRebuild::BEGAN`], [`QuotaRebuild::HELD`], [`QuotaRebuild::OPENED`].
    pub step: String,
    /// Who says it: name, region and epoch as in its heartbeats.
    pub process: String,
    pub region: Region,
    pub epoch: u64,
    /// How many tenants' counters are rebuilt; 0 from a gateway.
    pub tenants: u64,
    /// When opened: gateways that did not answer in time, as `region/name-epoch`.
    pub absent: Vec<String>,
    #[serde(rename = "at", with = "millis")]
    pub at_ms: i64,
}

impl QuotaRebuild {
    /// Counters are closed, and every gateway is asked.
    pub const BEGAN: &'static str = "began";
    /// All that this gateway may spend is on the log.
    pub const HELD: &'static str = "held";
    /// The counters are in force again.
    pub const OPENED: &'static str = "opened";
}

impl Record for Heartbeat {
    const NAME: &'static str = "Heartbeat";
    const SCHEMA_ID: u32 = 70605;

    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

impl Record for OperatorAct {
    const NAME: &'static str = "OperatorAct";
    const SCHEMA_ID: u32 = 70602;

    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

impl Record for ConsumerSkip {
    const NAME: &'static str = "ConsumerSkip";
    const SCHEMA_ID: u32 = 70603;

    fn check(&self) -> Result<(), FieldError> {
        check_figures(Self::NAME, &[("partition", self.partition.into()), ("offset", self.offset)])
    }
}

impl Record for AdmissionDenied {
    const NAME: &'static str = "AdmissionDenied";
    const SCHEMA_ID: u32 = 70604;

    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

impl Record for QuotaRebuild {
    const NAME: &'static str = "QuotaRebuild";
    const SCHEMA_ID: u32 = 70606;

    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

/// Any record of the topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Heartbeat(Heartbeat),
    OperatorAct(OperatorAct),
    ConsumerSkip(ConsumerSkip),
    AdmissionDenied(AdmissionDenied),
    QuotaRebuild(QuotaRebuild),
}

impl Operation {
    /// Reads a frame of any released version of any of them.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        match frame::open(frame)?.released.record {
            Heartbeat::NAME => Heartbeat::decode(frame).map(Self::Heartbeat),
            OperatorAct::NAME => OperatorAct::decode(frame).map(Self::OperatorAct),
            ConsumerSkip::NAME => ConsumerSkip::decode(frame).map(Self::ConsumerSkip),
            AdmissionDenied::NAME => AdmissionDenied::decode(frame).map(Self::AdmissionDenied),
            QuotaRebuild::NAME => QuotaRebuild::decode(frame).map(Self::QuotaRebuild),
            found => Err(DecodeError::OtherRecord { expected: "record of operations", found }),
        }
    }
}
