//! The fields of a line for people.
//!
//! The library's own writer puts each through the styles of a terminal, set or not, which takes as long as the rest of a
//! line. And it leaves line ends in a value as they are; here none can begin a line that Weir did not write.

use std::fmt::{self, Debug, Write};

use tracing::field::Field;
use tracing_subscriber::fmt::format::Writer;

/// `name=value`, and the message without a name.
pub(super) fn write(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        writer.write_str(field.name())?;
        writer.write_char('=')?;
    }
    write!(Escaping(writer), "{value:?}")
}

/// Writes control characters as they are written in source code.
struct Escaping<'a, W>(&'a mut W);

impl<W: Write> Write for Escaping<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if !text.bytes().any(may_be_control) {
            return self.0.write_str(text);
        }
        text.chars().try_for_each(|char| {
            if char.is_control() { write!(self.0, "{}", char.escape_debug()) } else { self.0.write_char(char) }
        })
    }
}

/// Control characters are ASCII ones, and two bytes that begin with C2.
const fn may_be_control(byte: u8) -> bool {
    byte.is_ascii_control() || byte == 0xC2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_value_ends_the_line_or_speaks_to_a_terminal() {
        for (text, expected) in [
            ("plain, größe ×2", "plain, größe ×2"),
            ("one\ntwo\r", "one\\ntwo\\r"),
            ("\u{1b}[31m\u{7f}", "\\u{1b}[31m\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
        ] {
            let mut written = String::new();
            Escaping(&mut written).write_str(text).unwrap();
            assert_eq!(written, expected);
        }
    }
}
