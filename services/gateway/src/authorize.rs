//! What the caller may do: model and tools, by the policy of key and tenant (I1). A refusal here ends the request; it
//! is never a reason to try something else.

use std::sync::Arc;

use weir_domain::policy::{Key, Snapshot};
use weir_domain::registry::LogicalModel;
use weir_wire::request::RequestFacts;

use crate::respond::PolicyRefusal;

/// The model that `key` may use for this request.
pub(crate) fn authorize(
    snapshot: &Snapshot,
    key: &Key,
    facts: &RequestFacts,
) -> Result<Arc<LogicalModel>, PolicyRefusal> {
    let model = snapshot.model_for(key, &facts.model).ok_or_else(|| {
        if snapshot.models.contains_key(facts.model.as_str()) {
            PolicyRefusal::ModelNotAllowed { model: facts.model.clone() }
        } else {
            PolicyRefusal::UnknownModel { model: facts.model.clone() }
        }
    })?;
    let denied = facts.tools.iter().find(|tool| key.tenant.denied_tools.contains(&tool.name));
    if let Some(tool) = denied {
        return Err(PolicyRefusal::ToolDenied { tool: tool.name.clone() });
    }
    Ok(Arc::clone(model))
}
