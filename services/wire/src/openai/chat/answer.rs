//! What one answer object says: a stream's chunk or a whole plain answer, which differ only in `delta` and `message`.
//!
//! One pass over the bytes finds the few members that matter to commitment, completion, usage and the fields that Weir
//! owns. No document is built: this runs for every chunk of every stream.

use crate::json::{Cursor, JsonError, Kind, Span, Text, Value};

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    Stop,
    Length,
    ToolCalls,
    FunctionCall,
    ContentFilter,
    /// The provider's own failure (`error`, as some servers say): not an end.
    Error,
    /// A vendor's own reason, relayed as it is.
    Other,
}

impl Finish {
    fn of(text: &Text<'_>) -> Self {
        match text.raw() {
            b"stop" => Self::Stop,
            b"length" => Self::Length,
            b"tool_calls" => Self::ToolCalls,
            b"function_call" => Self::FunctionCall,
            b"content_filter" => Self::ContentFilter,
            b"error" => Self::Error,
            _ => Self::Other,
        }
    }

    /// The stable name, as in logs and events.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::FunctionCall => "function_call",
            Self::ContentFilter => "content_filter",
            Self::Error => "error",
            Self::Other => "other",
        }
    }
}

/// What one entry of `choices` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChoiceFacts {
    /// Absent in some servers' usage chunks; then the first choice is meant.
    pub index: Option<u32>,
    /// Text, refusal, tool call, sound, picture, or relayed reasoning.
    pub content: bool,
    pub finish: Option<Finish>,
    /// Says nothing at all: an empty delta, no end, no other member.
    pub bare: bool,
    /// `tool_calls` of a delta, when it is an array.
    pub tool_calls: Option<Span>,
}

/// The choices of one answer object. The first stands apart, so that ordinary chunks allocate nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Choices {
    first: Option<ChoiceFacts>,
    rest: Vec<ChoiceFacts>,
}

impl Choices {
    fn push(&mut self, choice: ChoiceFacts) {
        if self.first.is_none() {
            self.first = Some(choice);
        } else if self.rest.len() < MAX_CHOICES_PER_CHUNK {
            self.rest.push(choice);
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &ChoiceFacts> {
        self.first.iter().chain(&self.rest)
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first.is_none()
    }
}

/// Twice the API's bound on `n`: what lies beyond is not looked at.
const MAX_CHOICES_PER_CHUNK: usize = 256;

/// What one answer object says, with spans into its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnswerFacts {
    /// Some choice has content.
    pub content: bool,
    pub choices: Choices,
    /// The `choices` member, null or not.
    pub choices_value: Option<ChoicesValue>,
    /// `usage`, when it is an object.
    pub usage: Option<Span>,
    /// Usage in a place of a vendor's own (inside a choice, inside `x_groq`), read when `usage` is absent.
    pub nested_usage: Option<Span>,
    /// `error`, when it says something.
    pub error: Option<Span>,
    /// The string values, with quotes.
    pub id: Option<Span>,
    pub model: Option<Span>,
    pub service_tier: Option<Span>,
    /// After the opening brace, and whether the object is empty: where members can be inserted.
    pub first: usize,
    pub is_empty: bool,
}

/// A `choices` member's span and whether it is an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChoicesValue {
    pub span: Span,
    pub is_array: bool,
}

impl AnswerFacts {
    /// Reads one answer object.
    ///
    /// # Errors
    /// The bytes are not one JSON object.
    pub fn scan(bytes: &[u8]) -> Result<Self, JsonError> {
        let mut facts = Self { is_empty: true, ..Self::default() };
        let mut cursor = Cursor::new(bytes);
        cursor.peek()?;
        facts.first = cursor.offset() + 1;
        let mut is_error_object = false;
        let span = cursor.members(|cursor, key| {
            facts.is_empty = false;
            facts.member(cursor, &key, &mut is_error_object)
        })?;
        cursor.end()?;
        if is_error_object && facts.error.is_none() {
            facts.error = Some(span);
        }
        Ok(facts)
    }

    /// The usage that this object reports, wherever it stands.
    #[must_use]
    pub fn usage_anywhere(&self) -> Option<Span> {
        self.usage.or(self.nested_usage)
    }

    /// Whether the object carries nothing but usage (O14): no choices, or choices that say nothing.
    #[must_use]
    pub fn is_usage_only(&self) -> bool {
        self.usage.is_some() && self.choices.iter().all(|choice| choice.bare)
    }

    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>, is_error_object: &mut bool) -> Result<(), JsonError> {
        let kind = cursor.peek()?;
        match (key.raw(), kind) {
            (b"choices", Kind::Array) => {
                let span = cursor.elements(|cursor, _| self.choice(cursor))?;
                self.choices_value = Some(ChoicesValue { span, is_array: true });
            }
            (b"choices", _) => self.choices_value = Some(ChoicesValue { span: cursor.skip()?.span, is_array: false }),
            (b"id", Kind::String) => self.id = Some(cursor.string()?.span()),
            (b"model", Kind::String) => self.model = Some(cursor.string()?.span()),
            (b"service_tier", Kind::String) => self.service_tier = Some(cursor.string()?.span()),
            (b"usage", Kind::Object) => self.usage = Some(cursor.skip()?.span),
            (b"x_groq", Kind::Object) => {
                self.nested_usage = find_object(cursor, b"usage")?.or(self.nested_usage);
            }
            (b"object", Kind::String) => *is_error_object = cursor.string()?.is("error"),
            (b"error", _) => {
                let value = cursor.skip()?;
                self.error = says_something(cursor, value).then_some(value.span);
            }
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    }

    fn choice(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if cursor.peek()? != Kind::Object {
            cursor.skip()?;
            return Ok(());
        }
        let mut choice = ChoiceFacts { bare: true, ..ChoiceFacts::default() };
        cursor.members(|cursor, key| {
            let kind = cursor.peek()?;
            match (key.raw(), kind) {
                (b"index", Kind::Number) => choice.index = small_number(cursor)?,
                (b"delta" | b"message", Kind::Object) => {
                    let delta = read_delta(cursor)?;
                    choice.content |= delta.content;
                    choice.bare &= delta.is_empty;
                    choice.tool_calls = delta.tool_calls;
                }
                (b"text", Kind::String) => {
                    let has_text = !cursor.string()?.is_empty();
                    choice.content |= has_text;
                    choice.bare &= !has_text;
                }
                (b"finish_reason", Kind::String) => {
                    let reason = cursor.string()?;
                    // Some servers send an empty reason in every chunk.
                    if !reason.is_empty() {
                        choice.finish = Some(Finish::of(&reason));
                        choice.bare = false;
                    }
                }
                (b"usage", Kind::Object) => self.nested_usage = Some(cursor.skip()?.span),
                (_, Kind::Null) => {
                    cursor.skip()?;
                }
                _ => {
                    cursor.skip()?;
                    choice.bare = false;
                }
            }
            Ok::<(), JsonError>(())
        })?;
        self.content |= choice.content;
        self.choices.push(choice);
        Ok(())
    }
}

/// What a `delta` or `message` has.
struct Delta {
    is_empty: bool,
    content: bool,
    tool_calls: Option<Span>,
}

fn read_delta(cursor: &mut Cursor<'_>) -> Result<Delta, JsonError> {
    let mut delta = Delta { is_empty: true, content: false, tool_calls: None };
    cursor.members(|cursor, key| {
        delta.is_empty = false;
        let value = cursor.skip()?;
        if key.raw() == b"tool_calls" && value.kind == Kind::Array {
            delta.tool_calls = Some(value.span);
        }
        let carries = matches!(
            key.raw(),
            b"content"
                | b"refusal"
                | b"tool_calls"
                | b"function_call"
                | b"audio"
                | b"images"
                | b"reasoning"
                | b"reasoning_content"
                | b"reasoning_details"
        );
        delta.content |= carries && says_something(cursor, value);
        Ok::<(), JsonError>(())
    })?;
    Ok(delta)
}

/// A value that is more than null, false, or empty.
fn says_something(cursor: &Cursor<'_>, value: Value) -> bool {
    match value.kind {
        Kind::Null | Kind::False => false,
        Kind::True | Kind::Number => true,
        Kind::String => value.span.len() > 2,
        Kind::Object | Kind::Array => {
            let bytes = value.span.of(cursor.bytes());
            bytes.get(1..bytes.len() - 1).is_some_and(|inner| inner.iter().any(|byte| !byte.is_ascii_whitespace()))
        }
    }
}

fn small_number(cursor: &mut Cursor<'_>) -> Result<Option<u32>, JsonError> {
    let span = cursor.skip()?.span;
    Ok(std::str::from_utf8(span.of(cursor.bytes())).ok().and_then(|text| text.parse().ok()))
}

fn find_object(cursor: &mut Cursor<'_>, name: &[u8]) -> Result<Option<Span>, JsonError> {
    let mut found = None;
    cursor.members(|cursor, key| {
        let value = cursor.skip()?;
        if key.raw() == name && value.kind == Kind::Object {
            found = Some(value.span);
        }
        Ok::<(), JsonError>(())
    })?;
    Ok(found)
}

/// An error object inside an answer whose status said 200, or the body of an error status.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InBandError {
    pub message: String,
    pub kind: Option<String>,
    /// The code as text, even when it was a number.
    pub code: Option<String>,
    pub param: Option<String>,
    /// The code or `status` member as an HTTP status, when it is one (400 to 599).
    pub status: Option<u16>,
}

/// Bytes of an upstream's error message that are kept: enough to read, not enough to flood a log or a client.
const MAX_MESSAGE_CHARS: usize = 2_000;

impl InBandError {
    /// Reads the body of an error status: its `error` member, or in servers of other habits the object itself
    /// (`message`, `detail`). Empty when the body is not JSON.
    #[must_use]
    pub fn of_body(body: &[u8]) -> Self {
        match AnswerFacts::scan(body) {
            Ok(AnswerFacts { error: Some(span), .. }) => Self::read(span.of(body)),
            Ok(_) => Self::read(body),
            Err(_) => Self::default(),
        }
    }

    /// Reads an `error` value: an object, a bare string, or anything else (then only the fact is known).
    #[must_use]
    pub fn read(value: &[u8]) -> Self {
        let mut error = Self::default();
        let mut cursor = Cursor::new(value);
        let read = match cursor.peek() {
            Ok(Kind::String) => cursor.string().map(|text| error.message = bounded(&text)),
            Ok(Kind::Object) => cursor.members(|cursor, key| error.member(cursor, &key)).map(|_| ()),
            Ok(_) | Err(_) => Ok(()),
        };
        // A broken error object is still an error: what was read of it stays.
        if read.is_err() && error.message.is_empty() {
            error.message = String::from("the provider sent an error that is not readable");
        }
        error
    }

    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>) -> Result<(), JsonError> {
        let kind = cursor.peek()?;
        match (key.raw(), kind) {
            (b"message", Kind::String) => self.message = bounded(&cursor.string()?),
            (b"detail", Kind::String) if self.message.is_empty() => self.message = bounded(&cursor.string()?),
            (b"type", Kind::String) => self.kind = Some(bounded(&cursor.string()?)),
            (b"param", Kind::String) => self.param = Some(bounded(&cursor.string()?)),
            (b"code", Kind::String) => {
                let code = bounded(&cursor.string()?);
                self.status = http_status(&code).or(self.status);
                self.code = Some(code);
            }
            (b"code", Kind::Number) => {
                let code = number_text(cursor)?;
                self.status = http_status(&code).or(self.status);
                self.code = Some(code);
            }
            (b"status" | b"status_code", Kind::Number) => {
                let status = number_text(cursor)?;
                self.status = self.status.or(http_status(&status));
            }
            // Anthropic's finer codes: branch on them where they are, never on the message.
            (b"details", Kind::Object) => {
                cursor.members(|cursor, key| {
                    if key.raw() == b"error_code" && cursor.peek()? == Kind::String {
                        self.code = Some(bounded(&cursor.string()?));
                        return Ok(());
                    }
                    cursor.skip().map(|_| ())
                })?;
            }
            // Some servers nest one error object in another.
            (b"error", Kind::Object) if self.message.is_empty() => {
                cursor.members(|cursor, key| self.member(cursor, &key))?;
            }
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    }
}

fn bounded(text: &Text<'_>) -> String {
    text.decode().chars().take(MAX_MESSAGE_CHARS).collect()
}

fn number_text(cursor: &mut Cursor<'_>) -> Result<String, JsonError> {
    let span = cursor.skip()?.span;
    Ok(String::from_utf8_lossy(span.of(cursor.bytes())).into_owned())
}

fn http_status(text: &str) -> Option<u16> {
    text.parse().ok().filter(|status| (400..600).contains(status))
}
