//! The headers that tell a client how its rates stand, in its dialect's own form.

use std::fmt;

use crate::dialect::Dialect;

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

/// Three headers: limit, what is left, and when all of it is back.
#[must_use]
pub fn rate_limit_headers(dialect: Dialect, of: Rated, rate: Rate) -> [(&'static str, String); 3] {
    let names = match (dialect, of) {
        (Dialect::OpenAiChat, Rated::Requests) => {
            ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"]
        }
        (Dialect::OpenAiChat, Rated::Tokens) => {
            ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"]
        }
    };
    let reset = match dialect {
        Dialect::OpenAiChat => GoDuration(rate.reset_ms).to_string(),
    };
    let [limit, remaining, until] = names;
    [(limit, rate.limit.to_string()), (remaining, rate.remaining.to_string()), (until, reset)]
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
        let headers = rate_limit_headers(Dialect::OpenAiChat, Rated::Requests, rate);
        let expected = [
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-reset-requests", "1s"),
        ];
        assert_eq!(headers.each_ref().map(|(name, value)| (*name, value.as_str())), expected);
        let tokens = rate_limit_headers(Dialect::OpenAiChat, Rated::Tokens, rate);
        assert!(tokens.iter().all(|(name, _)| name.ends_with("-tokens")));
    }
}
