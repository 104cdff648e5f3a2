//! Durations and sizes in configuration, with their unit in the text.
//!
//! A bare number is refused: `timeout = 30` has been read as milliseconds and as seconds by different people, and the
//! error says what to write instead. One number and one unit, so that there is one way to write a value, and what is
//! printed can be read back.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

/// A length of time in whole milliseconds, written `250ms`, `30s`, `2m`, `24h` or `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HumanDuration {
    ms: u64,
}

/// A number of bytes, written `512B`, `64KiB`, `32MiB` or `4GiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize {
    bytes: u64,
}

/// Why a text is not a quantity with a unit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    #[error("`{text}` has no unit: write for example \"{text}{example}\" (units: {units})")]
    NoUnit { text: String, example: &'static str, units: String },
    #[error("`{text}` is not a whole number with a unit (units: {units}), such as \"{example}\"")]
    NotQuantity { text: String, example: &'static str, units: String },
    #[error("`{text}` is larger than Weir can count")]
    TooLarge { text: String },
}

struct Units {
    /// Largest first, with how many of the smallest make one.
    table: &'static [(&'static str, u64)],
    /// A usual unit, and a usual quantity, for error messages.
    example_unit: &'static str,
    example: &'static str,
}

const DURATIONS: Units = Units {
    table: &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)],
    example_unit: "s",
    example: "30s",
};

const SIZES: Units = Units {
    table: &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)],
    example_unit: "KiB",
    example: "64KiB",
};

impl Units {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let number_ends = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(number_ends);
        if number.is_empty() {
            return Err(self.not_quantity(text));
        }
        if unit.is_empty() {
            return Err(UnitError::NoUnit { text: text.to_owned(), example: self.example_unit, units: self.names() });
        }
        let Some((_, factor)) = self.table.iter().find(|(name, _)| *name == unit) else {
            return Err(self.not_quantity(text));
        };
        let quantity: Option<u64> = number.parse().ok();
        quantity.and_then(|n| n.checked_mul(*factor)).ok_or_else(|| UnitError::TooLarge { text: text.to_owned() })
    }

    fn not_quantity(&self, text: &str) -> UnitError {
        UnitError::NotQuantity { text: text.to_owned(), example: self.example, units: self.names() }
    }

    fn names(&self) -> String {
        self.table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }

    fn pattern(&self) -> String {
        format!("^[0-9]+({})$", self.table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("|"))
    }

    /// In the largest unit that divides `quantity`.
    fn print(&self, quantity: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fitting = self.table.iter().find(|(_, factor)| quantity != 0 && quantity.is_multiple_of(*factor));
        match fitting {
            Some((name, factor)) => write!(f, "{}{name}", quantity / factor),
            None => write!(f, "{quantity}{}", self.example_unit),
        }
    }
}

impl HumanDuration {
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self { ms }
    }

    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self { ms: secs.saturating_mul(1_000) }
    }

    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.ms
    }

    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

impl From<HumanDuration> for Duration {
    fn from(duration: HumanDuration) -> Self {
        duration.duration()
    }
}

impl ByteSize {
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self { bytes }
    }

    #[must_use]
    pub const fn kib(kib: u64) -> Self {
        Self { bytes: kib.saturating_mul(1 << 10) }
    }

    #[must_use]
    pub const fn mib(mib: u64) -> Self {
        Self { bytes: mib.saturating_mul(1 << 20) }
    }

    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// For lengths in memory; what does not fit an address is the largest address.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

/// Text, parsing, printing, serde and schema for one quantity: the same for every unit table.
macro_rules! quantity_as_text {
    ($type:ident { $field:ident }, $units:expr, $about:literal) => {
        impl FromStr for $type {
            type Err = UnitError;
            fn from_str(text: &str) -> Result<Self, UnitError> {
                $units.parse(text).map(|$field| Self { $field })
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $units.print(self.$field, f)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(QuantityVisitor { about: $about, result: PhantomData })
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $units.pattern(), "examples": [$units.example], "description": $about })
            }
        }
    };
}

quantity_as_text!(HumanDuration { ms }, DURATIONS, "a duration such as \"250ms\", \"30s\", \"2m\", \"24h\" or \"7d\"");
quantity_as_text!(ByteSize { bytes }, SIZES, "a size such as \"512B\", \"64KiB\", \"32MiB\" or \"4GiB\"");

struct QuantityVisitor<T> {
    about: &'static str,
    result: PhantomData<T>,
}

impl<T: FromStr<Err = UnitError>> de::Visitor<'_> for QuantityVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.about)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    /// A bare number goes through the same parser, whose error names the fix.
    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_printed_in_the_largest_exact_unit() {
        let durations =
            [("250ms", 250, "250ms"), ("30s", 30_000, "30s"), ("90s", 90_000, "90s"), ("120s", 120_000, "2m")];
        for (text, ms, printed) in durations.into_iter().chain([("24h", 86_400_000, "1d"), ("0s", 0, "0s")]) {
            let duration: HumanDuration = text.parse().unwrap();
            assert_eq!((duration.as_ms(), duration.to_string().as_str()), (ms, printed), "{text}");
            assert_eq!(printed.parse(), Ok(duration));
        }
        for (text, bytes, printed) in
            [("32MiB", 32 << 20, "32MiB"), ("1536KiB", 1536 << 10, "1536KiB"), ("7B", 7, "7B")]
        {
            let size: ByteSize = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, printed), "{text}");
        }
    }

    #[test]
    fn a_bare_number_is_refused_and_the_error_names_the_fix() {
        #[derive(Debug, Deserialize)]
        struct Options {
            #[serde(rename = "timeout")]
            _timeout: HumanDuration,
        }
        let error = serde_json::from_str::<Options>(r#"{"timeout": 30}"#).unwrap_err().to_string();
        assert!(error.contains(r#"`30` has no unit: write for example "30s" (units: d, h, m, s, ms)"#), "{error}");
        let error = serde_json::from_str::<ByteSize>("65536").unwrap_err().to_string();
        assert!(error.contains(r#"write for example "65536KiB""#), "{error}");
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "s", "-1s", "1.5h", "1 s", "1S", "1h30m", "1min", "+1s"] {
            assert!(matches!(text.parse::<HumanDuration>(), Err(UnitError::NotQuantity { .. })), "{text}");
        }
        for text in ["1MB", "1mib", "1K"] {
            assert!(matches!(text.parse::<ByteSize>(), Err(UnitError::NotQuantity { .. })), "{text}");
        }
        for text in ["99999999999999999999ms", "9999999999999999d"] {
            assert!(matches!(text.parse::<HumanDuration>(), Err(UnitError::TooLarge { .. })), "{text}");
        }
    }

    #[test]
    fn json_round_trips_and_the_schema_knows_the_units() {
        let duration = HumanDuration::from_secs(30);
        let json = serde_json::to_string(&duration).unwrap();
        assert_eq!(json, r#""30s""#);
        assert_eq!(serde_json::from_str::<HumanDuration>(&json).unwrap(), duration);
        let schema = serde_json::to_string(&schemars::schema_for!(ByteSize)).unwrap();
        assert!(schema.contains("^[0-9]+(GiB|MiB|KiB|B)$"), "{schema}");
    }
}
