//! What is sent to a provider for one attempt: where to, with which headers, with which body.
//!
//! Of the client's headers only an allow-list passes, and only to a provider of the client's own dialect: another
//! dialect's flags mean nothing there (O41). The one credential is the target's.

use std::sync::Arc;

use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};

use weir_domain::registry::Deployment;
use weir_providers::Call;
use weir_wire::anthropic::{AnthropicVersion, COUNT_TOKENS_PATH};
use weir_wire::{Dialect, Family, UpstreamRequest, headers};

use crate::headers::{insert, texts};
use crate::lifecycle::Prepared;
use crate::server::Inner;

/// Why a call could not even be made: the operator's to fix.
pub(crate) struct Unsent {
    /// A word for logs.
    pub what: &'static str,
    /// For the client.
    pub message: &'static str,
}

/// The call of `deployment`, which is spoken to in `spoken`.
pub(crate) fn call(
    gateway: &Arc<Inner>,
    prepared: &Prepared,
    deployment: &Deployment,
    spoken: Dialect,
    correlation: &str,
    upstream: UpstreamRequest,
) -> Result<Call, Unsent> {
    let provider = &deployment.provider;
    let endpoint = gateway
        .upstream
        .endpoint(&provider.base_url, path(prepared, spoken))
        .map_err(|_| Unsent { what: "bad provider address", message: "The provider's address is not usable." })?;
    let (name, prefix) = headers::credential_header(spoken);
    let credential = gateway.credentials.header(provider, prefix, gateway.clock.now_ms()).map_err(|error| {
        tracing::error!(provider = %provider.id, %error, "credential not readable");
        Unsent { what: "credential not readable", message: "The gateway cannot read this provider's credential." }
    })?;
    let mut headers = request_headers(prepared, deployment, spoken, correlation);
    if let Some(credential) = credential {
        headers.insert(HeaderName::from_static(name), credential);
    }
    Ok(Call { endpoint, headers, is_stream: prepared.request.facts().stream, body: upstream.parts })
}

/// Below the provider's base URL.
fn path(prepared: &Prepared, spoken: Dialect) -> &'static str {
    match spoken {
        Dialect::AnthropicMessages if prepared.request.counts_only() => {
            if prepared.is_beta {
                "/messages/count_tokens?beta=true"
            } else {
                COUNT_TOKENS_PATH
            }
        }
        Dialect::AnthropicMessages if prepared.is_beta && prepared.arrival.dialect == spoken => "/messages?beta=true",
        Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings | Dialect::AnthropicMessages => {
            spoken.path()
        }
    }
}

fn request_headers(prepared: &Prepared, deployment: &Deployment, spoken: Dialect, correlation: &str) -> HeaderMap {
    let mut out = HeaderMap::with_capacity(8);
    if prepared.arrival.dialect == spoken {
        let sent = texts(&prepared.headers);
        for (name, value) in headers::request_headers(spoken, sent) {
            insert(&mut out, HeaderName::from_static(name), value);
        }
    }
    out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    out.insert(USER_AGENT, HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))));
    out.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let accept = if prepared.request.facts().stream { "text/event-stream" } else { "application/json" };
    out.insert(ACCEPT, HeaderValue::from_static(accept));
    insert(&mut out, HeaderName::from_static("x-client-request-id"), correlation);
    match spoken.family() {
        Family::OpenAi => {
            let provider = &deployment.provider;
            let accounts = [("openai-organization", &provider.organization), ("openai-project", &provider.project)];
            for (name, value) in accounts {
                if let Some(value) = value {
                    insert(&mut out, HeaderName::from_static(name), value);
                }
            }
        }
        Family::Anthropic => {
            let version = version(prepared, deployment);
            out.insert(HeaderName::from_static(AnthropicVersion::HEADER), HeaderValue::from_static(version.name()));
        }
    }
    out
}

/// The client's own in its dialect, else the deployment's.
fn version(prepared: &Prepared, deployment: &Deployment) -> AnthropicVersion {
    prepared.request.version_for(&crate::dialects::target(&prepared.request, deployment, None, None))
}
