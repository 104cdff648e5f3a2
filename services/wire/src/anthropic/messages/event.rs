//! What one event of a stream says.
//!
//! One pass over the bytes finds the few members that matter to commitment, completion, usage and the fields that Weir
//! owns. No document is built: this runs for every event of every stream. What is not known here passes through, since
//! within a version of this API new events, blocks and reasons may appear.

use crate::json::{Cursor, JsonError, Kind, Span, Text};
use crate::openai::chat::answer::Finish;

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EventType {
    MessageStart,
    BlockStart,
    BlockDelta,
    BlockStop,
    MessageDelta,
    MessageStop,
    Ping,
    Error,
    /// A newer one.
    #[default]
    Other,
}

impl EventType {
    /// The name of a known type.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::MessageStart => Some("message_start"),
            Self::BlockStart => Some("content_block_start"),
            Self::BlockDelta => Some("content_block_delta"),
            Self::BlockStop => Some("content_block_stop"),
            Self::MessageDelta => Some("message_delta"),
            Self::MessageStop => Some("message_stop"),
            Self::Ping => Some("ping"),
            Self::Error => Some("error"),
            Self::Other => None,
        }
    }

    fn of(name: &[u8]) -> Self {
        match name {
            b"message_start" => Self::MessageStart,
            b"content_block_start" => Self::BlockStart,
            b"content_block_delta" => Self::BlockDelta,
            b"content_block_stop" => Self::BlockStop,
            b"message_delta" => Self::MessageDelta,
            b"message_stop" => Self::MessageStop,
            b"ping" => Self::Ping,
            b"error" => Self::Error,
            _ => Self::Other,
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
    /// The provider paused a long turn of its own tools; the client may let it go on.
    PauseTurn,
    Refusal,
    ContextWindowExceeded,
    /// A newer one, relayed as it is.
    Other,
}

impl StopReason {
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"end_turn" => Self::EndTurn,
            b"max_tokens" => Self::MaxTokens,
            b"stop_sequence" => Self::StopSequence,
            b"tool_use" => Self::ToolUse,
            b"pause_turn" => Self::PauseTurn,
            b"refusal" => Self::Refusal,
            b"model_context_window_exceeded" => Self::ContextWindowExceeded,
            _ => Self::Other,
        }
    }

    /// The same in the words of chat completions. A paused turn and a reason that nobody here knows are no ordinary
    /// stop: both say that the answer goes on or that this is unknown (O29).
    #[must_use]
    pub const fn as_finish(self) -> Finish {
        match self {
            Self::EndTurn | Self::StopSequence => Finish::Stop,
            Self::MaxTokens | Self::ContextWindowExceeded => Finish::Length,
            Self::ToolUse => Finish::ToolCalls,
            Self::Refusal => Finish::ContentFilter,
            Self::PauseTurn | Self::Other => Finish::Other,
        }
    }
}

/// What one event says, with spans into its data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventFacts {
    pub kind: EventType,
    /// The type's string, with quotes; none when the data has none, which is then of the type that the event's line names.
    pub type_name: Option<Span>,
    /// Text, thinking, a signature, a tool call or any other block: what a client could show or use.
    pub content: bool,
    /// The error object of an `error` event, or of data that has one whatever its type.
    pub error: Option<Span>,
    /// String values of `message`, with quotes.
    pub id: Option<Span>,
    pub model: Option<Span>,
    /// After the opening brace of `message`, where a missing model can be written.
    pub message_at: Option<usize>,
    /// `usage`, of the message or of the delta, when it is an object.
    pub usage: Option<Span>,
    pub stop_reason: Option<StopReason>,
}

/// What a block or delta is, before the event's type is known.
#[derive(Debug, Default)]
struct Part {
    /// A kind whose emptiness can be told by its text: `text`, `thinking` and their deltas.
    is_textual: bool,
    has_text: bool,
    stop_reason: Option<StopReason>,
}

impl EventFacts {
    /// Reads the data of one event whose `event:` line says `name`.
    ///
    /// # Errors
    /// The bytes are not one JSON object.
    pub fn scan(data: &[u8], name: &[u8]) -> Result<Self, JsonError> {
        let mut facts = Self { kind: EventType::of(name), ..Self::default() };
        let mut part = None;
        let mut cursor = Cursor::new(data);
        cursor.members(|cursor, key| facts.member(cursor, &key, &mut part))?;
        cursor.end()?;
        if let Some(part) = part {
            let carries = !part.is_textual || part.has_text;
            facts.content = carries && matches!(facts.kind, EventType::BlockStart | EventType::BlockDelta);
            facts.stop_reason = part.stop_reason.filter(|_| facts.kind == EventType::MessageDelta);
        }
        Ok(facts)
    }

    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>, part: &mut Option<Part>) -> Result<(), JsonError> {
        match (key.raw(), cursor.peek()?) {
            (b"type", Kind::String) => {
                let name = cursor.string()?;
                self.kind = EventType::of(&name.decoded_bytes());
                self.type_name = Some(name.span());
            }
            (b"delta" | b"content_block", Kind::Object) => *part = Some(Part::read(cursor)?),
            (b"message", Kind::Object) => {
                self.message_at = Some(cursor.offset() + 1);
                cursor.members(|cursor, key| self.of_message(cursor, &key))?;
            }
            (b"usage", Kind::Object) => self.usage = Some(cursor.skip()?.span),
            (b"error", Kind::Object | Kind::String) => self.error = Some(cursor.skip()?.span),
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    }

    fn of_message(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>) -> Result<(), JsonError> {
        match (key.raw(), cursor.peek()?) {
            (b"id", Kind::String) => self.id = Some(cursor.string()?.span()),
            (b"model", Kind::String) => self.model = Some(cursor.string()?.span()),
            (b"usage", Kind::Object) => self.usage = Some(cursor.skip()?.span),
            _ => {
                cursor.skip()?;
            }
        }
        Ok(())
    }
}

impl Part {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, JsonError> {
        let mut part = Self::default();
        cursor.members(|cursor, key| {
            match (key.raw(), cursor.peek()?) {
                (b"type", Kind::String) => {
                    let name = cursor.string()?;
                    part.is_textual = matches!(
                        name.raw(),
                        b"text" | b"thinking" | b"text_delta" | b"thinking_delta" | b"input_json_delta"
                    );
                }
                (b"text" | b"thinking" | b"signature" | b"partial_json", Kind::String) => {
                    part.has_text |= !cursor.string()?.is_empty();
                }
                (b"stop_reason", Kind::String) => part.stop_reason = Some(StopReason::of(cursor.string()?.raw())),
                _ => {
                    cursor.skip()?;
                }
            }
            Ok::<(), JsonError>(())
        })?;
        Ok(part)
    }
}
