//! The Responses API's usage object turned into disjoint meters (I7): the chat API's rules under other names, with cache
//! writes split by lifetime. Calls of the provider's own tools are reported beside it, in `tool_usage`.

use weir_domain::usage::{Meter, Usage};

use crate::json::{Cursor, JsonError, Kind, Node};
use crate::usage::{Count, Extracted, UsageFlag, count};

#[derive(Debug, Default)]
struct Report {
    input: Count,
    output: Count,
    cached: Count,
    written: Count,
    written_30m: Count,
    written_12h: Count,
    reasoning: Count,
    searches: Count,
}

/// Reads the `usage` of a response, and its `tool_usage` where there is one.
#[must_use]
pub fn read_usage(usage: &[u8], tool_usage: Option<&[u8]>) -> Extracted {
    let mut report = Report::default();
    let searches = tool_usage.and_then(|object| Node::of(object).ok()?.get("web_search")?.get("num_requests"));
    if let Some(searches) = searches {
        report.searches = count(&mut Cursor::new(searches.raw)).unwrap_or(Count::Bad);
    }
    match report.object(&mut Cursor::new(usage), "") {
        Ok(()) => report.extract(),
        Err(_) => Extracted::unknown(UsageFlag::Unreadable),
    }
}

impl Report {
    /// The members of one of the report's objects, by the name of the object.
    fn object(&mut self, cursor: &mut Cursor<'_>, object: &'static str) -> Result<(), JsonError> {
        cursor.members(|cursor, key| {
            let is_object = cursor.peek()? == Kind::Object;
            match (object, key.raw()) {
                ("", b"input_tokens") => self.input = count(cursor)?,
                ("", b"output_tokens") => self.output = count(cursor)?,
                ("", b"input_tokens_details") if is_object => self.object(cursor, "input")?,
                ("", b"output_tokens_details") if is_object => self.object(cursor, "output")?,
                ("input", b"cached_tokens") => self.cached = count(cursor)?,
                ("input", b"cache_write_tokens") => self.written = count(cursor)?,
                ("input", b"cache_write_tokens_details") if is_object => self.object(cursor, "writes")?,
                ("writes", b"ttl_30m_tokens") => self.written_30m = count(cursor)?,
                ("writes", b"ttl_12h_tokens") => self.written_12h = count(cursor)?,
                ("output", b"reasoning_tokens") => self.reasoning = count(cursor)?,
                _ => {
                    cursor.skip()?;
                }
            }
            Ok::<(), JsonError>(())
        })?;
        Ok(())
    }

    fn extract(&self) -> Extracted {
        let (Count::Of(input), Count::Of(output)) = (self.input, self.output) else {
            return Extracted::unknown(UsageFlag::Unreadable);
        };
        let details = [self.cached, self.written, self.written_30m, self.written_12h, self.reasoning, self.searches];
        if details.contains(&Count::Bad) {
            return Extracted::unknown(UsageFlag::Unreadable);
        }
        if input == 0 && output == 0 {
            return Extracted::unknown(UsageFlag::AllZero);
        }
        let mut flags = Vec::new();
        let (short, long) = (self.written_30m.or_zero(), self.written_12h.or_zero());
        let split = short.saturating_add(long);
        let written = self.written.or_zero().max(split);
        let fresh = input.saturating_sub(self.cached.or_zero()).saturating_sub(written);
        if fresh < 0 || (self.written != Count::Absent && split > self.written.or_zero()) {
            flags.push(UsageFlag::InputPartsExceedTotal);
        }
        let reasoning = self.reasoning.or_zero().min(output);
        if reasoning < self.reasoning.or_zero() {
            flags.push(UsageFlag::OutputPartsExceedTotal);
        }
        let readings = [
            (Meter::InUncached, fresh.max(0)),
            (Meter::InCacheRead, self.cached.or_zero()),
            (Meter::InCacheWrite30m, short),
            (Meter::InCacheWrite12h, long),
            (Meter::InCacheWriteUnknown, written - split),
            (Meter::OutVisible, output - reasoning),
            (Meter::OutReasoning, reasoning),
            (Meter::ToolWebSearch, self.searches.or_zero()),
        ];
        match Usage::new(readings) {
            Ok(usage) => Extracted { usage: Some(usage), flags },
            Err(_) => Extracted::unknown(UsageFlag::Unreadable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meters(usage: &str, tools: Option<&str>) -> Vec<(Meter, i64)> {
        let read = read_usage(usage.as_bytes(), tools.map(str::as_bytes));
        let usage = read.usage.expect("a usage");
        usage.readings().iter().map(|reading| (reading.meter, reading.quantity)).collect()
    }

    #[test]
    fn o17_o18_parts_are_taken_out_of_their_totals() {
        let usage = r#"{"input_tokens":100,"input_tokens_details":{"cached_tokens":30,"cache_write_tokens":20,
            "cache_write_tokens_details":{"ttl_30m_tokens":5,"ttl_12h_tokens":10}},
            "output_tokens":16,"output_tokens_details":{"reasoning_tokens":6},"total_tokens":116}"#;
        let expected = [
            (Meter::InUncached, 50),
            (Meter::InCacheRead, 30),
            (Meter::InCacheWrite30m, 5),
            (Meter::InCacheWrite12h, 10),
            (Meter::InCacheWriteUnknown, 5),
            (Meter::OutVisible, 10),
            (Meter::OutReasoning, 6),
            (Meter::ToolWebSearch, 2),
        ];
        assert_eq!(meters(usage, Some(r#"{"web_search":{"num_requests":2}}"#)), expected);
    }

    #[test]
    fn i9_what_cannot_be_read_is_unknown_never_zero() {
        for (usage, flag) in [
            (r#"{"input_tokens":0,"output_tokens":0}"#, UsageFlag::AllZero),
            (r#"{"input_tokens":5}"#, UsageFlag::Unreadable),
            (r#"{"input_tokens":5,"output_tokens":-1}"#, UsageFlag::Unreadable),
            ("{", UsageFlag::Unreadable),
        ] {
            assert_eq!(read_usage(usage.as_bytes(), None), Extracted::unknown(flag), "{usage}");
        }
        let clamped =
            read_usage(br#"{"input_tokens":5,"input_tokens_details":{"cached_tokens":9},"output_tokens":1}"#, None);
        assert_eq!(clamped.flags, [UsageFlag::InputPartsExceedTotal]);
    }
}
