//! Writing JSON without a document: members in the order in which they are said, values copied as they stand.

use std::fmt::Write as _;

use bytes::{BufMut, BytesMut};
use memchr::memchr2;

/// Appends JSON to a buffer. Commas come by themselves: a value always ends in a byte that no opening ends in.
#[derive(Debug)]
pub(crate) struct Writer<'o> {
    out: &'o mut BytesMut,
}

impl<'o> Writer<'o> {
    /// Writes behind what `out` holds, which must be empty or end in white space.
    pub(crate) fn new(out: &'o mut BytesMut) -> Self {
        Self { out }
    }

    pub(crate) fn open(&mut self, bracket: u8) -> &mut Self {
        self.separate();
        self.out.put_u8(bracket);
        self
    }

    pub(crate) fn close(&mut self, bracket: u8) -> &mut Self {
        self.out.put_u8(bracket);
        self
    }

    /// A member's name, which is Weir's own word: nothing in it needs an escape.
    pub(crate) fn key(&mut self, name: &str) -> &mut Self {
        self.separate();
        self.out.put_u8(b'"');
        self.out.put_slice(name.as_bytes());
        self.out.put_slice(b"\":");
        self
    }

    /// A string value.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.separate();
        let mut quoted = String::with_capacity(text.len() + 2);
        super::push_quoted(&mut quoted, text);
        self.out.put_slice(quoted.as_bytes());
        self
    }

    pub(crate) fn number(&mut self, number: impl std::fmt::Display) -> &mut Self {
        self.separate();
        // Writing to a buffer that grows cannot fail.
        let _ = write!(self.out, "{number}");
        self
    }

    /// A value as it stands elsewhere, escapes and digits included. Line ends between its tokens are left out, so that
    /// it fits on a line of an event stream.
    pub(crate) fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.separate();
        let mut rest = value;
        while let Some(at) = memchr2(b'\n', b'\r', rest) {
            self.out.put_slice(&rest[..at]);
            rest = &rest[at + 1..];
        }
        self.out.put_slice(rest);
        self
    }

    /// `"name":"text"`.
    pub(crate) fn member(&mut self, name: &str, text: &str) -> &mut Self {
        self.key(name).text(text)
    }

    /// `"name":value`, the value as it stands elsewhere.
    pub(crate) fn raw_member(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.key(name).raw(value)
    }

    fn separate(&mut self) {
        match self.out.last() {
            None | Some(b'{' | b'[' | b':' | b',' | b' ' | b'\n') => {}
            Some(_) => self.out.put_u8(b','),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_stand_between_values_and_nowhere_else() {
        let mut out = BytesMut::from(&b"data: "[..]);
        let mut writer = Writer::new(&mut out);
        writer.open(b'{').member("a", "x\"y").key("b").open(b'[').number(1).text("").open(b'{').close(b'}').close(b']');
        writer.raw_member("c", b"{\"d\":\n 1.0}").key("e").raw(b"null").close(b'}');
        assert_eq!(out, &br#"data: {"a":"x\"y","b":[1,"",{}],"c":{"d": 1.0},"e":null}"#[..]);
    }
}
