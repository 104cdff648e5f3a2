//! State that only one deployment has: stored answers, and what a client may go on from.
//!
//! An answer's name for the client is the provider's with a tag behind it: an HMAC, under the tenant's secret, of the
//! deployment and the provider's name. So a name that comes back tells which deployment has the state, on every replica
//! and after any restart, without a table that somebody must keep; and a name that another tenant got, or that was made
//! past Weir, opens nothing although the provider's account is shared.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use weir_domain::ids::DeploymentId;
use weir_domain::policy::{Key, TenantSecret};
use weir_domain::registry::{Deployment, LogicalModel};
use weir_wire::openai::responses::AnswerIds;
use weir_wire::request::Continued;
use weir_wire::{ClientRequest, Dialect, Family, RequestError, RequestErrorCode};

use crate::arrival::push_hex;

/// What stands between the provider's name and the tag.
const MARK: &str = "_w";
/// 96 bits: nobody finds one by trying.
const TAG_BYTES: usize = 12;

/// Names the answers of one deployment to one tenant.
pub(crate) struct Names {
    secret: TenantSecret,
    deployment: DeploymentId,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("deployment", &self.deployment).finish_non_exhaustive()
    }
}

impl Names {
    /// Where the dialect has stored answers.
    pub(crate) fn of(dialect: Dialect, key: &Key, deployment: &Deployment) -> Option<Arc<dyn AnswerIds>> {
        match dialect {
            Dialect::OpenAiResponses => {
                Some(Arc::new(Self { secret: key.tenant.secret.clone(), deployment: deployment.id.clone() }))
            }
            Dialect::OpenAiChat | Dialect::OpenAiEmbeddings | Dialect::AnthropicMessages => None,
        }
    }
}

impl AnswerIds for Names {
    fn for_client(&self, id: &str) -> String {
        format!("{id}{MARK}{}", tag(&self.secret, &self.deployment, id))
    }
}

fn tag(secret: &TenantSecret, deployment: &DeploymentId, id: &str) -> String {
    let mut tag = String::with_capacity(2 * TAG_BYTES);
    // HMAC takes keys of any length, so this is always there.
    if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&secret.0) {
        for part in ["stored-answer", deployment.as_str(), id] {
            mac.update(part.as_bytes());
            mac.update(&[0]);
        }
        push_hex(&mut tag, mac.finalize().into_bytes().get(..TAG_BYTES).unwrap_or_default());
    }
    tag
}

/// The one deployment that can serve `request` because it has the state that the request goes on from; `None` where the
/// request brings everything itself. The request then names the state as the provider does.
///
/// # Errors
/// The state is nobody's here, or cannot be told to be at one deployment.
pub(crate) fn pinned(
    request: &mut ClientRequest,
    key: &Key,
    model: &LogicalModel,
) -> Result<Option<DeploymentId>, RequestError> {
    let Some(state) = &request.facts().continues else { return Ok(None) };
    if state.field == "previous_response_id" {
        let (deployment, id) = stored(state, key, model)?;
        request.go_on_from(id);
        return Ok(Some(deployment));
    }
    let family = request.dialect().family();
    let mut may_have = model.deployments().filter(|deployment| Family::from(deployment.provider.dialect) == family);
    match (may_have.next(), may_have.next()) {
        (Some(only), None) => Ok(Some(only.id.clone())),
        (_, _) => Err(refusal(
            state.field,
            format!(
                "`{}` names state at one provider, and this model has several deployments: leave it out.",
                state.field
            ),
        )),
    }
}

fn stored(state: &Continued, key: &Key, model: &LogicalModel) -> Result<(DeploymentId, String), RequestError> {
    let named = state.id.rsplit_once(MARK);
    let found = named.and_then(|(id, tagged)| {
        let has_it = |deployment: &&Arc<Deployment>| tag(&key.tenant.secret, &deployment.id, id) == tagged;
        model.deployments().find(has_it).map(|deployment| (deployment.id.clone(), id.to_owned()))
    });
    found.ok_or_else(|| {
        let message = "There is no such answer of this model here: give the `id` of an answer that you got from this \
                       gateway, by the same model.";
        refusal(state.field, message.to_owned())
    })
}

fn refusal(field: &str, message: String) -> RequestError {
    RequestError { field: Some(field.to_owned()), position: None, message, code: RequestErrorCode::NotFound }
}

#[cfg(test)]
#[path = "states_tests.rs"]
mod tests;
