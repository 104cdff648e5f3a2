//! Which headers cross the gateway: allow-lists, both ways (O41).
//!
//! What is not named here does not pass, so a new header of a client or provider leaks nothing. Credentials, cookies,
//! organisation and forwarding headers are on no list; the target's one credential is added by the caller.

use crate::dialect::Dialect;

/// Client headers that a provider may see.
const REQUEST_ALLOWED: &[&str] = &["openai-beta"];

/// Provider headers that a client may see. Rate limits are left out: they are our account's, not the client's.
const RESPONSE_ALLOWED: &[&str] = &["content-type", "openai-processing-ms", "openai-version"];

/// Provider headers that identify the call in the provider's own records, strongest first.
const CORRELATION: &[&str] = &["x-generation-id", "x-request-id", "apim-request-id"];

/// The client's headers that go to the provider. Values are given as they are; names in lower case.
///
/// Names that the client's `connection` header lists are hop-by-hop and never pass (RFC 9110, 7.6.1).
pub fn request_headers<'a>(
    dialect: Dialect,
    headers: impl IntoIterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<(&'static str, &'a str)> {
    let allowed = match dialect {
        Dialect::OpenAiChat => REQUEST_ALLOWED,
    };
    select(allowed, headers)
}

/// The provider's headers that go to the client. `content-length` and `content-encoding` never do: the body is ours.
pub fn response_headers<'a>(
    dialect: Dialect,
    headers: impl IntoIterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<(&'static str, &'a str)> {
    let allowed = match dialect {
        Dialect::OpenAiChat => RESPONSE_ALLOWED,
    };
    select(allowed, headers)
}

/// The names under which to look for the provider's id of a call, strongest first.
#[must_use]
pub const fn correlation_headers(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::OpenAiChat => CORRELATION,
    }
}

/// The header that carries a target's credential, and what stands before it.
#[must_use]
pub const fn credential_header(dialect: Dialect) -> (&'static str, &'static str) {
    match dialect {
        Dialect::OpenAiChat => ("authorization", "Bearer "),
    }
}

fn select<'a>(
    allowed: &[&'static str],
    headers: impl IntoIterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<(&'static str, &'a str)> {
    let hop_by_hop = |name: &str| {
        headers
            .clone()
            .into_iter()
            .filter(|(header, _)| header.eq_ignore_ascii_case("connection"))
            .flat_map(|(_, value)| value.split(','))
            .any(|listed| listed.trim().eq_ignore_ascii_case(name))
    };
    headers
        .clone()
        .into_iter()
        .filter_map(|(name, value)| {
            let allowed = allowed.iter().copied().find(|allowed| name.eq_ignore_ascii_case(allowed))?;
            (!hop_by_hop(allowed)).then_some((allowed, value))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &[(&str, &str)] = &[
        ("Authorization", "Bearer VK1"),
        ("x-api-key", "VK1"),
        ("api-key", "VK1"),
        ("x-goog-api-key", "VK1"),
        ("cookie", "s=1"),
        ("openai-organization", "org-client"),
        ("openai-project", "proj-client"),
        ("proxy-authorization", "Basic x"),
        ("x-forwarded-for", "10.0.0.9"),
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("x-base-url", "http://203.0.113.9"),
        ("content-length", "17"),
        ("accept-encoding", "gzip, br"),
        ("OpenAI-Beta", "assistants=v2"),
    ];

    #[test]
    fn o41_nothing_of_the_client_passes_but_the_allow_list() {
        let passed = request_headers(Dialect::OpenAiChat, HOSTILE.iter().copied());
        assert_eq!(passed, [("openai-beta", "assistants=v2")]);
    }

    #[test]
    fn o41_a_header_that_connection_names_is_hop_by_hop_even_if_allowed() {
        let headers = [("Connection", "close, OpenAI-Beta"), ("openai-beta", "x")];
        assert!(request_headers(Dialect::OpenAiChat, headers).is_empty());
    }

    #[test]
    fn o41_o44_of_the_provider_only_harmless_headers_reach_the_client() {
        let headers = [
            ("set-cookie", "a=b"),
            ("openai-organization", "org-ours"),
            ("x-ratelimit-remaining-requests", "3"),
            ("content-encoding", "gzip"),
            ("content-length", "20"),
            ("Content-Type", "application/json"),
            ("openai-processing-ms", "12"),
        ];
        let passed = response_headers(Dialect::OpenAiChat, headers);
        assert_eq!(passed, [("content-type", "application/json"), ("openai-processing-ms", "12")]);
    }
}
