//! Local days of a time zone, from the IANA database that is compiled in.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, MappedLocalTime, NaiveDateTime, NaiveTime, TimeDelta, TimeZone};
use chrono_tz::Tz;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

use super::window::{date_of, day_of};

/// An IANA time zone, written by its name ("Asia/Tokyo").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Zone(Tz);

impl Zone {
    pub const UTC: Self = Self(Tz::UTC);
}

impl Default for Zone {
    fn default() -> Self {
        Self::UTC
    }
}

/// Why a text is not a zone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a time zone: write a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\"")]
pub struct ZoneError(String);

impl FromStr for Zone {
    type Err = ZoneError;
    fn from_str(name: &str) -> Result<Self, ZoneError> {
        name.parse().map(Self).map_err(|_| ZoneError(name.to_owned()))
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

/// The last millisecond that has a window: the end of the year 9998, so that the end of its windows can be written in
/// four digits too. Times outside 1970 to 9998 count as the nearest inside.
const LATEST_MS: i64 = 253_370_764_799_999;

/// No zone is further than this from UTC.
const FARTHEST_OFFSET: TimeDelta = TimeDelta::hours(16);

/// The local day at `now_ms`, counted from 1970-01-01.
pub(super) fn local_day(now_ms: i64, zone: &Zone) -> i32 {
    let now_ms = now_ms.clamp(0, LATEST_MS);
    let day = day_of(local(now_ms, zone).date());
    // A clock that is set back over midnight shows a day twice; the window of the day that has begun stays.
    if start_of_day_ms(day + 1, zone) <= now_ms { day + 1 } else { day }
}

/// The first instant whose local date is `day` or later, in milliseconds since 1970 UTC.
pub(super) fn start_of_day_ms(day: i32, zone: &Zone) -> i64 {
    let midnight = date_of(day).and_time(NaiveTime::MIN);
    match zone.0.from_local_datetime(&midnight) {
        MappedLocalTime::Single(start) => start.timestamp_millis(),
        MappedLocalTime::Ambiguous(first, _) => first.timestamp_millis(),
        MappedLocalTime::None => end_of_gap_ms(midnight, zone),
    }
}

/// The first instant after a jump of the clock over the local time `skipped`.
fn end_of_gap_ms(skipped: NaiveDateTime, zone: &Zone) -> i64 {
    let centre_ms = skipped.and_utc().timestamp_millis();
    // A jump may skip a whole day (Samoa, 2011), so the search reaches a day further than any offset.
    let reach_ms = (FARTHEST_OFFSET + TimeDelta::days(1)).num_milliseconds();
    let (mut before_ms, mut after_ms) = (centre_ms - reach_ms, centre_ms + reach_ms);
    while after_ms - before_ms > 1 {
        let middle_ms = before_ms + (after_ms - before_ms) / 2;
        if local(middle_ms, zone) < skipped { before_ms = middle_ms } else { after_ms = middle_ms }
    }
    after_ms
}

fn local(now_ms: i64, zone: &Zone) -> NaiveDateTime {
    let utc = DateTime::from_timestamp_millis(now_ms).unwrap_or_default();
    utc.with_timezone(&zone.0).naive_local()
}
