//! What a provider's usage report became: disjoint meters, and what looked odd about it.

use weir_domain::usage::Usage;

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
