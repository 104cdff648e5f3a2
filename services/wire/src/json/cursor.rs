//! The walk itself. Iterative where the depth is the client's choice, callback-driven where Weir knows the shape.

use std::fmt;

use super::text::plain_run;
use super::{Fault, JsonError, MAX_DEPTH, Span, Text};

/// The type of a JSON value; booleans are split because a span is all that callers keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

/// A validated value: its type and where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    pub kind: Kind,
    pub span: Span,
}

impl Value {
    #[must_use]
    pub fn is_null(self) -> bool {
        self.kind == Kind::Null
    }
}

/// A position in a JSON text. Every method that returns `Ok` has validated what it passed.
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// The offset of the next byte to read.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The type of the next value, unread.
    pub fn peek(&mut self) -> Result<Kind, JsonError> {
        self.skip_space();
        match self.byte()? {
            b'{' => Ok(Kind::Object),
            b'[' => Ok(Kind::Array),
            b'"' => Ok(Kind::String),
            b't' => Ok(Kind::True),
            b'f' => Ok(Kind::False),
            b'n' => Ok(Kind::Null),
            b'-' | b'0'..=b'9' => Ok(Kind::Number),
            _ => Err(self.fault(Fault::ExpectedValue)),
        }
    }

    /// Reads an object and calls `visit` at each value; `visit` must consume that value. Returns the object's span.
    pub fn members<E: From<JsonError>>(
        &mut self,
        mut visit: impl FnMut(&mut Self, Text<'a>) -> Result<(), E>,
    ) -> Result<Span, E> {
        if self.peek()? != Kind::Object {
            return Err(self.fault(Fault::WrongType).into());
        }
        let start = self.open()?;
        if self.take(b'}') {
            return Ok(self.close(start));
        }
        loop {
            let key = self.key()?;
            visit(self, key)?;
            if !self.more(b'}')? {
                return Ok(self.close(start));
            }
        }
    }

    /// Reads an array and calls `visit` at each element; `visit` must consume that element.
    pub fn elements<E: From<JsonError>>(
        &mut self,
        mut visit: impl FnMut(&mut Self, usize) -> Result<(), E>,
    ) -> Result<Span, E> {
        if self.peek()? != Kind::Array {
            return Err(self.fault(Fault::WrongType).into());
        }
        let start = self.open()?;
        if self.take(b']') {
            return Ok(self.close(start));
        }
        let mut index = 0;
        loop {
            visit(self, index)?;
            index += 1;
            if !self.more(b']')? {
                return Ok(self.close(start));
            }
        }
    }

    /// Reads a string.
    pub fn string(&mut self) -> Result<Text<'a>, JsonError> {
        self.skip_space();
        if self.byte()? != b'"' {
            return Err(self.fault(Fault::WrongType));
        }
        self.string_here()
    }

    /// Validates and passes the next value, whatever it is.
    pub fn skip(&mut self) -> Result<Value, JsonError> {
        let kind = self.peek()?;
        let start = self.at;
        match kind {
            Kind::Object | Kind::Array => self.skip_nested()?,
            Kind::String | Kind::Number | Kind::True | Kind::False | Kind::Null => self.scalar()?,
        }
        Ok(Value { kind, span: Span::new(start, self.at) })
    }

    /// Requires that only white space is left.
    pub fn end(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.fault(Fault::TrailingText)) }
    }

    /// Containers without recursion: one bit per level says whether it is an object. The levels of the callers
    /// (`self.depth`) and these share one bound, so 128 bits always suffice.
    fn skip_nested(&mut self) -> Result<(), JsonError> {
        let floor = self.depth;
        let mut objects: u128 = 0;
        loop {
            match self.byte()? {
                open @ (b'{' | b'[') => {
                    let is_object = open == b'{';
                    self.open()?;
                    objects = (objects << 1) | u128::from(is_object);
                    if self.take(if is_object { b'}' } else { b']' }) {
                        self.depth -= 1;
                        objects >>= 1;
                    } else {
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            loop {
                if self.depth == floor {
                    return Ok(());
                }
                let in_object = objects & 1 == 1;
                if self.more(if in_object { b'}' } else { b']' })? {
                    if in_object {
                        self.key()?;
                    }
                    break;
                }
                self.depth -= 1;
                objects >>= 1;
            }
        }
    }

    fn scalar(&mut self) -> Result<(), JsonError> {
        match self.byte()? {
            b'"' => self.string_here().map(|_| ()),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(self.fault(Fault::ExpectedValue)),
        }
    }

    fn string_here(&mut self) -> Result<Text<'a>, JsonError> {
        let start = self.at;
        self.at += 1;
        let mut escaped = false;
        loop {
            self.at += plain_run(&self.bytes[self.at..]);
            match self.byte()? {
                b'"' => {
                    self.at += 1;
                    return Ok(Text::new(self.bytes, Span::new(start, self.at), escaped));
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return Err(self.fault(Fault::ControlCharacter)),
            }
        }
    }

    fn escape(&mut self) -> Result<(), JsonError> {
        self.at += 1;
        match self.byte()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.at += 1;
                Ok(())
            }
            b'u' => {
                self.at += 1;
                for _ in 0..4 {
                    if !self.byte()?.is_ascii_hexdigit() {
                        return Err(self.fault(Fault::InvalidEscape));
                    }
                    self.at += 1;
                }
                Ok(())
            }
            _ => Err(self.fault(Fault::InvalidEscape)),
        }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        if self.next_is(b'-') {
            self.at += 1;
        }
        if self.next_is(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.next_is(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if self.next_is(b'e') || self.next_is(b'E') {
            self.at += 1;
            if self.next_is(b'+') || self.next_is(b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start { Err(self.fault(Fault::InvalidNumber)) } else { Ok(()) }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        if self.bytes[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.fault(Fault::ExpectedValue))
        }
    }

    fn key(&mut self) -> Result<Text<'a>, JsonError> {
        self.skip_space();
        if self.byte()? != b'"' {
            return Err(self.fault(Fault::ExpectedKey));
        }
        let key = self.string_here()?;
        self.skip_space();
        if self.byte()? != b':' {
            return Err(self.fault(Fault::ExpectedColon));
        }
        self.at += 1;
        self.skip_space();
        Ok(key)
    }

    /// Enters a container; returns where it starts.
    fn open(&mut self) -> Result<usize, JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(self.fault(Fault::TooDeep));
        }
        let start = self.at;
        self.depth += 1;
        self.at += 1;
        self.skip_space();
        Ok(start)
    }

    fn close(&mut self, start: usize) -> Span {
        self.depth -= 1;
        Span::new(start, self.at)
    }

    /// After a value in a container: true past a comma, false past `closing`.
    fn more(&mut self, closing: u8) -> Result<bool, JsonError> {
        self.skip_space();
        match self.byte()? {
            b',' => {
                self.at += 1;
                self.skip_space();
                Ok(true)
            }
            byte if byte == closing => {
                self.at += 1;
                Ok(false)
            }
            _ => Err(self.fault(Fault::ExpectedComma)),
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let taken = self.next_is(byte);
        self.at += usize::from(taken);
        taken
    }

    fn next_is(&self, byte: u8) -> bool {
        self.bytes.get(self.at) == Some(&byte)
    }

    fn byte(&self) -> Result<u8, JsonError> {
        self.bytes.get(self.at).copied().ok_or(JsonError { fault: Fault::UnexpectedEnd, offset: self.at })
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.bytes.get(self.at) {
            self.at += 1;
        }
    }

    /// The error `fault` at the present offset.
    #[must_use]
    pub const fn fault(&self, fault: Fault) -> JsonError {
        JsonError { fault, offset: self.at }
    }
}

/// Never the text: it may be a prompt, and `Debug` ends in logs.
impl fmt::Debug for Cursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("offset", &self.at).field("depth", &self.depth).finish_non_exhaustive()
    }
}
