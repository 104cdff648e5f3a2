//! The windows themselves: numbered days, weeks and months of the proleptic Gregorian calendar.

use std::fmt;
use std::str::FromStr;

use chrono::{Datelike, Days, NaiveDate, Weekday};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// How long a window lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    Day,
    /// Monday to Sunday, numbered as ISO 8601 has it.
    Week,
    Month,
    /// From the first request to the last.
    Total,
}

impl WindowKind {
    pub const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Total];
}

impl fmt::Display for WindowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Total => "total",
        })
    }
}

/// A calendar window. Within a kind, a later window has a greater ordinal and an id that sorts later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Window {
    pub kind: WindowKind,
    /// Days, Monday weeks or months since 1970-01-01; 0 for the total.
    pub ordinal: i32,
}

/// Why a text is not a window id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a window: write `d2026-03-01`, `w2026-W09`, `m2026-03` or `total`")]
pub struct WindowError(String);

/// 1970-01-01 was a Thursday, three days into its week: week 0 began on Monday, day −3.
const DAYS_INTO_WEEK_0: i32 = 3;

impl Window {
    pub const TOTAL: Self = Self { kind: WindowKind::Total, ordinal: 0 };

    /// The window of `kind` that holds the local `day`, counted from 1970-01-01.
    pub(super) fn containing(kind: WindowKind, day: i32) -> Self {
        let ordinal = match kind {
            WindowKind::Day => day,
            WindowKind::Week => (day + DAYS_INTO_WEEK_0).div_euclid(7),
            WindowKind::Month => month_of(date_of(day)),
            WindowKind::Total => 0,
        };
        Self { kind, ordinal }
    }

    /// The first local day after the window; `None` for the total.
    pub(super) fn next_first_day(self) -> Option<i32> {
        let next = Self { kind: self.kind, ordinal: self.ordinal.saturating_add(1) };
        next.first_day()
    }

    fn first_day(self) -> Option<i32> {
        match self.kind {
            WindowKind::Day => Some(self.ordinal),
            WindowKind::Week => Some(self.ordinal.saturating_mul(7).saturating_sub(DAYS_INTO_WEEK_0)),
            WindowKind::Month => Some(day_of(first_of_month(self.ordinal))),
            WindowKind::Total => None,
        }
    }
}

/// The date of a day counted from 1970-01-01; days beyond what a calendar can name stop at its ends.
pub(super) fn date_of(day: i32) -> NaiveDate {
    let distance = Days::new(u64::from(day.unsigned_abs()));
    let (date, end) = if day < 0 {
        (NaiveDate::default().checked_sub_days(distance), NaiveDate::MIN)
    } else {
        (NaiveDate::default().checked_add_days(distance), NaiveDate::MAX)
    };
    date.unwrap_or(end)
}

pub(super) fn day_of(date: NaiveDate) -> i32 {
    date.num_days_from_ce() - NaiveDate::default().num_days_from_ce()
}

fn month_of(date: NaiveDate) -> i32 {
    (date.year() - 1970) * 12 + date.month0().cast_signed()
}

fn first_of_month(month: i32) -> NaiveDate {
    let year = 1970i32.saturating_add(month.div_euclid(12));
    NaiveDate::from_ymd_opt(year, month.rem_euclid(12).unsigned_abs() + 1, 1).unwrap_or(NaiveDate::MAX)
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let date = date_of(self.first_day().unwrap_or_default());
        match self.kind {
            WindowKind::Day => write!(f, "d{:04}-{:02}-{:02}", date.year(), date.month(), date.day()),
            WindowKind::Week => write!(f, "w{:04}-W{:02}", date.iso_week().year(), date.iso_week().week()),
            WindowKind::Month => write!(f, "m{:04}-{:02}", date.year(), date.month()),
            WindowKind::Total => f.write_str("total"),
        }
    }
}

impl FromStr for Window {
    type Err = WindowError;
    fn from_str(id: &str) -> Result<Self, WindowError> {
        let window = parse(id).ok_or_else(|| WindowError(id.to_owned()))?;
        // One window has one id: what would print otherwise (`d2026-3-1`) is another text and is refused.
        if window.to_string() == id { Ok(window) } else { Err(WindowError(id.to_owned())) }
    }
}

fn parse(id: &str) -> Option<Window> {
    if id == "total" {
        return Some(Window::TOTAL);
    }
    let (kind, date) = id.split_at_checked(1)?;
    let (year, rest) = date.split_once('-')?;
    let year: i32 = year.parse().ok()?;
    let (kind, date) = match kind {
        "d" => (WindowKind::Day, date.parse().ok()?),
        "w" => {
            let week = rest.strip_prefix('W')?.parse().ok()?;
            (WindowKind::Week, NaiveDate::from_isoywd_opt(year, week, Weekday::Mon)?)
        }
        "m" => (WindowKind::Month, NaiveDate::from_ymd_opt(year, rest.parse().ok()?, 1)?),
        _ => return None,
    };
    Some(Window::containing(kind, day_of(date)))
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        id.parse().map_err(serde::de::Error::custom)
    }
}
