//! A provider's stream on its way to a client: bytes in, bytes out, and the facts that commitment, usage and accounting
//! are made of. The relay sees this and nothing else, whether the dialects are the same (observe and splice) or not
//! (typed events).
//!
//! What comes out depends on the bytes alone, never on how reads fell (O10). The end of an answer is written by
//! [`Translator::finish`], once, when its owner knows that it is whole; after an error, [`Translator::fail`] writes the
//! one event that says so, and nothing may follow it.
//!
//! **Bounds.** Of the provider's stream at most `max_event_bytes` are held. One event gives at most twice its own bytes
//! and a kilobyte, besides the alias and the id. What is kept between events is a few words, whatever the stream's
//! length; the terminal event of a Responses stream, which repeats the answer, is kept whole for an instant.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use crate::anthropic::messages::{MessageEditor, MessageReader, MessageStep};
use crate::dialect::Dialect;
use crate::envelope::{Break, ClientError, stream_error_event};
use crate::json::JsonError;
use crate::openai::chat::stream::{StreamState, StreamStep};
use crate::openai::chat::{Finish, InBandError, StreamEditor, StreamReader};
use crate::openai::responses::{AnswerIds, ResponseEditor, ResponseReader, ResponseStep};
use crate::sse::{Decoder, Event, SseError};
use crate::translate::Untranslatable;
use crate::translate::streams::{ChatWriter, MessagesWriter};
use crate::usage::Extracted;

/// The provider's side of a stream.
#[derive(Debug, Clone, Copy)]
pub struct ProviderSide {
    pub dialect: Dialect,
    /// The request's `n`.
    pub choices: u32,
    /// The operator's bound on one event.
    pub max_event_bytes: usize,
}

/// The client's side of a stream or of a plain answer.
#[derive(Debug, Clone, Copy)]
pub struct ClientSide<'a> {
    pub dialect: Dialect,
    /// The model as the client wrote it (O33).
    pub alias: &'a str,
    /// The answer's id where the provider gives none (O14).
    pub fallback_id: &'a str,
    /// Whether a chat client asked for a stream's usage (O13).
    pub wants_usage: bool,
    /// When the answer was made, seconds since the Unix epoch, for chat answers that come from elsewhere.
    pub created_s: i64,
    /// How stored answers are named to the client; they keep the provider's names where this is absent.
    pub ids: Option<&'a Arc<dyn AnswerIds>>,
}

/// What the next event was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A comment, a ping, an event without data: proof of life only.
    Quiet,
    /// Something that was relayed or swallowed. `content`: the client has a part of the answer by it.
    Event { content: bool },
    /// The provider's own end. The answer is whole if [`StreamFacts::is_complete`].
    End,
    /// The provider gave up inside its 200.
    Error(InBandError),
    /// What came cannot be relayed. Final.
    Garbage(Garbage),
}

/// Why a provider's stream cannot be relayed further.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Garbage {
    #[error("an event is not JSON: {0}")]
    NotJson(#[from] JsonError),
    #[error(transparent)]
    Framing(#[from] SseError),
    /// The provider sent what the client's dialect cannot say.
    #[error("an event cannot be carried to the client's dialect: {0}")]
    Untranslatable(#[from] Untranslatable),
}

/// What is known of a stream; what its owner needs after it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    pub state: StreamState,
    /// Whether the answer is whole: every choice finished, or the protocol's terminal event came.
    pub is_complete: bool,
    /// Whether nothing more can come that matters.
    pub is_settled: bool,
    pub has_content: bool,
    /// Events with content that the client was given (`chunks_delivered`).
    pub chunks_delivered: u64,
    /// The usage reported so far: a bill if final, else a bound (I7).
    pub usage: Option<Extracted>,
    /// Whether the usage came at or after the answer's end.
    pub usage_is_final: bool,
    pub finish: Option<Finish>,
    pub response_id: Option<String>,
    pub served_tier: Option<String>,
    /// For the ledger, never for the client (O33).
    pub served_model: Option<String>,
}

/// Turns one provider's stream into one client's. Make a new one for each attempt.
#[derive(Debug)]
pub struct Translator {
    decoder: Decoder,
    pipe: Pipe,
    client: Dialect,
    failed: Option<Garbage>,
}

#[derive(Debug)]
enum Pipe {
    Chat { reader: StreamReader, editor: StreamEditor },
    Messages { reader: MessageReader, editor: MessageEditor },
    Responses { reader: ResponseReader, editor: ResponseEditor },
    ChatToMessages { reader: StreamReader, writer: MessagesWriter },
    MessagesToChat { reader: MessageReader, writer: ChatWriter },
}

impl Translator {
    /// # Errors
    /// Nothing translates between the two dialects; no request of this pair was sent either
    /// ([`Dialect::towards`]).
    pub fn new(provider: &ProviderSide, client: &ClientSide<'_>) -> Result<Self, Untranslatable> {
        let (alias, fallback_id) = (client.alias, client.fallback_id);
        let pipe = match (provider.dialect, client.dialect) {
            (Dialect::OpenAiChat, Dialect::OpenAiChat) => Pipe::Chat {
                reader: StreamReader::new(provider.choices),
                editor: StreamEditor::new(alias, fallback_id, client.wants_usage),
            },
            (Dialect::AnthropicMessages, Dialect::AnthropicMessages) => {
                Pipe::Messages { reader: MessageReader::new(), editor: MessageEditor::new(alias) }
            }
            (Dialect::OpenAiResponses, Dialect::OpenAiResponses) => Pipe::Responses {
                reader: ResponseReader::new(),
                editor: ResponseEditor::new(alias, client.ids.cloned()),
            },
            (Dialect::OpenAiChat, Dialect::AnthropicMessages) => Pipe::ChatToMessages {
                reader: StreamReader::new(provider.choices),
                writer: MessagesWriter::new(alias, fallback_id),
            },
            (Dialect::AnthropicMessages, Dialect::OpenAiChat) => Pipe::MessagesToChat {
                reader: MessageReader::new(),
                writer: ChatWriter::new(alias, fallback_id, client.created_s, client.wants_usage),
            },
            // Embeddings have no streams.
            (Dialect::OpenAiEmbeddings, _)
            | (_, Dialect::OpenAiEmbeddings)
            | (Dialect::OpenAiResponses, Dialect::OpenAiChat | Dialect::AnthropicMessages)
            | (Dialect::OpenAiChat | Dialect::AnthropicMessages, Dialect::OpenAiResponses) => {
                return Err(Untranslatable::pair(client.dialect, provider.dialect));
            }
        };
        Ok(Self { decoder: Decoder::new(provider.max_event_bytes), pipe, client: client.dialect, failed: None })
    }

    /// Adds the next bytes of the provider's stream.
    pub fn push(&mut self, chunk: Bytes) {
        self.decoder.push(chunk);
    }

    /// Takes the next whole event and appends the client's form of it to `out`; `None` asks for more bytes.
    pub fn next_step(&mut self, out: &mut BytesMut) -> Option<Step> {
        if let Some(garbage) = &self.failed {
            return Some(Step::Garbage(garbage.clone()));
        }
        let step = match self.decoder.next_event() {
            Ok(Some(event)) => self.pipe.take(&event, out),
            Ok(None) => return None,
            Err(error) => Step::Garbage(error.into()),
        };
        if let Step::Garbage(garbage) = &step {
            self.failed = Some(garbage.clone());
        }
        Some(step)
    }

    /// The provider's stream has closed: takes what is left, an event without its blank line. Half an event is none.
    pub fn close(&mut self, out: &mut BytesMut) -> Option<Step> {
        if self.failed.is_some() {
            return None;
        }
        let decoder = std::mem::replace(&mut self.decoder, Decoder::new(0));
        match self.pipe.take(&decoder.finish()?, out) {
            Step::Garbage(_) => None,
            step => Some(step),
        }
    }

    /// Appends the end of a whole answer, once. To be called when [`Translator::is_complete`] and nothing more is awaited.
    pub fn finish(&mut self, out: &mut BytesMut) {
        match &mut self.pipe {
            Pipe::Chat { editor, .. } => editor.finish(out),
            Pipe::Messages { editor, .. } => editor.finish(out),
            Pipe::Responses { editor, .. } => editor.finish(out),
            Pipe::ChatToMessages { reader, writer } => {
                writer.finish(reader.last_finish(), reader.usage().as_ref(), out);
            }
            Pipe::MessagesToChat { reader, writer } => writer.finish(reader.usage().as_ref(), out),
        }
    }

    /// Appends the event that ends a broken stream. Nothing may follow it.
    pub fn fail(&mut self, error: &ClientError, reason: &str, request_id: &str, out: &mut BytesMut) {
        let sequence_number = match &self.pipe {
            Pipe::Responses { reader, .. } => reader.next_sequence(),
            Pipe::Chat { .. } | Pipe::Messages { .. } | Pipe::ChatToMessages { .. } | Pipe::MessagesToChat { .. } => 0,
        };
        let broken = Break { reason, chunks_delivered: self.chunks_delivered(), request_id, sequence_number };
        out.extend_from_slice(&stream_error_event(self.client, error, &broken));
    }

    #[must_use]
    pub const fn state(&self) -> StreamState {
        match &self.pipe {
            Pipe::Chat { reader, .. } | Pipe::ChatToMessages { reader, .. } => reader.state(),
            Pipe::Messages { reader, .. } | Pipe::MessagesToChat { reader, .. } => reader.state(),
            Pipe::Responses { reader, .. } => reader.state(),
        }
    }

    #[must_use]
    pub const fn is_complete(&self) -> bool {
        matches!(self.state(), StreamState::Finished)
    }

    /// Whether nothing more can come that matters.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        match &self.pipe {
            Pipe::Chat { reader, .. } | Pipe::ChatToMessages { reader, .. } => reader.is_settled(),
            Pipe::Messages { .. } | Pipe::MessagesToChat { .. } | Pipe::Responses { .. } => self.is_complete(),
        }
    }

    /// Events with content that were appended to `out`.
    #[must_use]
    pub const fn chunks_delivered(&self) -> u64 {
        match &self.pipe {
            Pipe::Chat { editor, .. } => editor.content_chunks(),
            Pipe::Messages { editor, .. } => editor.content_events(),
            Pipe::Responses { editor, .. } => editor.content_events(),
            Pipe::ChatToMessages { writer, .. } => writer.content_events(),
            Pipe::MessagesToChat { writer, .. } => writer.content_chunks(),
        }
    }

    /// Bytes held of an event that is not complete.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.decoder.held_bytes()
    }

    /// The provider's id of the answer, as soon as an event has named it.
    #[must_use]
    pub fn response_id(&self) -> Option<String> {
        match &self.pipe {
            Pipe::Chat { reader, .. } | Pipe::ChatToMessages { reader, .. } => reader.response_id(),
            Pipe::Messages { reader, .. } | Pipe::MessagesToChat { reader, .. } => reader.response_id(),
            Pipe::Responses { reader, .. } => reader.response_id(),
        }
    }

    /// The usage that the provider reported so far.
    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        match &self.pipe {
            Pipe::Chat { reader, .. } | Pipe::ChatToMessages { reader, .. } => reader.usage(),
            Pipe::Messages { reader, .. } | Pipe::MessagesToChat { reader, .. } => reader.usage(),
            Pipe::Responses { reader, .. } => reader.usage(),
        }
    }

    /// The usage that is a bill if nothing more comes, because an error ended the stream. Chat and Responses report it
    /// with the end; messages report their input at the start, which bounds and bills nothing (I7).
    #[must_use]
    pub fn billed_usage(&self) -> Option<Extracted> {
        match &self.pipe {
            Pipe::Chat { reader, .. } | Pipe::ChatToMessages { reader, .. } => reader.usage(),
            Pipe::Messages { reader, .. } | Pipe::MessagesToChat { reader, .. } => {
                reader.usage_is_final().then(|| reader.usage()).flatten()
            }
            Pipe::Responses { reader, .. } => reader.usage(),
        }
    }

    /// Everything that is known of the stream.
    #[must_use]
    pub fn facts(&self) -> StreamFacts {
        let (served_tier, served_model, finish, has_content, usage_is_final) = match &self.pipe {
            Pipe::Chat { reader, .. } | Pipe::ChatToMessages { reader, .. } => (
                reader.served_tier(),
                reader.served_model(),
                reader.last_finish(),
                reader.has_content(),
                reader.usage_is_final(),
            ),
            Pipe::Messages { reader, .. } | Pipe::MessagesToChat { reader, .. } => (
                reader.served_tier(),
                reader.served_model(),
                reader.stop_reason().map(crate::anthropic::messages::StopReason::as_finish),
                reader.has_content(),
                reader.usage_is_final(),
            ),
            Pipe::Responses { reader, .. } => {
                (reader.served_tier(), reader.served_model(), None, reader.has_content(), reader.is_complete())
            }
        };
        StreamFacts {
            state: self.state(),
            is_complete: self.is_complete(),
            is_settled: self.is_settled(),
            has_content,
            chunks_delivered: self.chunks_delivered(),
            usage: self.usage(),
            usage_is_final,
            finish,
            response_id: self.response_id(),
            served_tier,
            served_model,
        }
    }
}

impl Pipe {
    fn take(&mut self, event: &Event, out: &mut BytesMut) -> Step {
        match self {
            Self::Chat { reader, editor } => match reader.feed(event) {
                StreamStep::Quiet => Step::Quiet,
                StreamStep::Done => Step::End,
                StreamStep::Error(error) => Step::Error(error),
                StreamStep::Garbage(error) => Step::Garbage(error.into()),
                StreamStep::Chunk(facts) => {
                    editor.edit(event, &facts, out);
                    Step::Event { content: facts.content }
                }
            },
            Self::ChatToMessages { reader, writer } => match reader.feed(event) {
                StreamStep::Quiet => Step::Quiet,
                StreamStep::Done => Step::End,
                StreamStep::Error(error) => Step::Error(error),
                StreamStep::Garbage(error) => Step::Garbage(error.into()),
                StreamStep::Chunk(facts) => written(writer.write(event, &facts, out)),
            },
            Self::Messages { reader, editor } => match reader.feed(event) {
                MessageStep::Quiet => Step::Quiet,
                MessageStep::Error(error) => Step::Error(error),
                MessageStep::Garbage(error) => Step::Garbage(error.into()),
                MessageStep::Event(facts) => {
                    editor.edit(event, &facts, out);
                    Step::Event { content: facts.content }
                }
                MessageStep::Stop(facts) => {
                    editor.edit(event, &facts, out);
                    Step::End
                }
            },
            Self::MessagesToChat { reader, writer } => match reader.feed(event) {
                MessageStep::Quiet => Step::Quiet,
                MessageStep::Error(error) => Step::Error(error),
                MessageStep::Garbage(error) => Step::Garbage(error.into()),
                MessageStep::Event(facts) => written(writer.write(event, &facts, out)),
                MessageStep::Stop(_) => Step::End,
            },
            Self::Responses { reader, editor } => match reader.feed(event) {
                ResponseStep::Quiet => Step::Quiet,
                ResponseStep::Error(error) => Step::Error(error),
                ResponseStep::Garbage(error) => Step::Garbage(error.into()),
                ResponseStep::Event(facts) => {
                    editor.edit(event, &facts, out);
                    Step::Event { content: facts.is_content() }
                }
                ResponseStep::Terminal(facts) => {
                    editor.keep_terminal(event, &facts);
                    Step::End
                }
            },
        }
    }
}

fn written(content: Result<bool, Untranslatable>) -> Step {
    match content {
        Ok(content) => Step::Event { content },
        Err(error) => Step::Garbage(error.into()),
    }
}
