//! One value of a text, looked into only where somebody asks: a document as large as a prompt is never built.

use super::{Cursor, JsonError, Kind, Text};

/// A value by its bytes. Each look walks them again, so it is for objects of a few levels, not for hot paths.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) kind: Kind,
    pub(crate) raw: &'a [u8],
}

impl<'a> Node<'a> {
    /// Validates `bytes` as one value.
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let mut cursor = Cursor::new(bytes);
        let value = cursor.skip()?;
        cursor.end()?;
        Ok(Self { kind: value.kind, raw: value.span.of(bytes) })
    }

    /// An object that was validated before: no second pass.
    pub(crate) fn validated_object(bytes: &'a [u8]) -> Self {
        Self { kind: Kind::Object, raw: bytes.trim_ascii() }
    }

    pub(crate) fn is_null(self) -> bool {
        self.kind == Kind::Null
    }

    /// The value as a string, when it is one.
    pub(crate) fn text(self) -> Option<Text<'a>> {
        (self.kind == Kind::String).then(|| Cursor::new(self.raw).string().ok()).flatten()
    }

    /// The value as a count: a whole number without sign, fraction or exponent.
    pub(crate) fn count(self) -> Option<u64> {
        let text = std::str::from_utf8(self.raw).ok().filter(|_| self.kind == Kind::Number);
        text.and_then(|text| text.parse().ok())
    }

    /// Whether this is an array or object without elements, or an empty string.
    pub(crate) fn is_empty(self) -> bool {
        match self.kind {
            Kind::Array | Kind::Object => {
                self.raw.get(1..self.raw.len().saturating_sub(1)).is_none_or(|inner| inner.trim_ascii().is_empty())
            }
            Kind::String => self.raw.len() <= 2,
            Kind::Number | Kind::True | Kind::False | Kind::Null => false,
        }
    }

    /// Visits the elements of an array; anything else has none.
    pub(crate) fn elements<E: From<JsonError>>(
        self,
        mut visit: impl FnMut(usize, Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind != Kind::Array {
            return Ok(());
        }
        let mut cursor = Cursor::new(self.raw);
        cursor.elements(|cursor, index| {
            let value = cursor.skip()?;
            visit(index, Node { kind: value.kind, raw: value.span.of(cursor.bytes()) })
        })?;
        Ok(())
    }

    /// Visits the members of an object; anything else has none.
    pub(crate) fn members<E: From<JsonError>>(
        self,
        mut visit: impl FnMut(Text<'a>, Self) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind != Kind::Object {
            return Ok(());
        }
        let mut cursor = Cursor::new(self.raw);
        cursor.members(|cursor, key| {
            let value = cursor.skip()?;
            visit(key, Node { kind: value.kind, raw: value.span.of(cursor.bytes()) })
        })?;
        Ok(())
    }

    /// The last member of that name, as most parsers would have it.
    pub(crate) fn get(self, name: &str) -> Option<Self> {
        let [found] = self.pick([name]);
        found
    }

    /// The members of these names, in one pass.
    pub(crate) fn pick<const N: usize>(self, names: [&str; N]) -> [Option<Self>; N] {
        let mut found = [None; N];
        let walked = self.members(|key, node| {
            if let Some(at) = names.iter().position(|name| key.is(name)) {
                found[at] = Some(node);
            }
            Ok::<(), JsonError>(())
        });
        if walked.is_ok() { found } else { [None; N] }
    }
}

/// Never the bytes: they may be a prompt, and `Debug` ends in logs.
impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("kind", &self.kind).field("bytes", &self.raw.len()).finish()
    }
}
