//! Which headers cross the gateway: allow-lists, both ways (O41).
//!
//! What is not named here does not pass, so a new header of a client or provider leaks nothing. Credentials, cookies,
//! organisation and forwarding headers are on no list; the target's one credential is added by the caller.

use crate::anthropic::AnthropicVersion;
use crate::dialect::{Dialect, Family};

/// Client headers that a provider may see. The API version is not among them: it is a fact of the request, which the
/// caller sends in [`version_header`]'s form.
const fn request_allowed(family: Family) -> &'static [&'static str] {
    match family {
        Family::OpenAi => &["openai-beta"],
        Family::Anthropic => &["anthropic-beta"],
    }
}

/// Provider headers that a client may see. Rate limits are left out: they are our account's, not the client's.
const fn response_allowed(family: Family) -> &'static [&'static str] {
    match family {
        Family::OpenAi => &["content-type", "openai-processing-ms", "openai-version"],
        Family::Anthropic => &["content-type"],
    }
}

/// The client's headers that go to a provider of `dialect`. Values are given as they are; names in lower case.
///
/// Names that the client's `connection` header lists are hop-by-hop and never pass (RFC 9110, 7.6.1).
pub fn request_headers<'a>(
    dialect: Dialect,
    headers: impl IntoIterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<(&'static str, &'a str)> {
    select(request_allowed(dialect.family()), headers)
}

/// The headers of a provider of `dialect` that go to the client. `content-length` and `content-encoding` never do: the
/// body is ours.
pub fn response_headers<'a>(
    dialect: Dialect,
    headers: impl IntoIterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<(&'static str, &'a str)> {
    select(response_allowed(dialect.family()), headers)
}

/// Provider headers that identify the call in the provider's own records, strongest first.
#[must_use]
pub const fn correlation_headers(dialect: Dialect) -> &'static [&'static str] {
    match dialect.family() {
        Family::OpenAi => &["x-generation-id", "x-request-id", "apim-request-id"],
        Family::Anthropic => &["request-id"],
    }
}

/// The header that carries a target's credential, and what stands before it.
#[must_use]
pub const fn credential_header(dialect: Dialect) -> (&'static str, &'static str) {
    match dialect.family() {
        Family::OpenAi => ("authorization", "Bearer "),
        Family::Anthropic => ("x-api-key", ""),
    }
}

/// The headers in which a client may bring its key, in the order in which they count, each with what stands before it:
/// where both are sent, the provider itself is reported to prefer `x-api-key`.
#[must_use]
pub const fn client_credential_headers(dialect: Dialect) -> &'static [(&'static str, &'static str)] {
    match dialect.family() {
        Family::OpenAi => &[("authorization", "Bearer ")],
        Family::Anthropic => &[("x-api-key", ""), ("authorization", "Bearer ")],
    }
}

/// The header in which an answer tells its request id.
#[must_use]
pub const fn request_id_header(dialect: Dialect) -> &'static str {
    match dialect.family() {
        Family::OpenAi => "x-request-id",
        Family::Anthropic => "request-id",
    }
}

/// The header that names the API's version, where the dialect has one.
#[must_use]
pub const fn version_header(dialect: Dialect, version: AnthropicVersion) -> Option<(&'static str, &'static str)> {
    match dialect.family() {
        Family::OpenAi => None,
        Family::Anthropic => Some((AnthropicVersion::HEADER, version.name())),
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
        ("anthropic-beta", "files-api-2025-04-14,x"),
        ("anthropic-workspace-id", "ws-client"),
    ];

    #[test]
    fn o41_nothing_of_the_client_passes_but_the_allow_list() {
        let passed = request_headers(Dialect::OpenAiChat, HOSTILE.iter().copied());
        assert_eq!(passed, [("openai-beta", "assistants=v2")]);
        let passed = request_headers(Dialect::AnthropicMessages, HOSTILE.iter().copied());
        assert_eq!(passed, [("anthropic-beta", "files-api-2025-04-14,x")]);
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

    #[test]
    fn o38_o41_each_family_has_its_own_credential_version_and_request_id() {
        assert_eq!(credential_header(Dialect::AnthropicMessages), ("x-api-key", ""));
        assert_eq!(credential_header(Dialect::OpenAiResponses), ("authorization", "Bearer "));
        let version = AnthropicVersion::V2026_10_21;
        let header = version_header(Dialect::AnthropicMessages, version);
        assert_eq!(header, Some(("anthropic-version", "2026-10-21")));
        assert_eq!(version_header(Dialect::OpenAiChat, version), None);
        assert_eq!(request_id_header(Dialect::AnthropicMessages), "request-id");
        assert_eq!(correlation_headers(Dialect::AnthropicMessages), ["request-id"]);
        let names: Vec<_> =
            client_credential_headers(Dialect::AnthropicMessages).iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["x-api-key", "authorization"]);
    }
}
