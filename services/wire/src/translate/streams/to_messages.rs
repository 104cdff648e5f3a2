//! A stream of chat completion chunks as Anthropic events (O28): one block open at a time, each started and stopped once.
//!
//! A tool call is told from the next by its id, because servers repeat or leave out the index (O24). Fragments of a call
//! whose block is closed cannot be carried: no server is known to interleave calls, and inventing an order would splice
//! arguments.

use bytes::{Bytes, BytesMut};

use crate::json::{Kind, Node, Writer, quoted};
use crate::openai::chat::AnswerFacts;
use crate::openai::chat::answer::Finish;
use crate::sse::{Event, push_event};
use crate::translate::Untranslatable;
use crate::translate::finish::ChatEnd;
use crate::translate::usage::write_message;
use crate::usage::Extracted;

/// Writes one client's stream.
#[derive(Debug)]
pub(crate) struct MessagesWriter {
    alias: Bytes,
    /// The gateway's id for the answer, also for tool calls that have none.
    fallback_id: String,
    has_started: bool,
    open: Option<Block>,
    /// Blocks started so far.
    blocks: u32,
    calls: u32,
    refused: bool,
    /// The last finish reason as it stands, with quotes.
    finish: Option<Vec<u8>>,
    content_events: u64,
    is_finished: bool,
    /// One event's data, built here.
    data: BytesMut,
}

/// The block that the client has open.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    Text,
    Thinking,
    Tool {
        /// The provider's index, where it gave one.
        index: Option<u64>,
        /// Decoded; empty where the provider gave none.
        id: String,
    },
}

/// Bytes of a tool call's id, or of a finish reason, that are kept.
const MOST_WORD_BYTES: usize = 4 * 1024;

impl MessagesWriter {
    pub(crate) fn new(alias: &str, fallback_id: &str) -> Self {
        Self {
            alias: Bytes::from(quoted(alias)),
            fallback_id: fallback_id.to_owned(),
            has_started: false,
            open: None,
            blocks: 0,
            calls: 0,
            refused: false,
            finish: None,
            content_events: 0,
            is_finished: false,
            data: BytesMut::new(),
        }
    }

    pub(crate) const fn content_events(&self) -> u64 {
        self.content_events
    }

    /// Appends what a chunk says to `out`. Returns whether the client has content by it.
    pub(crate) fn write(
        &mut self,
        event: &Event,
        facts: &AnswerFacts,
        out: &mut BytesMut,
    ) -> Result<bool, Untranslatable> {
        let before = self.content_events;
        self.start(event, facts, out);
        let choices = Node::validated_object(&event.data).get("choices");
        let Some(choices) = choices else { return Ok(false) };
        choices.elements(|_, choice| {
            // One choice was asked for; a usage chunk of some servers has one without an index.
            let [index, delta, finish] = choice.pick(["index", "delta", "finish_reason"]);
            if index.and_then(Node::count).unwrap_or(0) != 0 {
                return Err(Untranslatable::new("choices", "has more than one choice."));
            }
            if let Some(delta) = delta {
                self.delta(delta, out)?;
            }
            let finish = finish.filter(|node| node.kind == Kind::String && !node.is_empty());
            if let Some(finish) = finish.filter(|node| node.raw.len() <= MOST_WORD_BYTES) {
                self.finish = Some(finish.raw.to_vec());
            }
            Ok(())
        })?;
        Ok(self.content_events > before)
    }

    fn start(&mut self, event: &Event, facts: &AnswerFacts, out: &mut BytesMut) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let fallback = quoted(&self.fallback_id);
        let id = facts.id.filter(|span| span.len() > 2).map_or(fallback.as_bytes(), |span| span.of(&event.data));
        let alias = self.alias.clone();
        self.event("message_start", out, |writer| {
            writer.key("message").open(b'{').raw_member("id", id).member("type", "message").member("role", "assistant");
            writer.raw_member("model", &alias).key("content").open(b'[').close(b']');
            writer.raw_member("stop_reason", b"null").raw_member("stop_sequence", b"null").key("usage").open(b'{');
            writer.key("input_tokens").number(0).key("output_tokens").number(0).close(b'}').close(b'}');
        });
    }

    fn delta(&mut self, delta: Node<'_>, out: &mut BytesMut) -> Result<(), Untranslatable> {
        let [content, refusal, reasoning_content, reasoning, details, calls, audio, images, function_call] = delta
            .pick([
                "content",
                "refusal",
                "reasoning_content",
                "reasoning",
                "reasoning_details",
                "tool_calls",
                "audio",
                "images",
                "function_call",
            ]);
        let says = |node: &Node<'_>| !node.is_null() && !node.is_empty();
        for (name, node) in [("audio", audio), ("images", images), ("function_call", function_call)] {
            if node.as_ref().is_some_and(says) {
                return Err(Untranslatable::new(format!("delta.{name}"), "has no counterpart in messages."));
            }
        }
        match details.filter(|node| node.kind == Kind::Array && says(node)) {
            Some(details) => self.reasoning_details(details, out)?,
            None => {
                let mut texts = [reasoning_content, reasoning].into_iter().flatten();
                if let Some(text) = texts.find(|node| node.kind == Kind::String && says(node)) {
                    self.thinking(text, "thinking_delta", "thinking", out);
                }
            }
        }
        for (name, text, is_refusal) in [("content", content, false), ("refusal", refusal, true)] {
            let Some(text) = text.filter(says) else { continue };
            if text.kind != Kind::String {
                return Err(Untranslatable::new(format!("delta.{name}"), "is no string."));
            }
            self.refused |= is_refusal;
            self.text(text, out);
        }
        match calls {
            Some(calls) => calls.elements(|_, call| self.tool_call(call, out)),
            None => Ok(()),
        }
    }

    fn reasoning_details(&mut self, details: Node<'_>, out: &mut BytesMut) -> Result<(), Untranslatable> {
        details.elements(|_, detail| {
            let part = |name| detail.get(name).filter(|node| node.kind == Kind::String && !node.is_empty());
            let kind = part("type").and_then(Node::text).map(|text| text.decode().into_owned()).unwrap_or_default();
            match kind.as_str() {
                "reasoning.text" | "reasoning.summary" => {
                    if let Some(text) = part("text").or_else(|| part("summary")) {
                        self.thinking(text, "thinking_delta", "thinking", out);
                    }
                    if let Some(signature) = part("signature") {
                        self.thinking(signature, "signature_delta", "signature", out);
                    }
                }
                "reasoning.encrypted" => {
                    let Some(data) = part("data") else { return Ok(()) };
                    self.close(out);
                    self.begin(out, |writer| {
                        writer.member("type", "redacted_thinking").raw_member("data", data.raw);
                    });
                    self.content_events += 1;
                    self.stop_block(out);
                }
                _ => return Err(Untranslatable::new("delta.reasoning_details", "is of an unknown type.")),
            }
            Ok(())
        })
    }

    fn text(&mut self, text: Node<'_>, out: &mut BytesMut) {
        if self.open != Some(Block::Text) {
            self.close(out);
            self.begin(out, |writer| {
                writer.member("type", "text").member("text", "");
            });
            self.open = Some(Block::Text);
        }
        self.block_delta(out, |writer| {
            writer.member("type", "text_delta").raw_member("text", text.raw);
        });
    }

    fn thinking(&mut self, text: Node<'_>, kind: &str, member: &str, out: &mut BytesMut) {
        if self.open != Some(Block::Thinking) {
            self.close(out);
            self.begin(out, |writer| {
                writer.member("type", "thinking").member("thinking", "").member("signature", "");
            });
            self.open = Some(Block::Thinking);
        }
        self.block_delta(out, |writer| {
            writer.member("type", kind).raw_member(member, text.raw);
        });
    }

    fn tool_call(&mut self, call: Node<'_>, out: &mut BytesMut) -> Result<(), Untranslatable> {
        let word = |node: Option<Node<'_>>| {
            let text = node.and_then(Node::text).filter(|text| text.raw().len() <= MOST_WORD_BYTES);
            text.map(|text| text.decode().into_owned()).unwrap_or_default()
        };
        let [index, id, function] = call.pick(["index", "id", "function"]);
        let (index, id) = (index.and_then(Node::count), word(id));
        let [name, arguments] = function.map_or([None; 2], |function| function.pick(["name", "arguments"]));
        let name = name.filter(|name| !name.is_null() && !name.is_empty());
        let goes_on = match &self.open {
            Some(Block::Tool { index: open, id: of_open }) => {
                let same_index = index.is_none() || *open == index;
                // A server that gives neither ids nor indexes begins a call by its name.
                let is_named_anew = of_open.is_empty() && index.is_none() && name.is_some();
                if id.is_empty() { same_index && !is_named_anew } else { id == *of_open }
            }
            Some(Block::Text | Block::Thinking) | None => false,
        };
        if !goes_on {
            let Some(name) = name else {
                return Err(Untranslatable::new("delta.tool_calls", "goes on with a call that is over."));
            };
            self.begin_call(index, id, name, out);
        }
        let Some(arguments) = arguments.filter(|node| node.kind == Kind::String && !node.is_empty()) else {
            return Ok(());
        };
        self.block_delta(out, |writer| {
            writer.member("type", "input_json_delta").raw_member("partial_json", arguments.raw);
        });
        Ok(())
    }

    fn begin_call(&mut self, index: Option<u64>, id: String, name: Node<'_>, out: &mut BytesMut) {
        self.close(out);
        let shown = if id.is_empty() { format!("{}_{}", self.fallback_id, self.calls) } else { id.clone() };
        self.calls = self.calls.saturating_add(1);
        self.begin(out, |writer| {
            writer.member("type", "tool_use").member("id", &shown).raw_member("name", name.raw);
            writer.key("input").open(b'{').close(b'}');
        });
        self.content_events += 1;
        self.open = Some(Block::Tool { index, id });
    }

    fn begin(&mut self, out: &mut BytesMut, block: impl FnOnce(&mut Writer<'_>)) {
        let index = self.blocks;
        self.event("content_block_start", out, |writer| {
            writer.key("index").number(index).key("content_block").open(b'{');
            block(writer);
            writer.close(b'}');
        });
        self.blocks = self.blocks.saturating_add(1);
    }

    fn block_delta(&mut self, out: &mut BytesMut, delta: impl FnOnce(&mut Writer<'_>)) {
        let index = self.blocks.saturating_sub(1);
        self.content_events += 1;
        self.event("content_block_delta", out, |writer| {
            writer.key("index").number(index).key("delta").open(b'{');
            delta(writer);
            writer.close(b'}');
        });
    }

    fn close(&mut self, out: &mut BytesMut) {
        if self.open.take().is_some() {
            self.stop_block(out);
        }
    }

    fn stop_block(&mut self, out: &mut BytesMut) {
        let index = self.blocks.saturating_sub(1);
        self.event("content_block_stop", out, |writer| {
            writer.key("index").number(index);
        });
    }

    fn event(&mut self, name: &str, out: &mut BytesMut, members: impl FnOnce(&mut Writer<'_>)) {
        self.data.clear();
        let mut writer = Writer::new(&mut self.data);
        writer.open(b'{').member("type", name);
        members(&mut writer);
        writer.close(b'}');
        push_event(out, name.as_bytes(), &[&self.data]);
    }

    /// Appends the end, once: the open block's stop, the stop reason with the usage, and `message_stop`.
    pub(crate) fn finish(&mut self, finish: Option<Finish>, usage: Option<&Extracted>, out: &mut BytesMut) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        self.close(out);
        let raw = self.finish.take();
        let end = ChatEnd { finish, raw: raw.as_deref(), has_tools: self.calls > 0, refused: self.refused };
        self.event("message_delta", out, |writer| {
            writer.key("delta").open(b'{');
            end.write(writer);
            writer.close(b'}').key("usage");
            write_message(usage, writer);
        });
        self.event("message_stop", out, |_| {});
    }
}
