//! What one event of a stream, or a whole response, says. One pass; no document is built.

use crate::json::{Cursor, JsonError, Kind, Span, Text};

/// How a response stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResponseStatus {
    Completed,
    /// Cut by the cap, by a filter, or by the client: a true end with usage.
    Incomplete,
    Failed,
    Cancelled,
    InProgress,
    /// Queued, or a newer one.
    Other,
}

impl ResponseStatus {
    fn of(name: &[u8]) -> Self {
        match name {
            b"completed" => Self::Completed,
            b"incomplete" => Self::Incomplete,
            b"failed" => Self::Failed,
            b"cancelled" => Self::Cancelled,
            b"in_progress" => Self::InProgress,
            _ => Self::Other,
        }
    }
}

/// What an event is to the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EventClass {
    /// `response.created`, `queued`, `in_progress`: names the response.
    Lifecycle,
    /// `response.completed` or `response.incomplete`: the answer is whole.
    Terminal,
    /// `response.failed`.
    Failed,
    /// The bare `error` event.
    Error,
    /// A delta, or an item that is content by itself.
    Content,
    /// Everything else: frames around content, and newer events.
    #[default]
    Other,
}

/// What a `response` object says, with spans into the bytes it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponseFacts {
    pub id: Option<Span>,
    pub previous_response_id: Option<Span>,
    pub model: Option<Span>,
    pub service_tier: Option<Span>,
    pub usage: Option<Span>,
    pub tool_usage: Option<Span>,
    pub error: Option<Span>,
    pub status: Option<ResponseStatus>,
    /// After the opening brace, and whether nothing follows.
    pub first: usize,
    pub has_output: bool,
}

impl ResponseFacts {
    /// Reads the object at the cursor.
    ///
    /// # Errors
    /// It is not a JSON object.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, JsonError> {
        let mut facts = Self::default();
        cursor.peek()?;
        facts.first = cursor.offset() + 1;
        cursor.members(|cursor, key| {
            match (key.raw(), cursor.peek()?) {
                (b"id", Kind::String) => facts.id = Some(cursor.string()?.span()),
                (b"previous_response_id", Kind::String) => {
                    facts.previous_response_id = Some(cursor.string()?.span());
                }
                (b"model", Kind::String) => facts.model = Some(cursor.string()?.span()),
                (b"service_tier", Kind::String) => facts.service_tier = Some(cursor.string()?.span()),
                (b"usage", Kind::Object) => facts.usage = Some(cursor.skip()?.span),
                (b"tool_usage", Kind::Object) => facts.tool_usage = Some(cursor.skip()?.span),
                (b"error", Kind::Object | Kind::String) => facts.error = Some(cursor.skip()?.span),
                (b"status", Kind::String) => facts.status = Some(ResponseStatus::of(cursor.string()?.raw())),
                (b"output", Kind::Array) => {
                    cursor.skip()?;
                    facts.has_output = true;
                }
                _ => {
                    cursor.skip()?;
                }
            }
            Ok::<(), JsonError>(())
        })?;
        Ok(facts)
    }
}

/// What one event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventFacts {
    pub class: EventClass,
    /// The type's string, with quotes.
    pub type_name: Option<Span>,
    pub sequence_number: Option<u64>,
    pub response: Option<ResponseFacts>,
    pub error: Option<Span>,
}

impl EventFacts {
    /// Whether a client has something of the answer by this event.
    #[must_use]
    pub fn is_content(&self) -> bool {
        self.class == EventClass::Content
    }

    /// Reads the data of one event whose `event:` line says `name`, which is its type where the data has none.
    ///
    /// # Errors
    /// The bytes are not one JSON object.
    pub fn scan(data: &[u8], name: &[u8]) -> Result<Self, JsonError> {
        let mut facts = Self::default();
        let (mut delta_has_text, mut item_type) = (false, None);
        let mut cursor = Cursor::new(data);
        cursor.members(|cursor, key| {
            match (key.raw(), cursor.peek()?) {
                (b"type", Kind::String) => facts.type_name = Some(cursor.string()?.span()),
                (b"sequence_number", Kind::Number) => {
                    let span = cursor.skip()?.span;
                    facts.sequence_number = std::str::from_utf8(span.of(data)).ok().and_then(|text| text.parse().ok());
                }
                (b"response", Kind::Object) => facts.response = Some(ResponseFacts::read(cursor)?),
                (b"error", Kind::Object | Kind::String) => facts.error = Some(cursor.skip()?.span),
                (b"delta" | b"partial_image_b64", Kind::String) => delta_has_text = !cursor.string()?.is_empty(),
                (b"delta", Kind::Object) => {
                    cursor.skip()?;
                    delta_has_text = true;
                }
                (b"item", Kind::Object) => item_type = type_of(cursor)?,
                _ => {
                    cursor.skip()?;
                }
            }
            Ok::<(), JsonError>(())
        })?;
        cursor.end()?;
        let name = facts.type_name.map_or(name, |span| inside(span).of(data));
        facts.class = classify(name, delta_has_text, item_type.map(|span| inside(span).of(data)));
        Ok(facts)
    }
}

/// A string without its quotes.
const fn inside(span: Span) -> Span {
    Span::new(span.start + 1, span.end.saturating_sub(1))
}

/// By the type. A function call begins with its item, which names it; texts begin with a delta.
fn classify(name: &[u8], delta_has_text: bool, item: Option<&[u8]>) -> EventClass {
    match name {
        b"response.created" | b"response.queued" | b"response.in_progress" => EventClass::Lifecycle,
        b"response.completed" | b"response.incomplete" => EventClass::Terminal,
        b"response.failed" => EventClass::Failed,
        b"error" => EventClass::Error,
        b"response.output_item.added" => match item {
            Some(b"message" | b"reasoning") | None => EventClass::Other,
            Some(_) => EventClass::Content,
        },
        _ if delta_has_text => EventClass::Content,
        _ => EventClass::Other,
    }
}

fn type_of(cursor: &mut Cursor<'_>) -> Result<Option<Span>, JsonError> {
    let mut name = None;
    cursor.members(|cursor, key: Text<'_>| {
        if key.raw() == b"type" && cursor.peek()? == Kind::String {
            name = Some(cursor.string()?.span());
            return Ok(());
        }
        cursor.skip().map(|_| ())
    })?;
    Ok(name)
}
