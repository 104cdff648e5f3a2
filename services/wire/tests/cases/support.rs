//! A relay without a network: bytes of a provider in, bytes for a client out.

use bytes::{Bytes, BytesMut};
use weir_wire::openai::chat::stream::StreamStep;
use weir_wire::openai::chat::{ChatRequest, InBandError, Limits, StreamEditor, StreamReader};
use weir_wire::sse::Decoder;
use weir_wire::{RequestError, RequestErrorCode};

/// The alias that clients ask for.
pub const ALIAS: &str = "Team-Fast";
/// The id given when a provider gives none.
pub const FALLBACK_ID: &str = "chatcmpl-weir";

/// What came of a provider's stream.
#[derive(Debug)]
pub struct Relayed {
    pub client: String,
    pub reader: StreamReader,
    pub error: Option<InBandError>,
    pub content_chunks: u64,
}

impl Relayed {
    /// The `data` of each event that the client got.
    pub fn events(&self) -> Vec<String> {
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(Bytes::from(self.client.clone()));
        let mut events = Vec::new();
        while let Ok(Some(event)) = decoder.next_event() {
            events.push(String::from_utf8(event.data.to_vec()).unwrap());
        }
        assert_eq!(decoder.held_bytes(), 0, "the client is left with half an event");
        events
    }

    /// The chunks as JSON, without the sentinel.
    pub fn chunks(&self) -> Vec<serde_json::Value> {
        let events = self.events();
        events.iter().filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// The text of one choice, put together as an SDK does.
    pub fn text(&self, index: u64) -> String {
        let choices =
            self.chunks().into_iter().flat_map(|chunk| chunk["choices"].as_array().cloned().unwrap_or_default());
        let of_index = choices.filter(|choice| choice["index"] == index);
        of_index.filter_map(|choice| choice["delta"]["content"].as_str().map(str::to_owned)).collect()
    }
}

/// Relays a stream that arrives in `pieces`, as a gateway does: `[DONE]` only after a whole answer, nothing after an
/// error.
pub fn relay(pieces: &[&[u8]], choices: u32, client_wants_usage: bool) -> Relayed {
    let mut decoder = Decoder::new(8 << 20);
    let mut reader = StreamReader::new(choices);
    let mut editor = StreamEditor::new(ALIAS, FALLBACK_ID, client_wants_usage);
    let mut out = BytesMut::new();
    let mut error = None;
    let mut handle = |event: &weir_wire::sse::Event, out: &mut BytesMut| match reader.feed(event) {
        StreamStep::Quiet | StreamStep::Done => {}
        StreamStep::Chunk(facts) => {
            if error.is_none() {
                editor.edit(event, &facts, out);
            }
        }
        StreamStep::Error(found) => error = error.take().or(Some(found)),
        StreamStep::Garbage(found) => panic!("garbage: {found}"),
    };
    for piece in pieces {
        decoder.push(Bytes::copy_from_slice(piece));
        while let Some(event) = decoder.next_event().unwrap() {
            handle(&event, &mut out);
        }
    }
    if let Some(event) = decoder.finish() {
        handle(&event, &mut out);
    }
    if reader.is_complete() && error.is_none() {
        editor.finish(&mut out);
        editor.finish(&mut out);
    }
    let content_chunks = editor.content_chunks();
    Relayed { client: String::from_utf8(out.to_vec()).unwrap(), reader, error, content_chunks }
}

pub fn relay_text(stream: &str, choices: u32, client_wants_usage: bool) -> Relayed {
    relay(&[stream.as_bytes()], choices, client_wants_usage)
}

/// The shorthands of the case book.
pub fn chunk(choice: &str) -> String {
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{choice}]}}\n\n"
    )
}

pub fn ok(text: &str) -> String {
    chunk(&format!(r#"{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}"#))
}

pub fn stop() -> String {
    chunk(r#"{"index":0,"delta":{},"finish_reason":"stop"}"#)
}

pub fn role() -> String {
    chunk(r#"{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}"#)
}

pub fn usage(prompt: u64, completion: u64) -> String {
    let total = prompt + completion;
    format!(
        "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion},\"total_tokens\":{total}}}}}\n\n"
    )
}

pub const DONE: &str = "data: [DONE]\n\n";

/// Input and output tokens of the usage that the reader has.
pub fn tokens(reader: &StreamReader) -> Option<(i64, i64)> {
    let usage = reader.usage()?.usage?;
    Some((usage.input_tokens(), usage.output_tokens()))
}

pub fn parse(body: &str) -> Result<ChatRequest, RequestError> {
    ChatRequest::parse(Bytes::from(body.to_owned()), &Limits::default())
}

/// A request with `members` besides model and messages.
pub fn with(members: &str) -> String {
    format!(r#"{{"model":"fast","messages":[{{"role":"user","content":"hi"}}],{members}}}"#)
}

#[track_caller]
pub fn refused(body: &str) -> (Option<String>, RequestErrorCode) {
    let error = parse(body).expect_err(body);
    assert!(!error.message.contains("SECRET"), "a refusal echoes no values: {}", error.message);
    (error.field, error.code)
}
