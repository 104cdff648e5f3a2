//! One request through the stub: read, choose a script, play it. The stub's own pages are here as well.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::Service;
use weir_runtime::listener::{BoxError, Connection};

use crate::StubState;
use crate::body::AnswerBody;
use crate::dialect::{self, Answer, Asked, Dialect, Figures, Refusal, Special, Work};
use crate::exchange::{Exchange, Tab};
use crate::journal::{Entry, State};
use crate::player::Player;
use crate::script::{Billing, Prepared, Refuse};

/// A provider refuses larger requests, and a stub must not be the first to run out of memory.
const MAX_BODY_BYTES: usize = 64 << 20;

#[derive(Debug, Clone)]
pub(crate) struct StubService {
    pub(crate) state: Arc<StubState>,
}

impl Service<Request<Incoming>> for StubService {
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let state = self.state.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            match (&head.method, dialect::for_path(head.uri.path())) {
                (&Method::POST, Some(dialect)) => answer(&state, dialect, head, body).await,
                _ => crate::pages::answer(&state, &head, body).await,
            }
        })
    }
}

async fn answer(
    state: &Arc<StubState>,
    dialect: &'static dyn Dialect,
    head: Parts,
    body: Incoming,
) -> Result<Response<AnswerBody>, BoxError> {
    let id = state.journal.next_id();
    let mut exchange = begin(state, id, &head);
    let read_delay_ms = state.read_delay_ms(&head.headers);
    let body = match read_body(body, read_delay_ms).await {
        Ok(Some(body)) => body,
        Ok(None) => {
            let refusal = Refusal {
                status: StatusCode::PAYLOAD_TOO_LARGE,
                message: format!("the body is larger than {MAX_BODY_BYTES} bytes"),
                field: None,
            };
            return Ok(refuse(dialect, exchange, refusal));
        }
        // The client left in the middle of its request: the exchange notes it as it is dropped.
        Err(error) => return Err(error),
    };
    let body_kept = state.journal.options.body_bytes;
    exchange.change(|entry| {
        entry.body = String::from_utf8_lossy(&body[..body.len().min(body_kept)]).into_owned();
        entry.body_bytes = u64::try_from(body.len()).unwrap_or(u64::MAX);
    });
    let chosen = dialect.read(&head.headers, &body).and_then(|asked| {
        let built_on = built_on(state, &asked)?;
        let prepared = state.choose(dialect, &head.headers, &asked, &body);
        let prepared = prepared.map_err(|error| Refusal::bad(None, format!("stub script: {error}")))?;
        Ok((asked, prepared, built_on))
    });
    let (asked, prepared, built_on) = match chosen {
        Ok(chosen) => chosen,
        Err(refusal) => return Ok(refuse(dialect, exchange, refusal)),
    };
    let connection = head.extensions.get::<Connection>().ok_or("a request came over no connection")?.clone();
    let read_bytes = i64::try_from(body.len().div_ceil(4)).unwrap_or(i64::MAX);
    let answer = plan(state, dialect, id, asked, prepared, read_bytes.saturating_add(built_on));
    exchange.change(|entry| {
        entry.model.clone_from(&answer.asked.model);
        entry.answer_id.clone_from(&answer.id);
        entry.status = answer.prepared.script.status;
    });
    if let Some(whole) = dialect.stored(&answer).filter(|_| answer.prepared.script.status == StatusCode::OK.as_u16()) {
        let tokens = answer.figures.prompt.saturating_add(answer.figures.completion);
        exchange.keep(state.shelf.keep(&answer.id, whole, tokens));
    }
    play(dialect, answer, exchange, connection).await
}

/// The tokens of the stored response that the request builds on.
fn built_on(state: &StubState, asked: &Asked) -> Result<i64, Refusal> {
    let Special::Responses { previous: Some(id), .. } = &asked.special else { return Ok(0) };
    match state.shelf.get(id).filter(|stored| stored.is_complete()) {
        Some(stored) => Ok(stored.tokens),
        None => {
            let message = format!("Previous response with id '{id}' not found.");
            Err(Refusal::bad(Some("previous_response_id"), message))
        }
    }
}

fn begin(state: &Arc<StubState>, id: u64, head: &Parts) -> Exchange {
    let record = state.journal.keeps_entries().then(|| {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        state.journal.add(Entry {
            id,
            at_ms: state.clock.now_ms(),
            method: head.method.to_string(),
            path: head.uri.to_string(),
            headers: head.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: String::new(),
            body_bytes: 0,
            model: String::new(),
            answer_id: String::new(),
            status: 0,
            state: State::Running,
            ended_at_ms: None,
            chunks_written: 0,
            bytes_written: 0,
            billed: None,
        })
    });
    Exchange::begin(state.journal.clone(), state.clock.clone(), record)
}

/// The whole body, or `None` where it is too large. With a delay, a slow reader that leaves bytes in the sender's
/// buffers.
pub(crate) async fn read_body(mut body: Incoming, delay_ms: u64) -> Result<Option<Bytes>, BoxError> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    loop {
        if delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        }
        let Some(frame) = body.frame().await else { break };
        let Ok(data) = frame?.into_data() else { continue };
        if first.as_ref().map_or(0, Bytes::len) + rest.len() + data.len() > MAX_BODY_BYTES {
            return Ok(None);
        }
        match &first {
            None => first = Some(data),
            Some(_) => rest.extend_from_slice(&data),
        }
    }
    let first = first.unwrap_or_default();
    if rest.is_empty() {
        return Ok(Some(first));
    }
    let mut whole = BytesMut::with_capacity(first.len() + rest.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&rest);
    Ok(Some(whole.freeze()))
}

fn plan(
    state: &StubState,
    dialect: &'static dyn Dialect,
    id: u64,
    asked: Asked,
    prepared: Arc<Prepared>,
    read_tokens: i64,
) -> Answer {
    let script = &prepared.script;
    let choices = script.n.or(asked.choices).unwrap_or(1).clamp(1, dialect.max_choices());
    let only_tools = !script.tool_calls.is_empty() && script.text.is_none();
    let available = if only_tools { 0 } else { prepared.pieces.len() };
    // Like a real provider: what the script does not fix obeys the request's cap, one token a chunk.
    let cap = asked.cap.filter(|_| script.usage.completion.is_none() && !only_tools);
    let chunks = cap.map_or(available, |cap| available.min(usize::try_from(cap).unwrap_or(usize::MAX)));
    Answer {
        id: script.id.clone().unwrap_or_else(|| format!("{}-{id}", state.id_prefix)),
        created: state.clock.now_ms() / 1_000,
        choices,
        chunks,
        capped: chunks < available,
        figures: figures(dialect.work(), &prepared, chunks * choices, choices, read_tokens),
        asked,
        prepared,
    }
}

fn figures(work: Work, prepared: &Prepared, chunks: usize, choices: usize, read_tokens: i64) -> Figures {
    let usage = &prepared.script.usage;
    let count = |pieces: usize| i64::try_from(pieces).unwrap_or(i64::MAX);
    let fragments: usize = prepared.tools.iter().map(|tool| tool.fragments.len() + 1).sum();
    let thought = count(prepared.thoughts.len() * choices);
    let generated = count(chunks + fragments * choices);
    let reasoning = usage.reasoning.saturating_add(if usage.completion.is_none() { thought } else { 0 });
    let (completion, reasoning) = match work {
        Work::Generates => (usage.completion.unwrap_or_else(|| generated.saturating_add(reasoning)), reasoning),
        Work::Embeds | Work::Counts => (0, 0),
    };
    Figures {
        prompt: usage.prompt.unwrap_or(read_tokens),
        completion,
        cached: usage.cached,
        cache_write: usage.cache_write,
        cache_write_long: usage.cache_write_long,
        reasoning,
    }
}

async fn play(
    dialect: &'static dyn Dialect,
    answer: Answer,
    mut exchange: Exchange,
    connection: Connection,
) -> Result<Response<AnswerBody>, BoxError> {
    let prepared = answer.prepared.clone();
    let script = &prepared.script;
    let ok = script.status == StatusCode::OK.as_u16();
    let (streams, figures, answer_id) = (answer.asked.stream, answer.figures, answer.id.clone());
    let player = match &prepared.writes {
        Some(writes) => Player::ready(answer, dialect, writes.clone()),
        None if !ok => {
            let body = dialect.error_body(prepared.status, "scripted by the stub", None);
            Player::ready(answer, dialect, vec![body])
        }
        None if streams => Player::stream(answer, dialect),
        None => {
            let body = dialect.plain(&answer);
            Player::ready(answer, dialect, vec![body])
        }
    };
    let billing = match dialect.work() {
        Work::Counts => Billing::None,
        Work::Generates | Work::Embeds => script.billing.unwrap_or(if ok { Billing::Generated } else { Billing::None }),
    };
    exchange.open_tab(Tab { billing, whole: figures, chunks: player.whole_chunks() });

    if script.before_headers_ms > 0 {
        tokio::time::sleep(Duration::from_millis(script.before_headers_ms)).await;
    }
    match script.refuse {
        None => {}
        Some(Refuse::Stall) => std::future::pending().await,
        Some(Refuse::Close) => {
            exchange.end(State::Broken);
            return Err("refused by the script".into());
        }
        Some(Refuse::Reset) => {
            exchange.end(State::Broken);
            connection.reset();
            std::future::pending().await
        }
    }
    if !streams {
        exchange.all_generated();
    }
    let event_stream = streams && ok && script.body.is_none();
    let head = head_of(&prepared, event_stream, &player, (dialect.id_header(), &answer_id));
    let mut response = Response::new(AnswerBody::played(player, exchange, connection));
    *response.status_mut() = prepared.status;
    *response.headers_mut() = head;
    Ok(response)
}

fn head_of(prepared: &Prepared, event_stream: bool, player: &Player, id: (&'static str, &str)) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    if event_stream {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    } else {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if prepared.script.gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Some(length) = player.content_length() {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    // An id that a script chose may be no header value; then the header is left out.
    if let Ok(value) = HeaderValue::from_str(id.1) {
        headers.insert(id.0, value);
    }
    for (name, value) in &prepared.headers {
        headers.insert(name.clone(), value.clone());
    }
    headers
}

/// An answer of the provider to a request that it cannot read.
fn refuse(dialect: &'static dyn Dialect, mut exchange: Exchange, refusal: Refusal) -> Response<AnswerBody> {
    exchange.change(|entry| entry.status = refusal.status.as_u16());
    exchange.end(State::Complete);
    crate::pages::json(refusal.status, dialect.error_body(refusal.status, &refusal.message, refusal.field))
}
