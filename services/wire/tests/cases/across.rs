//! A relay through the translator, as the gateway does it, for every pair of dialects.

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use weir_wire::envelope::ClientError;
use weir_wire::openai::chat::InBandError;
use weir_wire::sse::Decoder;
use weir_wire::{ClientSide, Dialect, Garbage, ProviderSide, Step, StreamFacts, Translator};

use crate::support::{ALIAS, FALLBACK_ID};

/// What came of a provider's stream.
#[derive(Debug, PartialEq)]
pub struct Passed {
    pub client: String,
    pub facts: StreamFacts,
    pub error: Option<InBandError>,
    pub garbage: Option<Garbage>,
    /// Which steps had content, in order; `None` for quiet ones and ends.
    pub steps: Vec<Option<bool>>,
}

impl Passed {
    /// Name and data of each event that the client got.
    pub fn events(&self) -> Vec<(String, String)> {
        let mut decoder = Decoder::new(usize::MAX);
        decoder.push(Bytes::from(self.client.clone()));
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let mut events = Vec::new();
        while let Ok(Some(event)) = decoder.next_event() {
            events.push((text(&event.name), text(&event.data)));
        }
        assert_eq!(decoder.held_bytes(), 0, "the client is left with half an event");
        events
    }

    /// The data of each event as JSON, without the sentinel.
    pub fn json(&self) -> Vec<Value> {
        let events = self.events();
        events
            .iter()
            .filter(|(_, data)| data != "[DONE]")
            .map(|(_, data)| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// The names of the events, for dialects that have them.
    pub fn names(&self) -> Vec<String> {
        self.events().into_iter().map(|(name, _)| name).collect()
    }

    /// Whether the client was told that the answer is whole.
    pub fn has_terminal(&self) -> bool {
        let is_terminal = |(name, data): &(String, String)| {
            data == "[DONE]" || name == "message_stop" || name == "response.completed" || name == "response.incomplete"
        };
        self.events().iter().any(is_terminal)
    }

    /// How many events tell the client that the answer broke.
    pub fn errors(&self) -> usize {
        self.json().iter().filter(|data| data["error"].is_object()).count()
    }

    pub fn is_broken(&self) -> bool {
        let errors = self.errors();
        assert!(errors <= 1, "{}", self.client);
        assert!(errors == 0 || self.events().last().is_some_and(|(_, data)| data.contains("\"incomplete\":true")));
        errors == 1
    }
}

pub fn client_side(dialect: Dialect, wants_usage: bool) -> ClientSide<'static> {
    ClientSide { dialect, alias: ALIAS, fallback_id: FALLBACK_ID, wants_usage, created_s: 1_790_000_000, ids: None }
}

/// Passes a stream that arrives in `pieces` and then closes in good order.
pub fn pass(provider: Dialect, client: Dialect, pieces: &[&[u8]], wants_usage: bool) -> Passed {
    let provider = ProviderSide { dialect: provider, choices: 1, max_event_bytes: 8 << 20 };
    let mut stream = Translator::new(&provider, &client_side(client, wants_usage)).unwrap();
    let (mut out, mut steps, mut error, mut garbage) = (BytesMut::new(), Vec::new(), None, None);
    let mut is_over = false;
    let mut take = |stream: &mut Translator, step: Step, out: &mut BytesMut| {
        steps.push(match step {
            Step::Event { content } => Some(content),
            Step::Quiet | Step::End => None,
            Step::Error(found) => {
                error = Some(found);
                is_over = true;
                None
            }
            Step::Garbage(found) => {
                garbage = Some(found);
                is_over = true;
                None
            }
        });
        if is_over {
            let error = ClientError::new("stream_error", "stream_broke", "The answer is incomplete.");
            stream.fail(&error, "upstream_in_band_error", "r-1", out);
        }
        is_over
    };
    for piece in pieces {
        stream.push(Bytes::copy_from_slice(piece));
        while let Some(step) = stream.next_step(&mut out) {
            if take(&mut stream, step, &mut out) {
                let facts = stream.facts();
                return Passed { client: String::from_utf8(out.to_vec()).unwrap(), facts, error, garbage, steps };
            }
        }
    }
    let ended = stream.close(&mut out).is_some_and(|step| take(&mut stream, step, &mut out));
    match (ended, stream.is_complete()) {
        (true, _) => {}
        (false, true) => {
            stream.finish(&mut out);
            stream.finish(&mut out);
        }
        (false, false) => {
            let error = ClientError::new("stream_error", "stream_incomplete", "The answer is incomplete.");
            stream.fail(&error, "stream_incomplete", "r-1", &mut out);
        }
    }
    let facts = stream.facts();
    Passed { client: String::from_utf8(out.to_vec()).unwrap(), facts, error, garbage, steps }
}

pub fn pass_text(provider: Dialect, client: Dialect, stream: &str) -> Passed {
    pass(provider, client, &[stream.as_bytes()], true)
}

/// One event of the Anthropic protocol, by its data.
pub fn event(data: &str) -> String {
    let name = serde_json::from_str::<Value>(data).unwrap()["type"].as_str().unwrap().to_owned();
    format!("event: {name}\ndata: {data}\n\n")
}

pub fn message_start() -> String {
    event(
        r#"{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"output_tokens":1}}}"#,
    )
}

pub fn text_block(index: u32, texts: &[&str]) -> String {
    let start = event(&format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{{"type":"text","text":""}}}}"#
    ));
    let deltas: String = texts
        .iter()
        .map(|text| {
            let text = serde_json::to_string(text).unwrap();
            event(&format!(
                r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"text_delta","text":{text}}}}}"#
            ))
        })
        .collect();
    format!("{start}{deltas}{}", block_stop(index))
}

pub fn block_stop(index: u32) -> String {
    event(&format!(r#"{{"type":"content_block_stop","index":{index}}}"#))
}

pub fn message_delta(reason: &str, output: u64) -> String {
    event(&format!(
        r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{"output_tokens":{output}}}}}"#
    ))
}

pub fn message_stop() -> String {
    event(r#"{"type":"message_stop"}"#)
}

pub fn tokens(facts: &StreamFacts) -> Option<(i64, i64)> {
    let usage = facts.usage.as_ref()?.usage.as_ref()?;
    Some((usage.input_tokens(), usage.output_tokens()))
}
