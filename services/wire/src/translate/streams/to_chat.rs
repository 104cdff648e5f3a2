//! An Anthropic stream as chat completion chunks.
//!
//! Thinking becomes `reasoning_content`, as many servers have it, and beside it `reasoning_details` in the form that
//! OpenRouter made known, with text, signature and encrypted data: a client that sends those back gets its thinking
//! blocks carried back whole (O35).

use bytes::{BufMut, Bytes, BytesMut};

use crate::anthropic::messages::{EventFacts, EventType};
use crate::json::{Node, Writer, quoted};
use crate::openai::chat::editor::DONE;
use crate::sse::Event;
use crate::translate::Untranslatable;
use crate::translate::finish::Stop;
use crate::translate::usage::write_chat;
use crate::usage::Extracted;

/// The name of Anthropic's signatures in `reasoning_details`.
pub(crate) const REASONING_FORMAT: &str = "anthropic-claude-v1";

/// Writes one client's stream.
#[derive(Debug)]
pub(crate) struct ChatWriter {
    /// Quoted.
    id: Bytes,
    alias: Bytes,
    created_s: i64,
    wants_usage: bool,
    open: Option<Block>,
    tools: u32,
    thoughts: u32,
    stop: Stop,
    content_chunks: u64,
    is_finished: bool,
}

/// The block that the provider has open.
#[derive(Debug)]
struct Block {
    index: u64,
    kind: BlockKind,
}

#[derive(Debug)]
enum BlockKind {
    Text,
    Thinking {
        number: u32,
    },
    Tool {
        number: u32,
        has_arguments: bool,
        input: Option<Vec<u8>>,
    },
    /// Whole in its start.
    Redacted,
}

impl ChatWriter {
    pub(crate) fn new(alias: &str, fallback_id: &str, created_s: i64, wants_usage: bool) -> Self {
        Self {
            id: Bytes::from(quoted(fallback_id)),
            alias: Bytes::from(quoted(alias)),
            created_s,
            wants_usage,
            open: None,
            tools: 0,
            thoughts: 0,
            stop: Stop::default(),
            content_chunks: 0,
            is_finished: false,
        }
    }

    pub(crate) const fn content_chunks(&self) -> u64 {
        self.content_chunks
    }

    /// Appends what an event says to `out`. Returns whether the client has content by it.
    pub(crate) fn write(
        &mut self,
        event: &Event,
        facts: &EventFacts,
        out: &mut BytesMut,
    ) -> Result<bool, Untranslatable> {
        let node = Node::validated_object(&event.data);
        let before = self.content_chunks;
        match facts.kind {
            EventType::MessageStart => {
                if let Some(id) = facts.id.filter(|span| span.len() > 2) {
                    self.id = Bytes::copy_from_slice(id.of(&event.data));
                }
                self.chunk(out, |delta| {
                    delta.member("role", "assistant").member("content", "");
                });
            }
            EventType::BlockStart => self.block_start(node, out)?,
            EventType::BlockDelta => self.block_delta(node, out)?,
            EventType::BlockStop => self.block_stop(out),
            EventType::MessageDelta => {
                if let Some(delta) = node.get("delta") {
                    self.stop.remember(delta);
                }
            }
            EventType::MessageStop | EventType::Ping | EventType::Error | EventType::Other => {}
        }
        Ok(self.content_chunks > before)
    }

    fn block_start(&mut self, event: Node<'_>, out: &mut BytesMut) -> Result<(), Untranslatable> {
        let [index, block] = event.pick(["index", "content_block"]);
        let index = index.and_then(Node::count).unwrap_or(0);
        let block = block.ok_or_else(|| Untranslatable::new("content_block", "is missing."))?;
        let kind = block.get("type").and_then(Node::text).map(|text| text.decode().into_owned()).unwrap_or_default();
        let kind = match kind.as_str() {
            "text" => {
                self.text(block.get("text"), out);
                BlockKind::Text
            }
            "thinking" => {
                let number = self.thoughts;
                self.thoughts = self.thoughts.saturating_add(1);
                self.thinking(block.get("thinking"), number, out);
                self.signature(block.get("signature"), number, out);
                BlockKind::Thinking { number }
            }
            "redacted_thinking" => {
                self.redacted(block.get("data"), out);
                BlockKind::Redacted
            }
            "tool_use" => self.tool_start(block, out)?,
            other => {
                let field = format!("content_block.{other}");
                return Err(Untranslatable::new(field, "has no counterpart in chat completions."));
            }
        };
        self.open = Some(Block { index, kind });
        Ok(())
    }

    fn tool_start(&mut self, block: Node<'_>, out: &mut BytesMut) -> Result<BlockKind, Untranslatable> {
        let string = |name: &str| {
            let found = block.get(name).filter(|node| node.text().is_some());
            found.ok_or_else(|| Untranslatable::new(format!("content_block.{name}"), "is missing."))
        };
        let (id, name) = (string("id")?, string("name")?);
        let number = self.tools;
        self.tools = self.tools.saturating_add(1);
        self.content(out, |delta| {
            delta.key("tool_calls").open(b'[').open(b'{').key("index").number(number);
            delta.raw_member("id", id.raw).member("type", "function").key("function").open(b'{');
            delta.raw_member("name", name.raw).member("arguments", "").close(b'}').close(b'}').close(b']');
        });
        // Some servers give the whole input here; an empty object only says that fragments follow (O25).
        let input = block.get("input").filter(|input| !input.is_null() && !input.is_empty());
        Ok(BlockKind::Tool { number, has_arguments: false, input: input.map(|input| input.raw.to_vec()) })
    }

    fn block_delta(&mut self, event: Node<'_>, out: &mut BytesMut) -> Result<(), Untranslatable> {
        let [index, delta] = event.pick(["index", "delta"]);
        let index = index.and_then(Node::count).unwrap_or(0);
        let delta = delta.ok_or_else(|| Untranslatable::new("delta", "is missing."))?;
        let [kind, text, thinking, signature, partial_json] =
            delta.pick(["type", "text", "thinking", "signature", "partial_json"]);
        let Some(block) = self.open.as_mut().filter(|block| block.index == index) else {
            return Err(Untranslatable::new("index", "names a block that is not open."));
        };
        match (kind.map_or(&b""[..], |kind| kind.raw), &mut block.kind) {
            (b"\"text_delta\"", BlockKind::Text) => self.text(text, out),
            (b"\"thinking_delta\"", BlockKind::Thinking { number }) => {
                let number = *number;
                self.thinking(thinking, number, out);
            }
            (b"\"signature_delta\"", BlockKind::Thinking { number }) => {
                let number = *number;
                self.signature(signature, number, out);
            }
            (b"\"input_json_delta\"", BlockKind::Tool { number, has_arguments, .. }) => {
                let fragment = partial_json.filter(|node| node.text().is_some() && !node.is_empty());
                let Some(fragment) = fragment else { return Ok(()) };
                *has_arguments = true;
                let number = *number;
                self.arguments(number, out, |writer| {
                    writer.raw_member("arguments", fragment.raw);
                });
            }
            (other, _) => {
                let other: String = String::from_utf8_lossy(other).chars().take(64).collect();
                return Err(Untranslatable::new(format!("delta.{other}"), "has no counterpart in chat completions."));
            }
        }
        Ok(())
    }

    /// A tool call whose input came in no fragment gets it now: the whole one of its start, or an empty object.
    fn block_stop(&mut self, out: &mut BytesMut) {
        let Some(Block { kind: BlockKind::Tool { number, has_arguments: false, input }, .. }) = self.open.take() else {
            return;
        };
        let input = input.map(|input| String::from_utf8_lossy(&input).into_owned());
        self.arguments(number, out, |writer| {
            writer.member("arguments", input.as_deref().unwrap_or("{}"));
        });
    }

    fn arguments(&mut self, number: u32, out: &mut BytesMut, write: impl FnOnce(&mut Writer<'_>)) {
        self.content(out, |delta| {
            delta.key("tool_calls").open(b'[').open(b'{').key("index").number(number);
            delta.key("function").open(b'{');
            write(delta);
            delta.close(b'}').close(b'}').close(b']');
        });
    }

    fn text(&mut self, text: Option<Node<'_>>, out: &mut BytesMut) {
        let Some(text) = text.filter(|node| node.text().is_some() && !node.is_empty()) else { return };
        self.content(out, |delta| {
            delta.raw_member("content", text.raw);
        });
    }

    fn thinking(&mut self, text: Option<Node<'_>>, number: u32, out: &mut BytesMut) {
        let Some(text) = text.filter(|node| node.text().is_some() && !node.is_empty()) else { return };
        self.content(out, |delta| {
            delta.raw_member("reasoning_content", text.raw).key("reasoning_details").open(b'[').open(b'{');
            delta.member("type", "reasoning.text").raw_member("text", text.raw);
            delta.member("format", REASONING_FORMAT).key("index").number(number).close(b'}').close(b']');
        });
    }

    fn signature(&mut self, signature: Option<Node<'_>>, number: u32, out: &mut BytesMut) {
        let Some(signature) = signature.filter(|node| node.text().is_some() && !node.is_empty()) else { return };
        self.content(out, |delta| {
            delta.key("reasoning_details").open(b'[').open(b'{').member("type", "reasoning.text");
            delta.raw_member("signature", signature.raw);
            delta.member("format", REASONING_FORMAT).key("index").number(number).close(b'}').close(b']');
        });
    }

    fn redacted(&mut self, data: Option<Node<'_>>, out: &mut BytesMut) {
        let Some(data) = data.filter(|node| node.text().is_some()) else { return };
        let number = self.thoughts;
        self.thoughts = self.thoughts.saturating_add(1);
        self.content(out, |delta| {
            delta.key("reasoning_details").open(b'[').open(b'{').member("type", "reasoning.encrypted");
            delta.raw_member("data", data.raw);
            delta.member("format", REASONING_FORMAT).key("index").number(number).close(b'}').close(b']');
        });
    }

    fn content(&mut self, out: &mut BytesMut, delta: impl FnOnce(&mut Writer<'_>)) {
        self.content_chunks += 1;
        self.chunk(out, delta);
    }

    fn chunk(&self, out: &mut BytesMut, delta: impl FnOnce(&mut Writer<'_>)) {
        self.framed(out, |writer| {
            writer.key("choices").open(b'[').open(b'{').key("index").number(0).key("delta").open(b'{');
            delta(writer);
            writer.close(b'}').raw_member("finish_reason", b"null").close(b'}').close(b']');
            if self.wants_usage {
                writer.raw_member("usage", b"null");
            }
        });
    }

    fn framed(&self, out: &mut BytesMut, members: impl FnOnce(&mut Writer<'_>)) {
        out.put_slice(b"data: ");
        let mut writer = Writer::new(out);
        writer.open(b'{').raw_member("id", &self.id).member("object", "chat.completion.chunk");
        writer.key("created").number(self.created_s).raw_member("model", &self.alias);
        members(&mut writer);
        writer.close(b'}');
        out.put_slice(b"\n\n");
    }

    /// Appends the end, once: the finish reason, the usage for a client that asked, and `[DONE]`.
    pub(crate) fn finish(&mut self, usage: Option<&Extracted>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        self.framed(out, |writer| {
            writer.key("choices").open(b'[').open(b'{').key("index").number(0).key("delta").open(b'{').close(b'}');
            self.stop.write(writer);
            writer.close(b'}').close(b']');
            if self.wants_usage {
                writer.raw_member("usage", b"null");
            }
        });
        if let Some(usage) = usage.and_then(|extracted| extracted.usage.as_ref()).filter(|_| self.wants_usage) {
            self.framed(out, |writer| {
                writer.key("choices").open(b'[').close(b']').key("usage");
                write_chat(usage, writer);
            });
        }
        out.put_slice(DONE);
    }
}
