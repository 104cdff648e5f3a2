//! Requests across dialects: `to_messages` for an Anthropic target, `to_chat` for a target of chat completions.

mod to_chat;
mod to_messages;
mod turns;

pub(crate) use to_chat::messages_to_chat;
pub(crate) use to_messages::chat_to_messages;

use super::Untranslatable;
use super::fields::Carried;
use crate::json::{Kind, Node, Text};

/// The arguments of a tool call as the object that they are in text: its bytes, an empty object where the text is empty
/// (O25).
pub(super) fn arguments_object(arguments: Option<Text<'_>>, path: &str) -> Carried<Vec<u8>> {
    let text = arguments.map(|text| text.decoded_bytes()).unwrap_or_default();
    let bytes = text.trim_ascii();
    if bytes.is_empty() {
        return Ok(b"{}".to_vec());
    }
    match Node::of(bytes) {
        Ok(node) if node.kind == Kind::Object => Ok(node.raw.to_vec()),
        Ok(_) | Err(_) => Err(Untranslatable::new(path, "must be a JSON object in a string.")),
    }
}
