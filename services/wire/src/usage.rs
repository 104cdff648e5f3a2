//! What a provider's usage report became: disjoint meters, and what looked odd about it.

use weir_domain::usage::Usage;

use crate::json::{Cursor, JsonError, Kind};

/// Something about a report that a person should be able to find again. The flag stays with the ledger line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UsageFlag {
    /// A count that is needed is missing, null, negative or not a whole number: the usage is unknown.
    Unreadable,
    /// Every count is zero, which no answered prompt is: the usage is unknown (I9: unknown is not zero).
    AllZero,
    /// The parts of the prompt add up to more than the prompt: the fresh part was clamped at zero (O17).
    InputPartsExceedTotal,
    /// The parts of the output add up to more than the output: the visible part was clamped at zero.
    OutputPartsExceedTotal,
    /// The provider's total is not the sum of its parts.
    TotalMismatch,
    /// Reasoning was reported beside the output instead of inside it, as the total proves.
    ReasoningOutsideOutput,
    /// A part of the answer came from another model, whose price is not this one's: the usage is unknown.
    ServedByAnotherModel,
}

impl UsageFlag {
    /// The stable name, as in ledger lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "usage_unreadable",
            Self::AllZero => "usage_all_zero",
            Self::InputPartsExceedTotal => "input_parts_exceed_total",
            Self::OutputPartsExceedTotal => "output_parts_exceed_total",
            Self::TotalMismatch => "total_mismatch",
            Self::ReasoningOutsideOutput => "reasoning_outside_output",
            Self::ServedByAnotherModel => "served_by_another_model",
        }
    }
}

/// A report, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extracted {
    /// `None`: the provider reported something, but what it used is not known from it.
    pub usage: Option<Usage>,
    pub flags: Vec<UsageFlag>,
}

impl Extracted {
    pub(crate) fn unknown(flag: UsageFlag) -> Self {
        Self { usage: None, flags: vec![flag] }
    }
}

/// A count as reported: absent or null, a whole number, or something that is no count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Count {
    #[default]
    Absent,
    Of(i64),
    Bad,
}

impl Count {
    pub(crate) fn or_zero(self) -> i64 {
        match self {
            Self::Absent | Self::Bad => 0,
            Self::Of(count) => count,
        }
    }

    /// The sum; a count that is none spoils it.
    pub(crate) fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Absent, count) | (count, Self::Absent) => count,
            (Self::Of(one), Self::Of(other)) => Self::Of(one.saturating_add(other)),
            (Self::Bad, _) | (_, Self::Bad) => Self::Bad,
        }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        match self {
            Self::Absent => other,
            Self::Of(_) | Self::Bad => self,
        }
    }
}

/// A whole number that is not negative; `12.0` is one, `1e3`, `-1` and `"5"` are not.
pub(crate) fn count(cursor: &mut Cursor<'_>) -> Result<Count, JsonError> {
    let value = cursor.skip()?;
    Ok(match value.kind {
        Kind::Null => Count::Absent,
        Kind::Number => {
            let text = std::str::from_utf8(value.span.of(cursor.bytes())).unwrap_or_default();
            let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
            let is_whole = fraction.bytes().all(|digit| digit == b'0');
            match whole.parse::<i64>() {
                Ok(count) if count >= 0 && is_whole && !text.starts_with('-') => Count::Of(count),
                Ok(_) | Err(_) => Count::Bad,
            }
        }
        Kind::Object | Kind::Array | Kind::String | Kind::True | Kind::False => Count::Bad,
    })
}
