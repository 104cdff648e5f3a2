//! What is known of a request before anything of it is read: its id, its times, its connection.

use std::sync::Arc;

use http::{HeaderMap, Request};
use hyper::body::Incoming;
use tokio::time::Instant;

use weir_runtime::listener::Connection;
use weir_wire::Dialect;

use crate::server::Inner;

#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    /// For support: the client's own id when it sent a sane one, else ours.
    pub request_id: Arc<str>,
    /// The trace to which events belong, when the client sent one.
    pub trace_id: Option<[u8; 16]>,
    pub dialect: Dialect,
    pub received_ms: i64,
    pub started: Instant,
    /// Absent where a request comes from no socket.
    pub connection: Option<Connection>,
}

/// The longest request id that is taken over from a client.
const MAX_REQUEST_ID_BYTES: usize = 128;

impl Arrival {
    pub(crate) fn of(gateway: &Inner, dialect: Dialect, request: &Request<Incoming>) -> Self {
        Self {
            request_id: client_request_id(request.headers()).unwrap_or_else(|| new_request_id(gateway)),
            trace_id: trace_id(request.headers()),
            dialect,
            received_ms: gateway.clock.now_ms(),
            started: Instant::now(),
            connection: request.extensions().get::<Connection>().cloned(),
        }
    }
}

fn client_request_id(headers: &HeaderMap) -> Option<Arc<str>> {
    let sent = headers.get("x-request-id")?.to_str().ok()?;
    let is_sane = !sent.is_empty()
        && sent.len() <= MAX_REQUEST_ID_BYTES
        && sent.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b));
    is_sane.then(|| Arc::from(sent))
}

fn new_request_id(gateway: &Inner) -> Arc<str> {
    let mut random = [0u8; 16];
    gateway.entropy.fill(&mut random);
    let mut id = String::with_capacity(36);
    id.push_str("req_");
    push_hex(&mut id, &random);
    Arc::from(id)
}

pub(crate) fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// The trace id of a W3C `traceparent` header: `00-<32 hex digits>-<16 hex digits>-<flags>`.
fn trace_id(headers: &HeaderMap) -> Option<[u8; 16]> {
    let header = headers.get("traceparent")?.to_str().ok()?;
    let digits = header.split('-').nth(1).filter(|digits| digits.len() == 32)?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_traceparent_gives_its_trace_and_nonsense_gives_none() {
        let with = |value| {
            HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), HeaderValue::from_static(value))])
        };
        let good = trace_id(&with("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        assert_eq!(good.map(u128::from_be_bytes), Some(0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c));
        for nonsense in ["", "00-xyz-1-01", "00-0af7651916cd43dd8448eb211c80319é"] {
            let headers = HeaderValue::from_str(nonsense)
                .map(|v| HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), v)]));
            assert_eq!(headers.ok().and_then(|h| trace_id(&h)), None, "{nonsense}");
        }
    }

    #[test]
    fn a_client_id_that_could_break_a_log_line_is_not_taken_over() {
        let with = |value| {
            HeaderMap::from_iter([(http::HeaderName::from_static("x-request-id"), HeaderValue::from_static(value))])
        };
        assert_eq!(client_request_id(&with("abc-1")).as_deref(), Some("abc-1"));
        assert_eq!(client_request_id(&with("a b")), None);
        assert_eq!(client_request_id(&with("")), None);
    }
}
