//! The written form of a price, as catalog files, the shipped price book and snapshots hold it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, NaiveDate, NaiveTime};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Rate;
use crate::money::NanoUsd;
use crate::usage::Meter;

/// One `[[price]]` table. [`super::PriceBook::new`] checks what a type cannot say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceEntry {
    pub name: String,
    /// Where the figures come from: for people, no part of the version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The first instant of its validity; absent: since ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_from: Option<EffectiveMs>,
    /// The first instant after its validity; absent: until further notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_to: Option<EffectiveMs>,
    /// The operator's word that usage costs nothing; excludes rates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free: bool,
    /// Dollars per unit of a `tool.*` or `media.*` meter, the same in all terms.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub each: BTreeMap<Meter, NanoUsd>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub terms: Vec<TermsEntry>,
}

/// One `[[price.terms]]` table: the rates of one tier from one length on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TermsEntry {
    /// Absent means the default tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Past this many input tokens, all tokens of the request take these rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub above_input_tokens: Option<i64>,
    /// Whether exactly `above_input_tokens` already takes these rates (`>=`, as some providers have it).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_threshold: bool,
    /// Dollars per million tokens of an `in.*` or `out.*` meter.
    pub rates: BTreeMap<Meter, Rate>,
}

/// An instant in milliseconds since 1970 UTC, written as a date (midnight UTC) or an RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectiveMs(pub i64);

impl FromStr for EffectiveMs {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let time = DateTime::parse_from_rfc3339(text).map(|time| time.timestamp_millis());
        let midnight =
            || text.parse::<NaiveDate>().map(|date| date.and_time(NaiveTime::MIN).and_utc().timestamp_millis());
        time.or_else(|_| midnight()).map(Self).map_err(|_| {
            format!("`{text}` is neither a date (\"2026-10-01\") nor a time with its offset (\"2026-10-01T00:00:00Z\")")
        })
    }
}

impl fmt::Display for EffectiveMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::from_timestamp_millis(self.0) {
            Some(time) => f.write_str(&time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)),
            None => write!(f, "{} ms", self.0),
        }
    }
}

impl Serialize for EffectiveMs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { serializer.serialize_i64(self.0) }
    }
}

impl<'de> Deserialize<'de> for EffectiveMs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            i64::deserialize(deserializer).map(Self)
        }
    }
}
