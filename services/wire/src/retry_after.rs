//! How long a provider asks us to wait, and how long we ask a client to.
//!
//! Integers only, rounded up: a wait that is too short is a second refusal. `now` is an argument.

/// A wait in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RetryAfter {
    wait_ms: u64,
}

/// The longest wait believed: a year, so that later arithmetic cannot overflow.
const MAX_WAIT_MS: u64 = 366 * 24 * 3_600 * 1_000;

impl RetryAfter {
    #[must_use]
    pub const fn from_ms(wait_ms: u64) -> Self {
        Self { wait_ms: if wait_ms < MAX_WAIT_MS { wait_ms } else { MAX_WAIT_MS } }
    }

    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.wait_ms
    }

    /// The value of a `retry-after` header: whole seconds, rounded up, never 0 (O40).
    #[must_use]
    pub const fn header_seconds(self) -> u64 {
        let seconds = self.wait_ms.div_ceil(1_000);
        if seconds == 0 { 1 } else { seconds }
    }

    /// Reads `retry-after-ms` first, then `retry-after` as seconds or as an HTTP date (RFC 9110, 10.2.3), the date
    /// against `now_ms` since the Unix epoch. A value that is neither is no wait at all.
    #[must_use]
    pub fn from_headers(retry_after_ms: Option<&str>, retry_after: Option<&str>, now_ms: u64) -> Option<Self> {
        if let Some(wait_ms) = retry_after_ms.and_then(|text| decimal(text.trim(), 1)) {
            return Some(Self::from_ms(wait_ms));
        }
        let text = retry_after?.trim();
        if let Some(wait_ms) = decimal(text, 1_000) {
            return Some(Self::from_ms(wait_ms));
        }
        let at_ms = http_date_seconds(text)?.saturating_mul(1_000);
        Some(Self::from_ms(at_ms.saturating_sub(now_ms)))
    }
}

/// A decimal of digits with an optional fraction, times `unit`, rounded up.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    // More digits than a u64 holds is a very long wait, not an unreadable one.
    let whole = whole.parse::<u64>().unwrap_or(u64::MAX);
    let kept = &fraction[..fraction.len().min(9)];
    let scale = 10_u64.pow(u32::try_from(kept.len()).unwrap_or(9));
    let part = kept.parse::<u64>().unwrap_or(0).saturating_mul(unit).div_ceil(scale);
    Some(whole.saturating_mul(unit).saturating_add(part))
}

/// Seconds since the Unix epoch of an IMF-fixdate, `Sun, 06 Nov 1994 08:49:37 GMT`; the two obsolete forms are not
/// sent by any provider.
fn http_date_seconds(text: &str) -> Option<u64> {
    let (_, date) = text.split_once(", ")?;
    let mut fields = date.split(' ');
    let day: u64 = fields.next()?.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = month_number(fields.next()?)?;
    let year: u64 = fields.next()?.parse().ok().filter(|year| (1970..10_000).contains(year))?;
    let mut clock = fields.next()?.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if fields.next()? != "GMT" || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    Some(days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

fn month_number(name: &str) -> Option<u64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    MONTHS.iter().position(|month| *month == name).map(|at| at as u64 + 1)
}

/// Proleptic Gregorian calendar, with years that begin in March so that the leap day comes last.
const fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    days - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o40_waits_are_read_in_every_form_and_rounded_up() {
        let now_ms = 784_111_777_000; // Sun, 06 Nov 1994 08:49:37 GMT
        for (ms, seconds, expected) in [
            (Some("6500"), Some("7"), Some(6_500)),
            (Some("6500.2"), None, Some(6_501)),
            (Some("soon"), Some("7"), Some(7_000)),
            (None, Some(" 7 "), Some(7_000)),
            (None, Some("1.5"), Some(1_500)),
            (None, Some("Sun, 06 Nov 1994 08:49:40 GMT"), Some(3_000)),
            (None, Some("Sun, 06 Nov 1994 08:49:30 GMT"), Some(0)),
            (None, Some("Thu, 29 Feb 1996 00:00:00 GMT"), Some(MAX_WAIT_MS)),
            (None, Some("99999999999999999999999"), Some(MAX_WAIT_MS)),
            (None, Some("-1"), None),
            (None, Some("tomorrow"), None),
            (None, Some("Sun, 32 Nov 1994 08:49:40 GMT"), None),
            (None, None, None),
        ] {
            let wait = RetryAfter::from_headers(ms, seconds, now_ms);
            assert_eq!(wait.map(RetryAfter::as_ms), expected, "{ms:?} {seconds:?}");
        }
    }

    #[test]
    fn o40_the_header_is_whole_seconds_and_never_zero() {
        for (wait_ms, seconds) in [(0, 1), (1, 1), (1_000, 1), (4_200, 5)] {
            assert_eq!(RetryAfter::from_ms(wait_ms).header_seconds(), seconds);
        }
    }

    #[test]
    fn dates_count_days_as_the_calendar_does() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Tue, 29 Feb 2000 23:59:59 GMT", 951_868_799),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
        ] {
            assert_eq!(http_date_seconds(text), Some(seconds), "{text}");
        }
    }
}
