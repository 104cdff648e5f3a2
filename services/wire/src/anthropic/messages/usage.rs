//! The messages API's usage object turned into disjoint meters (I7).
//!
//! `input_tokens` excludes what the cache read and wrote (O16); `output_tokens` includes thinking. In a stream the
//! counts are cumulative: those of `message_delta` replace those of `message_start` and are never added (O15). They lack
//! the split of cache writes by lifetime, so that comes from the start; what has grown beyond the split has an unknown
//! lifetime, which prices meet at the dearest rate. Beta `iterations` carry tokens that the totals leave out
//! (compaction): where they are present, they are what counts, unless one names a model of its own.

use weir_domain::usage::{Meter, Usage};

use crate::json::{Cursor, JsonError, Kind, Text};
use crate::usage::{Count, Extracted, UsageFlag, count};

/// The counts of one usage object.
#[derive(Debug, Clone, Copy, Default)]
struct Report {
    input: Count,
    output: Count,
    cache_read: Count,
    cache_creation: Count,
    creation_5m: Count,
    creation_1h: Count,
    thinking: Count,
    searches: Count,
    fetches: Count,
}

/// The iterations of one usage object.
#[derive(Debug, Default)]
struct Iterations {
    reports: Vec<Report>,
    has_other_model: bool,
}

/// Iterations that are read; an answer of more is unknown rather than summed wrongly.
const MOST_ITERATIONS: usize = 256;

/// Reads the `usage` of an answer or of `message_start`, and that of the last `message_delta` where there is one.
#[must_use]
pub fn read_usage(first: Option<&[u8]>, last: Option<&[u8]>) -> Extracted {
    let (Ok((start, of_start)), Ok((delta, of_delta))) = (Report::read(first), Report::read(last)) else {
        return Extracted::unknown(UsageFlag::Unreadable);
    };
    let iterations = if of_delta.reports.is_empty() { of_start } else { of_delta };
    if iterations.has_other_model {
        return Extracted::unknown(UsageFlag::ServedByAnotherModel);
    }
    let merged = start.replaced_by(&delta);
    if iterations.reports.is_empty() {
        return merged.extract();
    }
    // The calls of tools are counted for the answer as a whole.
    let whole = Report { searches: merged.searches, fetches: merged.fetches, ..Report::default() };
    iterations.reports.iter().fold(whole, |sum, report| sum.plus(report)).extract()
}

/// The service tier in a usage object, under the name that prices know; `speed` outranks it, being what is billed.
pub(super) fn served_tier(object: &[u8]) -> Option<String> {
    let (mut tier, mut speed) = (None, None);
    let mut cursor = Cursor::new(object);
    let read = cursor.members(|cursor, key| {
        match (key.raw(), cursor.peek()?) {
            (b"service_tier", Kind::String) => tier = Some(cursor.string()?.decode().into_owned()),
            (b"speed", Kind::String) => speed = Some(cursor.string()?.decode().into_owned()),
            _ => {
                cursor.skip()?;
            }
        }
        Ok::<(), JsonError>(())
    });
    read.ok()?;
    speed.filter(|speed| speed != "standard").or(tier)
}

impl Report {
    fn read(object: Option<&[u8]>) -> Result<(Self, Iterations), JsonError> {
        let (mut report, mut iterations) = (Self::default(), Iterations::default());
        let Some(object) = object else { return Ok((report, iterations)) };
        Cursor::new(object).members(|cursor, key| {
            if key.raw() == b"iterations" && cursor.peek()? == Kind::Array {
                return iterations.read(cursor);
            }
            report.member(cursor, &key)
        })?;
        Ok((report, iterations))
    }

    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>) -> Result<(), JsonError> {
        let is_object = cursor.peek()? == Kind::Object;
        match key.raw() {
            b"input_tokens" => self.input = count(cursor)?,
            b"output_tokens" => self.output = count(cursor)?,
            b"cache_read_input_tokens" => self.cache_read = count(cursor)?,
            b"cache_creation_input_tokens" => self.cache_creation = count(cursor)?,
            b"cache_creation" if is_object => {
                two(cursor, "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens", |short, long| {
                    (self.creation_5m, self.creation_1h) = (short, long);
                })?;
            }
            b"output_tokens_details" if is_object => {
                two(cursor, "thinking_tokens", "", |thinking, _| self.thinking = thinking)?;
            }
            b"server_tool_use" if is_object => {
                two(cursor, "web_search_requests", "web_fetch_requests", |searches, fetches| {
                    (self.searches, self.fetches) = (searches, fetches);
                })?;
            }
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    }

    /// Cumulative counts replace; what `later` does not say stays.
    fn replaced_by(&self, later: &Self) -> Self {
        Self {
            input: later.input.or(self.input),
            output: later.output.or(self.output),
            cache_read: later.cache_read.or(self.cache_read),
            cache_creation: later.cache_creation.or(self.cache_creation),
            creation_5m: later.creation_5m.or(self.creation_5m),
            creation_1h: later.creation_1h.or(self.creation_1h),
            thinking: later.thinking.or(self.thinking),
            searches: later.searches.or(self.searches),
            fetches: later.fetches.or(self.fetches),
        }
    }

    fn plus(self, other: &Self) -> Self {
        Self {
            input: self.input.plus(other.input),
            output: self.output.plus(other.output),
            cache_read: self.cache_read.plus(other.cache_read),
            cache_creation: self.cache_creation.plus(other.cache_creation),
            creation_5m: self.creation_5m.plus(other.creation_5m),
            creation_1h: self.creation_1h.plus(other.creation_1h),
            thinking: self.thinking.plus(other.thinking),
            searches: self.searches.plus(other.searches),
            fetches: self.fetches.plus(other.fetches),
        }
    }

    fn extract(&self) -> Extracted {
        let (Count::Of(input), Count::Of(output)) = (self.input, self.output) else {
            return Extracted::unknown(UsageFlag::Unreadable);
        };
        let details = [
            self.cache_read,
            self.cache_creation,
            self.creation_5m,
            self.creation_1h,
            self.thinking,
            self.searches,
            self.fetches,
        ];
        if details.contains(&Count::Bad) {
            return Extracted::unknown(UsageFlag::Unreadable);
        }
        let (read, short, long) = (self.cache_read.or_zero(), self.creation_5m.or_zero(), self.creation_1h.or_zero());
        let split = short.saturating_add(long);
        let created = self.cache_creation.or_zero();
        if [input, output, read, created, split].iter().all(|count| *count == 0) {
            return Extracted::unknown(UsageFlag::AllZero);
        }
        let mut flags = Vec::new();
        if self.cache_creation != Count::Absent && split > created {
            flags.push(UsageFlag::InputPartsExceedTotal);
        }
        let thinking = self.thinking.or_zero().min(output);
        if thinking < self.thinking.or_zero() {
            flags.push(UsageFlag::OutputPartsExceedTotal);
        }
        let readings = [
            (Meter::InUncached, input),
            (Meter::InCacheRead, read),
            (Meter::InCacheWrite5m, short),
            (Meter::InCacheWrite1h, long),
            (Meter::InCacheWriteUnknown, created.saturating_sub(split).max(0)),
            (Meter::OutVisible, output - thinking),
            (Meter::OutReasoning, thinking),
            (Meter::ToolWebSearch, self.searches.or_zero()),
            (Meter::ToolWebFetch, self.fetches.or_zero()),
        ];
        match Usage::new(readings) {
            Ok(usage) => Extracted { usage: Some(usage), flags },
            Err(_) => Extracted::unknown(UsageFlag::Unreadable),
        }
    }
}

impl Iterations {
    fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        cursor.elements(|cursor, index| {
            if cursor.peek()? != Kind::Object || index == MOST_ITERATIONS {
                cursor.skip()?;
                self.has_other_model |= index == MOST_ITERATIONS;
                return Ok(());
            }
            let (mut report, mut names_model, mut is_own) = (Report::default(), false, false);
            cursor.members(|cursor, key| match (key.raw(), cursor.peek()?) {
                (b"model", Kind::String) => {
                    names_model = true;
                    cursor.skip().map(|_| ())
                }
                (b"type", Kind::String) => {
                    is_own = matches!(cursor.string()?.raw(), b"message" | b"compaction");
                    Ok(())
                }
                _ => report.member(cursor, &key),
            })?;
            self.has_other_model |= names_model && !is_own;
            self.reports.push(report);
            Ok(())
        })?;
        Ok(())
    }
}

/// Two counts of an object.
fn two(
    cursor: &mut Cursor<'_>,
    first: &str,
    second: &str,
    mut give: impl FnMut(Count, Count),
) -> Result<(), JsonError> {
    let (mut one, mut other) = (Count::Absent, Count::Absent);
    cursor.members(|cursor, key| {
        if key.is(first) {
            one = count(cursor)?;
        } else if key.is(second) {
            other = count(cursor)?;
        } else {
            cursor.skip()?;
        }
        Ok::<(), JsonError>(())
    })?;
    give(one, other);
    Ok(())
}

#[cfg(test)]
mod tests;
