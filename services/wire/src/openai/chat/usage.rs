//! The chat API's usage object turned into disjoint meters (I7).
//!
//! `prompt_tokens` includes cached, cache-written and audio tokens; `completion_tokens` includes reasoning and audio.
//! The difference is the plain rest. Whether reasoning is inside is checked against `total_tokens`, because servers
//! that translate from other APIs report it outside. A missing `prompt_tokens` or `completion_tokens` makes the usage
//! unknown, not zero (I9); missing details are zero.

use weir_domain::usage::{Meter, Usage};

use crate::json::{Cursor, JsonError, Kind, Text};
use crate::usage::{Count, Extracted, UsageFlag, count};

#[derive(Debug, Default)]
struct Report {
    prompt: Count,
    completion: Count,
    total: Count,
    cached: Count,
    cache_write: Count,
    audio_in: Count,
    reasoning: Count,
    audio_out: Count,
    /// DeepSeek's name for cached.
    cache_hit: Count,
}

/// Reads a `usage` object of a chunk or answer.
#[must_use]
pub fn read_usage(object: &[u8]) -> Extracted {
    let mut report = Report::default();
    let mut cursor = Cursor::new(object);
    match cursor.members(|cursor, key| report.member(cursor, &key)) {
        Ok(_) => report.extract(),
        Err(_) => Extracted::unknown(UsageFlag::Unreadable),
    }
}

impl Report {
    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>) -> Result<(), JsonError> {
        let is_object = cursor.peek()? == Kind::Object;
        match key.raw() {
            b"prompt_tokens" => self.prompt = count(cursor)?,
            b"completion_tokens" => self.completion = count(cursor)?,
            b"total_tokens" => self.total = count(cursor)?,
            b"prompt_cache_hit_tokens" => self.cache_hit = count(cursor)?,
            b"prompt_tokens_details" if is_object => {
                cursor.members(|cursor, key| {
                    match key.raw() {
                        b"cached_tokens" => self.cached = count(cursor)?,
                        b"cache_write_tokens" => self.cache_write = count(cursor)?,
                        b"audio_tokens" => self.audio_in = count(cursor)?,
                        _ => {
                            cursor.skip()?;
                        }
                    }
                    Ok::<(), JsonError>(())
                })?;
            }
            b"completion_tokens_details" if is_object => {
                cursor.members(|cursor, key| {
                    match key.raw() {
                        b"reasoning_tokens" => self.reasoning = count(cursor)?,
                        b"audio_tokens" => self.audio_out = count(cursor)?,
                        _ => {
                            cursor.skip()?;
                        }
                    }
                    Ok::<(), JsonError>(())
                })?;
            }
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    }

    fn extract(&self) -> Extracted {
        let cached = self.cached.or(self.cache_hit);
        let details = [self.total, cached, self.cache_write, self.audio_in, self.reasoning, self.audio_out];
        let (Count::Of(prompt), Count::Of(completion)) = (self.prompt, self.completion) else {
            return Extracted::unknown(UsageFlag::Unreadable);
        };
        if details.contains(&Count::Bad) {
            return Extracted::unknown(UsageFlag::Unreadable);
        }
        if prompt == 0 && completion == 0 {
            return Extracted::unknown(UsageFlag::AllZero);
        }
        let mut flags = Vec::new();
        let mut readings = Vec::with_capacity(8);
        Self::input(prompt, cached, self.cache_write, self.audio_in, &mut readings, &mut flags);
        self.output(prompt, completion, &mut readings, &mut flags);
        match Usage::new(readings) {
            Ok(usage) => Extracted { usage: Some(usage), flags },
            Err(_) => Extracted::unknown(UsageFlag::Unreadable),
        }
    }

    /// Cached and written tokens stay as reported, since they are what the provider bills; sound may be among them, so
    /// it is bounded by what they leave.
    fn input(
        prompt: i64,
        cached: Count,
        written: Count,
        audio: Count,
        readings: &mut Vec<(Meter, i64)>,
        flags: &mut Vec<UsageFlag>,
    ) {
        let rest = prompt.saturating_sub(cached.or_zero()).saturating_sub(written.or_zero());
        let fresh = rest.max(0);
        let audio_fresh = audio.or_zero().min(fresh);
        if rest < 0 || audio_fresh < audio.or_zero() {
            flags.push(UsageFlag::InputPartsExceedTotal);
        }
        readings.extend([
            (Meter::InUncached, fresh - audio_fresh),
            (Meter::InCacheRead, cached.or_zero()),
            // The chat API has one lifetime only, and its report has no split.
            (Meter::InCacheWrite30m, written.or_zero()),
            (Meter::InAudio, audio_fresh),
        ]);
    }

    fn output(&self, prompt: i64, completion: i64, readings: &mut Vec<(Meter, i64)>, flags: &mut Vec<UsageFlag>) {
        let (reasoning, audio) = (self.reasoning.or_zero(), self.audio_out.or_zero());
        let sum = prompt.saturating_add(completion);
        let is_outside = match self.total {
            Count::Of(total) if total != sum => {
                let is_outside = reasoning > 0 && total == sum.saturating_add(reasoning);
                flags.push(if is_outside { UsageFlag::ReasoningOutsideOutput } else { UsageFlag::TotalMismatch });
                is_outside
            }
            Count::Absent | Count::Of(_) | Count::Bad => false,
        };
        let inside = if is_outside { audio } else { reasoning.saturating_add(audio) };
        let visible = completion.saturating_sub(inside);
        let (visible, reasoning, audio) = if visible >= 0 {
            (visible, reasoning, audio)
        } else {
            // The output total is what is billed: its parts may not exceed it.
            flags.push(UsageFlag::OutputPartsExceedTotal);
            let audio = audio.min(completion);
            (0, if is_outside { reasoning } else { completion - audio }, audio)
        };
        readings.extend([(Meter::OutVisible, visible), (Meter::OutReasoning, reasoning), (Meter::OutAudio, audio)]);
    }
}

#[cfg(test)]
mod tests;
