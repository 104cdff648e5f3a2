//! The messages of a request, measured: how much is text, how much is pictures, sound and documents.
//!
//! Nothing here judges the conversation; the provider does. A part is recognised by the member that carries its data
//! (`image_url`, `input_audio`, `file`), because the order of members is free.

use crate::json::{Cursor, Kind, Span, Text};
use crate::request::Limits;
use crate::request_error::{Refusal, RequestErrorCode};

/// What was found in `messages`.
#[derive(Debug, Default)]
pub(super) struct MessageFacts {
    pub(super) count: u32,
    /// Everything that is not a picture's, sound's or document's data.
    pub(super) text_bytes: u64,
    pub(super) data_url_bytes: u64,
    pub(super) images: u32,
    pub(super) audio_parts: u32,
    pub(super) audio_bytes: u64,
    pub(super) file_bytes: u64,
    pub(super) file_references: u32,
    pub(super) developer_roles: Vec<Span>,
}

type Parsed<T> = Result<T, Refusal>;

pub(super) fn read_messages(cursor: &mut Cursor<'_>, limits: &Limits) -> Parsed<MessageFacts> {
    let mut facts = MessageFacts::default();
    let span = cursor.elements(|cursor, index| {
        if index == limits.max_messages {
            let message = format!("`messages` has more than {} entries.", limits.max_messages);
            return Err(Refusal::new(RequestErrorCode::TooMany, "messages", message).at(cursor.offset()));
        }
        if cursor.peek()? != Kind::Object {
            let field = format!("messages[{index}]");
            return Err(Refusal::invalid(&field, format!("`{field}` must be an object.")).at(cursor.offset()));
        }
        facts.count += 1;
        cursor.members(|cursor, key| facts.member(cursor, &key)).map(|_| ())
    })?;
    let data = facts.data_url_bytes + facts.audio_bytes + facts.file_bytes;
    facts.text_bytes = (span.len() as u64).saturating_sub(data);
    Ok(facts)
}

impl MessageFacts {
    fn member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>) -> Parsed<()> {
        let kind = cursor.peek()?;
        if kind == Kind::String && key.is("role") {
            let role = cursor.string()?;
            if role.is("developer") {
                self.developer_roles.push(role.span());
            }
        } else if kind == Kind::Array && key.is("content") {
            cursor.elements(|cursor, _| {
                if cursor.peek()? == Kind::Object {
                    cursor.members(|cursor, key| self.part_member(cursor, &key)).map(|_| ())
                } else {
                    cursor.skip().map(|_| ()).map_err(Refusal::from)
                }
            })?;
        } else {
            cursor.skip()?;
        }
        Ok(())
    }

    fn part_member(&mut self, cursor: &mut Cursor<'_>, key: &Text<'_>) -> Parsed<()> {
        let kind = cursor.peek()?;
        if kind == Kind::Null {
            cursor.skip()?;
        } else if key.is("image_url") {
            self.images = self.images.saturating_add(1);
            self.data_url_bytes += data_bytes(cursor, "url")?;
        } else if key.is("input_audio") {
            self.audio_parts = self.audio_parts.saturating_add(1);
            self.audio_bytes += member_bytes(cursor, "data")?;
        } else if key.is("file") {
            let data = member_bytes(cursor, "file_data")?;
            self.file_bytes += data;
            self.file_references = self.file_references.saturating_add(u32::from(data == 0));
        } else {
            cursor.skip()?;
        }
        Ok(())
    }
}

/// Length of a `data:` URL given as a string or as `member` of an object; an ordinary address counts as text.
fn data_bytes(cursor: &mut Cursor<'_>, member: &str) -> Parsed<u64> {
    let measure = |text: Text<'_>| match text.raw().get(..5) {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"data:") => text.raw().len() as u64,
        _ => 0,
    };
    measured(cursor, member, measure)
}

fn member_bytes(cursor: &mut Cursor<'_>, member: &str) -> Parsed<u64> {
    measured(cursor, member, |text| text.raw().len() as u64)
}

fn measured(cursor: &mut Cursor<'_>, member: &str, measure: impl Fn(Text<'_>) -> u64) -> Parsed<u64> {
    let mut bytes = 0;
    match cursor.peek()? {
        Kind::String => bytes = measure(cursor.string()?),
        Kind::Object => {
            cursor.members(|cursor, key| {
                if key.is(member) && cursor.peek()? == Kind::String {
                    bytes += measure(cursor.string()?);
                    return Ok(());
                }
                cursor.skip().map(|_| ()).map_err(Refusal::from)
            })?;
        }
        Kind::Array | Kind::Number | Kind::True | Kind::False | Kind::Null => {
            cursor.skip()?;
        }
    }
    Ok(bytes)
}
