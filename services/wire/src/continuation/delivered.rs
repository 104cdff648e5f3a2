//! What a client has of an answer, read from the very events that it was sent.

use bytes::Bytes;

use crate::dialect::Dialect;
use crate::json::{JsonError, Node};
use crate::sse::{Decoder, EventKind};

/// The text that a client has, as long as it has nothing but text.
#[derive(Debug)]
pub struct Delivered {
    pub(super) dialect: Dialect,
    decoder: Decoder,
    text: String,
    most_bytes: usize,
    is_plain: bool,
    /// The answer's id, in quotes.
    pub(super) id: Option<Bytes>,
    /// Of messages: the text block that is open.
    pub(super) open_block: Option<u64>,
    /// Of messages: the index after the last block.
    pub(super) next_block: u64,
}

impl Delivered {
    /// `None` for dialects that have no continuation. Beyond `most_bytes` of text there is none either.
    #[must_use]
    pub fn new(client: Dialect, most_bytes: usize, max_event_bytes: usize) -> Option<Self> {
        match client {
            Dialect::OpenAiChat | Dialect::AnthropicMessages => {}
            Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => return None,
        }
        Some(Self {
            dialect: client,
            decoder: Decoder::new(max_event_bytes),
            text: String::new(),
            most_bytes,
            is_plain: true,
            id: None,
            open_block: None,
            next_block: 0,
        })
    }

    /// Takes events as they were written to the client.
    pub fn observe(&mut self, written: &[u8]) {
        if !self.is_plain || written.is_empty() {
            return;
        }
        self.decoder.push(Bytes::copy_from_slice(written));
        loop {
            match self.decoder.next_event() {
                Ok(Some(event)) if event.kind == EventKind::Data => self.event(&event.data),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => self.is_plain = false,
            }
            if !self.is_plain {
                break;
            }
        }
        if self.text.len() > self.most_bytes {
            self.is_plain = false;
        }
        if !self.is_plain {
            self.text = String::new();
        }
    }

    /// The text so far, if another target can go on with it.
    #[must_use]
    pub fn continuable(&self) -> Option<&str> {
        self.is_plain.then_some(self.text.as_str())
    }

    fn event(&mut self, data: &[u8]) {
        let Ok(event) = Node::of(data) else {
            self.is_plain = false;
            return;
        };
        let understood = match self.dialect {
            Dialect::OpenAiChat => self.chunk(event),
            Dialect::AnthropicMessages => self.message_event(event),
            Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => None,
        };
        self.is_plain = understood.is_some();
    }

    /// `None` when something other than text of the first choice came.
    fn chunk(&mut self, chunk: Node<'_>) -> Option<()> {
        let [id, choices, error] = chunk.pick(["id", "choices", "error"]);
        if self.id.is_none() {
            self.id = id.filter(|id| !id.is_empty()).map(|id| Bytes::copy_from_slice(id.raw));
        }
        if error.is_some_and(|error| !error.is_null()) {
            return None;
        }
        let mut is_text = true;
        let walked = choices.map_or(Ok(()), |choices| {
            choices.elements(|_, choice| {
                let [index, delta, finish] = choice.pick(["index", "delta", "finish_reason"]);
                let is_first = index.and_then(Node::count).unwrap_or(0) == 0;
                is_text &= is_first && finish.is_none_or(Node::is_null);
                delta.map_or(Ok(()), |delta| {
                    delta.members(|name, value| {
                        match value.text().filter(|_| name.is("content")) {
                            Some(text) => self.text.push_str(&text.decode()),
                            None => is_text &= name.is("role") || value.is_null() || value.is_empty(),
                        }
                        Ok::<(), JsonError>(())
                    })
                })
            })
        });
        walked.ok().filter(|()| is_text)
    }

    fn message_event(&mut self, event: Node<'_>) -> Option<()> {
        let [kind, index, block, delta] = event.pick(["type", "index", "content_block", "delta"]);
        let kind = kind?.text()?;
        let index = index.and_then(Node::count);
        match kind.decode().as_ref() {
            "message_start" | "ping" => {}
            "content_block_start" => {
                let [kind, text] = block?.pick(["type", "text"]);
                kind?.text().filter(|kind| kind.is("text"))?;
                self.text.push_str(&text.and_then(Node::text).map(|text| text.decode()).unwrap_or_default());
                self.open_block = index;
                self.next_block = index? + 1;
            }
            "content_block_delta" => {
                let [kind, text] = delta?.pick(["type", "text"]);
                kind?.text().filter(|kind| kind.is("text_delta"))?;
                self.text.push_str(&text?.text()?.decode());
            }
            "content_block_stop" => self.open_block = None,
            // The end, an error, or what is not known here.
            _ => return None,
        }
        Some(())
    }
}
