//! How a deployment is spoken to for one request, and whether the request can be carried there at all.
//!
//! Where the dialect stays the same there is nothing to ask: spans are replaced and every other byte passes. Across
//! dialects the request is translated before anything is owed, so that what no deployment can carry is a 400 that names
//! the field and not a reservation that was released.

use weir_domain::registry::{CapField as RegistryCapField, Deployment};
use weir_wire::openai::chat::DeveloperRole;
use weir_wire::request::CapField;
use weir_wire::{ClientRequest, Dialect, Family, Target, Untranslatable, UpstreamRequest};

/// The dialect in which `deployment` is asked for a client of `client`. Where nothing leads from the one to the other,
/// a translation into what is named here says so.
pub(crate) fn spoken(client: Dialect, deployment: &Deployment) -> Dialect {
    let family = Family::from(deployment.provider.dialect);
    client.towards(family).unwrap_or(family.conversation())
}

/// What `deployment` is sent for `request`. `written_cap` is the policy's where the client named none.
///
/// # Errors
/// Something in the request cannot be carried honestly; the error names it.
pub(crate) fn upstream_request(
    request: &ClientRequest,
    deployment: &Deployment,
    written_cap: Option<u64>,
    correlation: Option<&str>,
) -> Result<UpstreamRequest, Untranslatable> {
    request.for_target(&target(request, deployment, written_cap, correlation))
}

pub(crate) fn target<'a>(
    request: &ClientRequest,
    deployment: &'a Deployment,
    written_cap: Option<u64>,
    correlation: Option<&'a str>,
) -> Target<'a> {
    let facts = request.facts();
    let dialect = spoken(request.dialect(), deployment);
    let cap = facts.cap_tokens.or(written_cap);
    Target {
        dialect,
        model: &deployment.upstream_model,
        cap: match dialect {
            // Demanded there, so the model's own stands in where nobody named one.
            Dialect::AnthropicMessages => cap.or_else(|| u64::try_from(deployment.max_output_tokens).ok()),
            Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => cap,
        },
        cap_field: match deployment.cap_field {
            RegistryCapField::MaxTokens => CapField::MaxTokens,
            RegistryCapField::MaxCompletionTokens => CapField::MaxCompletionTokens,
        },
        supports_stream_options: deployment.accepts_stream_options,
        // Only answers that the provider stores can be found by metadata, and others may refuse it.
        correlation: correlation.filter(|_| facts.store).map(|id| ("gw_attempt", id)),
        developer_role: if deployment.accepts_developer_role { DeveloperRole::Keep } else { DeveloperRole::System },
        version: deployment.anthropic_version.into(),
    }
}
