//! An upper bound of input tokens from sizes alone, in integers.
//!
//! The bound may only be too high: it sizes a hold, never a bill (I7). Escaped bytes, member names and brackets are
//! counted as text, which covers what chat templates add around each message.

/// How a model family turns bytes into tokens at worst. All figures are upper bounds and come from the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenRatio {
    /// Tokens per thousand bytes of text; 1000 is one token a byte, which no byte-level tokenizer exceeds.
    pub tokens_per_1000_bytes: u32,
    /// Added once per message, for the template around it.
    pub tokens_per_message: u32,
    /// A picture without a formula for its size.
    pub tokens_per_image: u32,
    /// Sound, per thousand bytes of its (base64) data.
    pub tokens_per_1000_audio_bytes: u32,
    /// A document given by reference, whose size the gateway cannot see.
    pub tokens_per_file_reference: u32,
}

impl TokenRatio {
    /// One token a byte: holds for every byte-level tokenizer, whatever the language.
    pub const STRICT: Self = Self {
        tokens_per_1000_bytes: 1000,
        tokens_per_message: 8,
        tokens_per_image: 2_000,
        tokens_per_1000_audio_bytes: 100,
        tokens_per_file_reference: 100_000,
    };
}

/// The sizes that a dialect found in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InputSize {
    /// Bytes of everything a model reads as text: messages, tools, schemas.
    pub text_bytes: u64,
    pub messages: u32,
    pub images: u32,
    /// Bytes of sound data.
    pub audio_bytes: u64,
    /// Bytes of documents inside the request; read as text at worst.
    pub file_bytes: u64,
    /// Documents named by an id or address.
    pub file_references: u32,
}

/// The most input tokens that a request of this size can be. Saturates at `i64::MAX`, which no limit admits.
#[must_use]
pub fn input_tokens_at_most(size: &InputSize, ratio: &TokenRatio) -> i64 {
    let text = per_thousand(size.text_bytes.saturating_add(size.file_bytes), ratio.tokens_per_1000_bytes);
    let audio = per_thousand(size.audio_bytes, ratio.tokens_per_1000_audio_bytes);
    let parts = [
        text,
        audio,
        u128::from(size.messages) * u128::from(ratio.tokens_per_message),
        u128::from(size.images) * u128::from(ratio.tokens_per_image),
        u128::from(size.file_references) * u128::from(ratio.tokens_per_file_reference),
    ];
    i64::try_from(parts.iter().sum::<u128>()).unwrap_or(i64::MAX)
}

/// Rounded up, as a bound must be.
fn per_thousand(quantity: u64, rate: u32) -> u128 {
    (u128::from(quantity) * u128::from(rate)).div_ceil(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_round_up_and_add_up() {
        let ratio = TokenRatio {
            tokens_per_1000_bytes: 300,
            tokens_per_message: 4,
            tokens_per_image: 765,
            tokens_per_1000_audio_bytes: 50,
            tokens_per_file_reference: 1_000,
        };
        let size = |text_bytes, messages, images| InputSize { text_bytes, messages, images, ..InputSize::default() };
        for (given, expected) in [
            (InputSize::default(), 0),
            (size(1, 0, 0), 1),
            (size(1_000, 0, 0), 300),
            (size(1_001, 0, 0), 301),
            (size(0, 3, 2), 12 + 1_530),
            (InputSize { audio_bytes: 21, file_bytes: 10, file_references: 2, ..InputSize::default() }, 2 + 3 + 2_000),
        ] {
            assert_eq!(input_tokens_at_most(&given, &ratio), expected, "{given:?}");
        }
    }

    #[test]
    fn strict_is_one_token_a_byte_and_nothing_wraps() {
        let strict = |text_bytes| InputSize { text_bytes, ..InputSize::default() };
        assert_eq!(input_tokens_at_most(&strict(20_000_000), &TokenRatio::STRICT), 20_000_000);
        assert_eq!(input_tokens_at_most(&strict(u64::MAX), &TokenRatio::STRICT), i64::MAX);
    }
}
