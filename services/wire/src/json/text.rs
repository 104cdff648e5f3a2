//! Strings of a JSON text, borrowed: most are compared or measured, few are ever decoded.

use std::borrow::Cow;
use std::fmt;

use super::Span;

/// A JSON string where it stands, escapes and all.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    raw: &'a [u8],
    span: Span,
    escaped: bool,
}

impl<'a> Text<'a> {
    pub(super) fn new(bytes: &'a [u8], span: Span, escaped: bool) -> Self {
        Self { raw: Span::new(span.start + 1, span.end - 1).of(bytes), span, escaped }
    }

    /// The span with its quotes.
    #[must_use]
    pub const fn span(&self) -> Span {
        self.span
    }

    /// The bytes between the quotes, still escaped: never shorter than the decoded text.
    #[must_use]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Whether the decoded text equals `other`. A name written with escapes is the same name to every parser that
    /// reads it later, so it must be the same to us.
    #[must_use]
    pub fn is(&self, other: &str) -> bool {
        if self.escaped { self.decode() == other } else { self.raw == other.as_bytes() }
    }

    /// The bytes of the decoded text, borrowed when nothing is escaped.
    #[must_use]
    pub fn decoded_bytes(&self) -> Cow<'a, [u8]> {
        if self.escaped { Cow::Owned(self.decode().into_owned().into_bytes()) } else { Cow::Borrowed(self.raw) }
    }

    /// The decoded text; invalid UTF-8 and lone surrogates become U+FFFD.
    #[must_use]
    pub fn decode(&self) -> Cow<'a, str> {
        let text = String::from_utf8_lossy(self.raw);
        if self.escaped { Cow::Owned(unescape(&text)) } else { text }
    }
}

/// Never the text: it may be a prompt, and `Debug` ends in logs.
impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("span", &self.span).finish_non_exhaustive()
    }
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (character, used) = unescape_one(rest);
        out.push(character);
        rest = rest.get(used..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// One escape, `text` being what follows the backslash: the character and how many bytes it took.
fn unescape_one(text: &str) -> (char, usize) {
    match text.as_bytes().first() {
        Some(b'n') => ('\n', 1),
        Some(b't') => ('\t', 1),
        Some(b'r') => ('\r', 1),
        Some(b'b') => ('\u{8}', 1),
        Some(b'f') => ('\u{c}', 1),
        Some(b'u') => unescape_unit(&text[1..]),
        Some(&other) if other.is_ascii() => (char::from(other), 1),
        _ => (char::REPLACEMENT_CHARACTER, 0),
    }
}

fn unescape_unit(text: &str) -> (char, usize) {
    let unit = |digits: Option<&str>| digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let Some(first) = unit(text.get(..4)) else { return (char::REPLACEMENT_CHARACTER, 1) };
    if let Some(character) = char::from_u32(first) {
        return (character, 5);
    }
    let low = text.get(4..6).filter(|prefix| *prefix == "\\u").and_then(|_| unit(text.get(6..10)));
    match low {
        Some(low) if (0xD800..0xDC00).contains(&first) && (0xDC00..0xE000).contains(&low) => {
            let code = 0x1_0000 + ((first - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 11)
        }
        _ => (char::REPLACEMENT_CHARACTER, 5),
    }
}

/// `text` as a JSON string, with its quotes.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

/// Appends `text` as a JSON string.
pub fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                out.push_str("\\u00");
                let code = u32::from(control);
                out.push(char::from_digit(code >> 4, 16).unwrap_or('0'));
                out.push(char::from_digit(code & 0xF, 16).unwrap_or('0'));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// How many bytes from the start are neither a quote, nor a backslash, nor a control character.
///
/// This loop sees every byte of every prompt. Blocks of 32 are tested without branches, which compilers turn into
/// vector instructions; the block that holds a hit is resolved eight bytes at a time.
pub(super) fn plain_run(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(block) = bytes.get(at..at + BLOCK) {
        let stop = block.iter().fold(false, |stop, &byte| stop | !is_plain(byte));
        if stop {
            break;
        }
        at += BLOCK;
    }
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let stops = stop_bits(u64::from_le_bytes(*word));
        if stops != 0 {
            return at + (stops.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + bytes[at..].iter().take_while(|byte| is_plain(**byte)).count()
}

const BLOCK: usize = 32;
const ONES: u64 = u64::MAX / 0xFF;
const HIGH_BITS: u64 = ONES << 7;

const fn is_plain(byte: u8) -> bool {
    (byte >= 0x20) & (byte != b'"') & (byte != b'\\')
}

/// High bits set at stopping bytes. Borrows may mark bytes above the first hit, so only the lowest mark is exact.
const fn stop_bits(word: u64) -> u64 {
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let hits = (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash)
        | (word.wrapping_sub(ONES * 0x20) & !word);
    hits & HIGH_BITS
}
