//! The text of a request's messages, for a tokenizer.

use std::borrow::Cow;

use super::ChatRequest;
use crate::json::{Cursor, JsonError, Kind};

/// What the messages say, piece by piece, in order.
#[derive(Clone, Default)]
pub struct MessageTexts<'a> {
    pub texts: Vec<Cow<'a, str>>,
    /// The pieces as they stand in the body, escapes included: their part of
    /// [`InputSize::text_bytes`](crate::bound::InputSize::text_bytes).
    pub raw_bytes: u64,
}

/// Never the texts: they are prompts, and `Debug` ends in logs.
impl std::fmt::Debug for MessageTexts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageTexts")
            .field("pieces", &self.texts.len())
            .field("raw_bytes", &self.raw_bytes)
            .finish_non_exhaustive()
    }
}

impl ChatRequest {
    /// `content` where it is a string, and `text` of its parts where it is a list. Everything else that a model reads
    /// (names, tool calls, schemas) is not among them: its template is the provider's own.
    ///
    /// Walks the body a second time, so it is for rare requests.
    #[must_use]
    pub fn message_texts(&self) -> MessageTexts<'_> {
        let mut found = MessageTexts::default();
        // The body was read before, so nothing fails here; if it did, what was found is still true.
        let _ = found.read(&mut Cursor::new(self.body()));
        found
    }
}

impl<'a> MessageTexts<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>) -> Result<(), JsonError> {
        cursor.members(|cursor, key| {
            if !key.is("messages") || cursor.peek()? != Kind::Array {
                return cursor.skip().map(|_| ());
            }
            let message = |cursor: &mut Cursor<'a>, _| {
                cursor.members(|cursor, key| if key.is("content") { self.content(cursor) } else { skip(cursor) })?;
                Ok::<(), JsonError>(())
            };
            cursor.elements(message).map(|_| ())
        })?;
        Ok(())
    }

    fn content(&mut self, cursor: &mut Cursor<'a>) -> Result<(), JsonError> {
        match cursor.peek()? {
            Kind::String => self.take(cursor),
            Kind::Array => cursor.elements(|cursor, _| self.part(cursor)).map(|_| ()),
            Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => skip(cursor),
        }
    }

    fn part(&mut self, cursor: &mut Cursor<'a>) -> Result<(), JsonError> {
        if cursor.peek()? != Kind::Object {
            return skip(cursor);
        }
        cursor.members(|cursor, key| {
            let is_text = key.is("text") && cursor.peek()? == Kind::String;
            if is_text { self.take(cursor) } else { skip(cursor) }
        })?;
        Ok(())
    }

    fn take(&mut self, cursor: &mut Cursor<'a>) -> Result<(), JsonError> {
        let text = cursor.string()?;
        self.raw_bytes += text.raw().len() as u64;
        self.texts.push(text.decode());
        Ok(())
    }
}

fn skip(cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
    cursor.skip().map(|_| ())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::openai::chat::Limits;

    #[test]
    fn only_the_text_of_messages_is_among_the_pieces_and_it_is_decoded() {
        let body = r#"{"model":"m","tools":[{"type":"function","function":{"name":"f","description":"no"}}],
            "messages":[
                {"role":"system","name":"no","content":"one\n\u00e9"},
                {"content":[{"type":"text","text":"two"},{"type":"image_url","image_url":{"url":"data:no"}},"no"]},
                {"role":"assistant","content":null,"tool_calls":[{"function":{"arguments":"no"}}]},
                {"role":"tool","content":"three"}]}"#;
        let request = ChatRequest::parse(Bytes::from_static(body.as_bytes()), &Limits::default()).unwrap();
        let found = request.message_texts();
        assert_eq!(found.texts, ["one\né", "two", "three"]);
        assert_eq!(found.raw_bytes, (r"one\n\u00e9".len() + "two".len() + "three".len()) as u64);
        assert!(found.raw_bytes < request.facts().size.text_bytes);
        assert_eq!(format!("{found:?}"), "MessageTexts { pieces: 3, raw_bytes: 19, .. }");
    }
}
