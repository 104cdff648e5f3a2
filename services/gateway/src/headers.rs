//! Headers of answers that Weir sets itself.

use http::{HeaderMap, HeaderName, HeaderValue};

use weir_domain::quota::RateStandings;
use weir_wire::Dialect;
use weir_wire::headers::request_id_header;
use weir_wire::rate_limit::{Rate, Rated, rate_limit_headers};

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const X_WEIR_RESERVATION: HeaderName = HeaderName::from_static("x-weir-reservation");
pub(crate) const X_WEIR_ATTEMPTS: HeaderName = HeaderName::from_static("x-weir-attempts");
pub(crate) const X_WEIR_DEPLOYMENT: HeaderName = HeaderName::from_static("x-weir-deployment");
/// Members of the request that only advise about caching and that the deployment was not told.
pub(crate) const X_WEIR_LEFT_OUT: HeaderName = HeaderName::from_static("x-weir-left-out");

/// The headers that are text, for the allow-lists.
pub(crate) fn texts(headers: &HeaderMap) -> Vec<(&str, &str)> {
    headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))).collect()
}

/// Sets a header whose value came from Weir; one that no header can carry is left out.
pub(crate) fn insert(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Names the request in the header of the client's API, and in the one that proxies know.
pub(crate) fn insert_request_id(headers: &mut HeaderMap, dialect: Dialect, request_id: &str) {
    insert(headers, X_REQUEST_ID, request_id);
    let own = HeaderName::from_static(request_id_header(dialect));
    if own != X_REQUEST_ID {
        insert(headers, own, request_id);
    }
}

/// Tells how the tightest rates stand; nothing where no rate is set.
pub(crate) fn insert_rates(headers: &mut HeaderMap, dialect: Dialect, rates: &RateStandings, now_ms: i64) {
    for (of, standing) in [(Rated::Requests, rates.requests), (Rated::Tokens, rates.tokens)] {
        let Some(standing) = standing else { continue };
        let rate = Rate { limit: standing.max, remaining: standing.remaining(), reset_ms: standing.clears_in_ms };
        for (name, value) in rate_limit_headers(dialect, of, rate, Some(now_ms)) {
            insert(headers, HeaderName::from_static(name), &value);
        }
    }
}
