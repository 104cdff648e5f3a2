//! A second stream made the rest of the first: one id, one beginning, blocks that go on counting, and a mark on the
//! first event of the second that has content.

use bytes::{Bytes, BytesMut};

use super::{Delivered, Seam};
use crate::dialect::Dialect;
use crate::json::{Cursor, JsonError, Node, Span, quoted};
use crate::splice::Splice;
use crate::sse::{Decoder, EventKind, push_data, push_event};

/// Rewrites the client's form of a second attempt's events.
#[derive(Debug)]
pub struct Stitch {
    dialect: Dialect,
    decoder: Decoder,
    id: Option<Bytes>,
    /// The member that marks the seam, until it was written.
    mark: Option<String>,
    blocks: Blocks,
}

/// Where the second stream's blocks go among the first's.
#[derive(Debug, Clone, Copy)]
enum Blocks {
    /// The first text block goes on in the one that is open.
    Into(u64),
    /// Each goes to its index plus this.
    After(u64),
}

impl Stitch {
    #[must_use]
    pub fn new(delivered: &Delivered, seam: Seam<'_>, max_event_bytes: usize) -> Self {
        let Seam { reason, attempt, deployment } = seam;
        let mark = format!(
            r#""weir_continuation":{{"reason":{},"attempt":{attempt},"deployment":{}}},"#,
            quoted(reason),
            quoted(deployment)
        );
        Self {
            dialect: delivered.dialect,
            decoder: Decoder::new(max_event_bytes),
            id: delivered.id.clone(),
            mark: Some(mark),
            blocks: delivered.open_block.map_or(Blocks::After(delivered.next_block), Blocks::Into),
        }
    }

    /// Appends to `out` what `written`, whole events of the second stream, are in the first.
    pub fn write(&mut self, written: &[u8], out: &mut BytesMut) {
        self.decoder.push(Bytes::copy_from_slice(written));
        // Weir wrote these events itself: none of them is beyond the bound.
        while let Ok(Some(event)) = self.decoder.next_event() {
            match (event.kind, Node::of(&event.data)) {
                (EventKind::Data, Ok(node)) => match self.dialect {
                    Dialect::AnthropicMessages => self.message_event(&event.name, &event.data, node, out),
                    Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => {
                        self.chunk(&event.data, node, out);
                    }
                },
                // Comments and the sentinel.
                (EventKind::Data | EventKind::Comment | EventKind::Empty, _) => out.extend_from_slice(&event.raw),
            }
        }
    }

    fn chunk(&mut self, data: &Bytes, node: Node<'_>, out: &mut BytesMut) {
        let mut splice = Splice::new();
        if let (Some(id), Some(span)) = (&self.id, span_of(data, "id")) {
            splice.replace(span, id.clone());
        }
        match beginning(node) {
            Some(Beginning::Nothing) => return,
            Some(Beginning::Content) => self.put_mark(data, &mut splice),
            None => {}
        }
        push_data(out, &[&splice.into_bytes(data)]);
    }

    fn message_event(&mut self, name: &[u8], data: &Bytes, node: Node<'_>, out: &mut BytesMut) {
        let mut splice = Splice::new();
        let index = node.get("index").and_then(Node::count);
        if name == b"message_start" {
            return;
        }
        if let (b"content_block_start", Blocks::Into(open)) = (name, self.blocks) {
            let kind = node.get("content_block").and_then(|block| block.get("type")).and_then(Node::text);
            if index == Some(0) && kind.is_some_and(|kind| kind.is("text")) {
                return;
            }
            if index == Some(0) {
                push_event(out, b"content_block_stop", &[block_stop(open).as_bytes()]);
                self.blocks = Blocks::After(open + 1);
            }
        }
        if let (Some(index), Some(span)) = (index, span_of(data, "index")) {
            let (Blocks::Into(offset) | Blocks::After(offset)) = self.blocks;
            splice.replace(span, (index + offset).to_string());
        }
        if name == b"content_block_delta" {
            self.put_mark(data, &mut splice);
        }
        push_event(out, name, &[&splice.into_bytes(data)]);
    }

    fn put_mark(&mut self, data: &[u8], splice: &mut Splice) {
        let brace = data.iter().position(|byte| *byte == b'{');
        if let (Some(brace), Some(mark)) = (brace, self.mark.take()) {
            splice.insert(brace + 1, mark);
        }
    }
}

fn block_stop(index: u64) -> String {
    format!(r#"{{"type":"content_block_stop","index":{index}}}"#)
}

/// What a chunk has to do with the beginning of an answer.
enum Beginning {
    /// A role and nothing else, which the client has already.
    Nothing,
    Content,
}

fn beginning(chunk: Node<'_>) -> Option<Beginning> {
    let mut first = None;
    let choices = chunk.get("choices")?;
    let walked = choices.elements(|_, choice| {
        first = first.or(Some(choice));
        Ok::<(), JsonError>(())
    });
    walked.ok()?;
    let [delta, finish] = first?.pick(["delta", "finish_reason"]);
    let (mut has_role, mut has_more) = (false, finish.is_some_and(|finish| !finish.is_null()));
    let mut has_content = false;
    let walked = delta?.members(|name, value| {
        has_role |= name.is("role");
        let is_something = !name.is("role") && !value.is_null() && !value.is_empty();
        has_more |= is_something;
        has_content |= is_something;
        Ok::<(), JsonError>(())
    });
    walked.ok()?;
    match (has_content, has_role && !has_more) {
        (true, _) => Some(Beginning::Content),
        (false, true) => Some(Beginning::Nothing),
        (false, false) => None,
    }
}

/// Where the value of a member of the outermost object stands.
fn span_of(data: &[u8], name: &str) -> Option<Span> {
    let mut found = None;
    let walked = Cursor::new(data).members(|cursor, key| {
        let value = cursor.skip()?;
        if key.is(name) {
            found = Some(value.span);
        }
        Ok::<(), JsonError>(())
    });
    walked.ok().and(found)
}
