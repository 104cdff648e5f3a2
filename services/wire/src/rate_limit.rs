//! The headers that tell a client how its rates stand, in its dialect's own form.

use std::fmt;

use crate::dialect::{Dialect, Family};

/// A rate as a client sees it: a number of something per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub limit: i64,
    pub remaining: i64,
    /// Until all of the limit is there again, milliseconds.
    pub reset_ms: i64,
}

/// What a rate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rated {
    Requests,
    Tokens,
}

/// Three headers: limit, what is left, and when all of it is back. Anthropic tells the latter as a time of day, so it is
/// left out where the caller has no `now_ms` (since the Unix epoch).
#[must_use]
pub fn rate_limit_headers(dialect: Dialect, of: Rated, rate: Rate, now_ms: Option<i64>) -> Vec<(&'static str, String)> {
    let family = dialect.family();
    let [limit, remaining, until] = match (family, of) {
        (Family::OpenAi, Rated::Requests) => {
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"]
        }
        (Family::OpenAi, Rated::Tokens) => {
            ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"]
        }
        (Family::Anthropic, Rated::Requests) => [
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ],
        (Family::Anthropic, Rated::Tokens) => [
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ],
    };
    let reset = match family {
        Family::OpenAi => Some(GoDuration(rate.reset_ms).to_string()),
        Family::Anthropic => now_ms.map(|now_ms| Instant(now_ms.saturating_add(rate.reset_ms.max(0))).to_string()),
    };
    let told = [(limit, rate.limit.to_string()), (remaining, rate.remaining.to_string())];
    told.into_iter().chain(reset.map(|reset| (until, reset))).collect()
}

/// Milliseconds since the Unix epoch in RFC 3339, rounded up to a second: the limit is not back before.
struct Instant(i64);

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 9999-12-31T23:59:59Z, the last second that has four digits of year.
        let seconds = self.0.clamp(0, 253_402_300_799_000).saturating_add(999) / 1_000;
        let seconds = seconds.min(253_402_300_799);
        let (days, of_day) = (seconds / 86_400, seconds % 86_400);
        // Days since 0000-03-01, in eras of 400 years, so that leap days come last (Hinnant's civil calendar).
        let since_era = days + 719_468;
        let (era, day_of_era) = (since_era / 146_097, since_era % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * from_march + 2) / 5 + 1;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Milliseconds as Go prints a duration (`6m0s`, `1.5s`, `12ms`), which is how OpenAI writes its resets.
struct GoDuration(i64);

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.max(0);
        if (1..1_000).contains(&ms) {
            return write!(f, "{ms}ms");
        }
        let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        match format!("{:03}", ms % 1_000).trim_end_matches('0') {
            "" => write!(f, "{seconds}s"),
            fraction => write!(f, "{seconds}.{fraction}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_written_as_go_writes_it() {
        let cases = [
            (-5, "0s"),
            (0, "0s"),
            (1, "1ms"),
            (12, "12ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_050, "1.05s"),
            (8_640, "8.64s"),
            (60_000, "1m0s"),
            (60_750, "1m0.75s"),
            (360_000, "6m0s"),
            (5_184_000, "1h26m24s"),
            (3_600_001, "1h0m0.001s"),
        ];
        for (ms, expected) in cases {
            assert_eq!(GoDuration(ms).to_string(), expected);
        }
    }

    #[test]
    fn each_unit_has_three_headers() {
        let rate = Rate { limit: 60, remaining: 59, reset_ms: 1_000 };
        let headers = rate_limit_headers(Dialect::OpenAiChat, Rated::Requests, rate, None);
        let expected = [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-reset-requests", "1s"),
        ];
        let told = |headers: &[(&'static str, String)]| -> Vec<_> {
            headers.iter().map(|(name, value)| (*name, value.clone())).collect()
        };
        assert_eq!(told(&headers), expected.map(|(name, value)| (name, value.to_owned())));
        let tokens = rate_limit_headers(Dialect::OpenAiChat, Rated::Tokens, rate, None);
        assert!(tokens.iter().all(|(name, _)| name.ends_with("-tokens")));
    }

    #[test]
    fn anthropic_tells_the_moment_in_which_a_rate_is_back() {
        let rate = Rate { limit: 60, remaining: 59, reset_ms: 1_500 };
        let headers = rate_limit_headers(Dialect::AnthropicMessages, Rated::Tokens, rate, Some(951_782_399_000));
        let expected = [
            ("anthropic-ratelimit-tokens-limit", "60"),
            ("anthropic-ratelimit-tokens-remaining", "59"),
            ("anthropic-ratelimit-tokens-reset", "2000-02-29T00:00:01Z"),
        ];
        assert_eq!(headers, expected.map(|(name, value)| (name, value.to_owned())));
        let timeless = rate_limit_headers(Dialect::AnthropicMessages, Rated::Tokens, rate, None);
        assert_eq!(timeless.len(), 2);
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (-5, "1970-01-01T00:00:00Z"),
            (1_798_761_599_001, "2027-01-01T00:00:00Z"),
            (i64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(Instant(ms).to_string(), expected);
        }
    }
}
