//! Plain answers across dialects. What is content is carried or refused by name; what describes the provider (its
//! fingerprints, its tiers) stays behind, since the gateway tells it in headers and in the ledger.

use bytes::{Bytes, BytesMut};

use super::Untranslatable;
use super::finish::{ChatEnd, Stop};
use super::requests::arguments_object;
use super::streams::REASONING_FORMAT;
use super::usage::{write_chat, write_message};
use crate::anthropic::messages::MessageAnswer;
use crate::json::{Kind, Node, Writer};
use crate::openai::chat::PlainAnswer;

/// An Anthropic answer as a chat completion.
pub(crate) fn message_to_chat(
    answer: &MessageAnswer,
    alias: &str,
    fallback_id: &str,
    created_s: i64,
) -> Result<Bytes, Untranslatable> {
    let node = Node::of(answer.body())?;
    let content = ChatContent::read(node.get("content"))?;
    let mut stop = Stop::default();
    stop.remember(node);
    let mut out = BytesMut::with_capacity(answer.body().len() + 512);
    let mut writer = Writer::new(&mut out);
    writer.open(b'{').member("id", answer.response_id().as_deref().unwrap_or(fallback_id));
    writer.member("object", "chat.completion").key("created").number(created_s).member("model", alias);
    writer.key("choices").open(b'[').open(b'{').key("index").number(0).key("message").open(b'{');
    content.write(&mut writer);
    writer.close(b'}').raw_member("logprobs", b"null");
    stop.write(&mut writer);
    writer.close(b'}').close(b']');
    if let Some(usage) = answer.usage().and_then(|extracted| extracted.usage) {
        writer.key("usage");
        write_chat(&usage, &mut writer);
    }
    writer.close(b'}');
    Ok(out.freeze())
}

/// The blocks of an answer, by what they become.
#[derive(Debug, Default)]
struct ChatContent<'a> {
    text: String,
    has_text: bool,
    thinking: String,
    details: Vec<Node<'a>>,
    calls: Vec<Node<'a>>,
}

impl<'a> ChatContent<'a> {
    fn read(blocks: Option<Node<'a>>) -> Result<Self, Untranslatable> {
        let mut content = Self::default();
        let blocks = blocks.ok_or_else(|| Untranslatable::new("content", "is missing."))?;
        blocks.elements(|index, block| {
            let text = |name: &str| block.get(name).and_then(Node::text);
            let kind = text("type").map(|text| text.decode().into_owned()).unwrap_or_default();
            match kind.as_str() {
                "text" => {
                    content.has_text = true;
                    content.text.push_str(&text("text").map(|text| text.decode()).unwrap_or_default());
                }
                "thinking" => {
                    content.thinking.push_str(&text("thinking").map(|text| text.decode()).unwrap_or_default());
                    content.details.push(block);
                }
                "redacted_thinking" => content.details.push(block),
                "tool_use" => content.calls.push(block),
                other => {
                    let field = format!("content[{index}].{other}");
                    return Err(Untranslatable::new(field, "has no counterpart in chat completions."));
                }
            }
            Ok(())
        })?;
        Ok(content)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.member("role", "assistant");
        if self.has_text || self.calls.is_empty() {
            writer.member("content", &self.text);
        } else {
            writer.raw_member("content", b"null");
        }
        writer.raw_member("refusal", b"null");
        if !self.thinking.is_empty() {
            writer.member("reasoning_content", &self.thinking);
        }
        if !self.details.is_empty() {
            writer.key("reasoning_details").open(b'[');
            for (index, block) in self.details.iter().enumerate() {
                write_detail(*block, index, writer);
            }
            writer.close(b']');
        }
        if self.calls.is_empty() {
            return;
        }
        writer.key("tool_calls").open(b'[');
        for call in &self.calls {
            let raw = |name: &str| call.get(name).map_or(&b"\"\""[..], |node| node.raw);
            let input = call.get("input").map_or(&b"{}"[..], |node| node.raw);
            writer.open(b'{').raw_member("id", raw("id")).member("type", "function").key("function").open(b'{');
            writer.raw_member("name", raw("name")).member("arguments", &String::from_utf8_lossy(input));
            writer.close(b'}').close(b'}');
        }
        writer.close(b']');
    }
}

fn write_detail(block: Node<'_>, index: usize, writer: &mut Writer<'_>) {
    writer.open(b'{');
    match block.get("data") {
        Some(data) => {
            writer.member("type", "reasoning.encrypted").raw_member("data", data.raw);
        }
        None => {
            let raw = |name: &str| block.get(name).map_or(&b"\"\""[..], |node| node.raw);
            writer.member("type", "reasoning.text").raw_member("text", raw("thinking"));
            writer.raw_member("signature", raw("signature"));
        }
    }
    writer.member("format", REASONING_FORMAT).key("index").number(index).close(b'}');
}

/// A chat completion as an Anthropic message.
pub(crate) fn chat_to_message(answer: &PlainAnswer, alias: &str, fallback_id: &str) -> Result<Bytes, Untranslatable> {
    let node = Node::of(answer.body())?;
    let mut choice = None;
    if let Some(choices) = node.get("choices") {
        choices.elements(|_, element| match choice.replace(element) {
            Some(_) => Err(Untranslatable::new("choices", "has more than one choice.")),
            None => Ok(()),
        })?;
    }
    let choice = choice.ok_or_else(|| Untranslatable::new("choices", "is empty."))?;
    let message = choice.get("message").ok_or_else(|| Untranslatable::new("choices[0].message", "is missing."))?;
    let mut out = BytesMut::with_capacity(answer.body().len() + 512);
    let mut writer = Writer::new(&mut out);
    writer.open(b'{').member("id", answer.response_id().as_deref().unwrap_or(fallback_id));
    writer.member("type", "message").member("role", "assistant").member("model", alias).key("content").open(b'[');
    write_thinking(message, &mut writer)?;
    let refused = write_texts(message, &mut writer)?;
    let has_tools = write_calls(message, fallback_id, &mut writer)?;
    writer.close(b']');
    let raw = choice.get("finish_reason").filter(|node| node.kind == Kind::String).map(|node| node.raw);
    ChatEnd { finish: answer.finish(), raw, has_tools, refused }.write(&mut writer);
    writer.key("usage");
    write_message(answer.usage().as_ref(), &mut writer);
    writer.close(b'}');
    Ok(out.freeze())
}

fn said<'a>(object: Node<'a>, name: &str) -> Option<Node<'a>> {
    object.get(name).filter(|node| !node.is_null() && !node.is_empty())
}

fn write_thinking(message: Node<'_>, writer: &mut Writer<'_>) -> Result<(), Untranslatable> {
    if let Some(details) = said(message, "reasoning_details") {
        return details.elements(|_, detail| {
            let string = |name| said(detail, name).filter(|node| node.kind == Kind::String);
            match string("data") {
                Some(data) => writer.open(b'{').member("type", "redacted_thinking").raw_member("data", data.raw),
                None => {
                    let text = string("text").or_else(|| string("summary")).map_or(&b"\"\""[..], |node| node.raw);
                    let signature = string("signature").map_or(&b"\"\""[..], |node| node.raw);
                    writer.open(b'{').member("type", "thinking").raw_member("thinking", text);
                    writer.raw_member("signature", signature)
                }
            };
            writer.close(b'}');
            Ok(())
        });
    }
    let string = |name| said(message, name).filter(|node| node.kind == Kind::String);
    if let Some(text) = string("reasoning_content").or_else(|| string("reasoning")) {
        writer
            .open(b'{')
            .member("type", "thinking")
            .raw_member("thinking", text.raw)
            .member("signature", "")
            .close(b'}');
    }
    Ok(())
}

/// Writes what the model said; returns whether it refused.
fn write_texts(message: Node<'_>, writer: &mut Writer<'_>) -> Result<bool, Untranslatable> {
    for name in ["audio", "images", "function_call", "annotations"] {
        if said(message, name).is_some() {
            let field = format!("choices[0].message.{name}");
            return Err(Untranslatable::new(field, "has no counterpart in messages."));
        }
    }
    for name in ["content", "refusal"] {
        let Some(text) = said(message, name) else { continue };
        if text.kind != Kind::String {
            return Err(Untranslatable::new(format!("choices[0].message.{name}"), "is no string."));
        }
        writer.open(b'{').member("type", "text").raw_member("text", text.raw).close(b'}');
    }
    Ok(said(message, "refusal").is_some())
}

/// Writes the tool calls; returns whether there are any.
fn write_calls(message: Node<'_>, fallback_id: &str, writer: &mut Writer<'_>) -> Result<bool, Untranslatable> {
    let Some(calls) = said(message, "tool_calls") else { return Ok(false) };
    calls.elements(|index, call| {
        let path = format!("choices[0].message.tool_calls[{index}]");
        let function = call.get("function").ok_or_else(|| Untranslatable::new(path.as_str(), "is no function."))?;
        let name = said(function, "name").ok_or_else(|| Untranslatable::new(path.as_str(), "has no name."))?;
        writer.open(b'{').member("type", "tool_use");
        match said(call, "id") {
            Some(id) => writer.raw_member("id", id.raw),
            None => writer.member("id", &format!("{fallback_id}_{index}")),
        };
        writer.raw_member("name", name.raw).key("input");
        let arguments = function.get("arguments").and_then(Node::text);
        writer.raw(&arguments_object(arguments, &format!("{path}.function.arguments"))?).close(b'}');
        Ok::<(), Untranslatable>(())
    })?;
    Ok(true)
}
