//! References between tables: each must name something that exists.

use std::collections::BTreeSet;
use std::fmt::Display;

use weir_domain::ids::ModelName;

use super::check::Checker;
use super::parse::{Located, Tables};

/// Everything in a catalog that can be referred to by name. Teams and keys are named within their tenant.
#[derive(Debug)]
pub(super) struct Names {
    pub providers: BTreeSet<String>,
    pub deployments: BTreeSet<String>,
    pub models: BTreeSet<String>,
    pub tenants: BTreeSet<String>,
    pub teams: BTreeSet<(String, String)>,
    pub keys: BTreeSet<(String, String)>,
    pub regions: BTreeSet<String>,
}

impl Names {
    /// The name of a table of which nothing else is known.
    pub fn add_unread(&mut self, kind: &str, tenant: &str, name: &str) {
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        match kind {
            "provider" => self.providers.insert(name),
            "deployment" => self.deployments.insert(name),
            "model" => self.models.insert(name),
            "tenant" => self.tenants.insert(name),
            "team" => self.teams.insert((tenant, name)),
            "key" => self.keys.insert((tenant, name)),
            // Limits and prices are not referred to by tables that are checked here.
            _ => false,
        };
    }
}

pub(super) fn check_links(checker: &mut Checker<'_>, tables: &Tables, names: &Names) {
    for located in &tables.deployments {
        let provider = located.entry.provider.as_str();
        known(checker, located, "deployment", "provider", &names.providers, [provider], "provider");
    }
    for located in &tables.models {
        let field = if located.entry.tiers.is_empty() { "deployments" } else { "tiers" };
        let deployments = located.entry.tiers().flatten().map(|id| id.as_str());
        known(checker, located, "model", field, &names.deployments, deployments, "deployment");
    }
    for located in &tables.tenants {
        let entry = &located.entry;
        let models = entry.models.iter().flatten().map(ModelName::as_str);
        known(checker, located, "tenant", "models", &names.models, models, "model");
        let providers = entry.providers.iter().flatten().map(|id| id.as_str());
        known(checker, located, "tenant", "providers", &names.providers, providers, "provider");
        let regions = entry.regions.iter().flatten().map(String::as_str);
        known(checker, located, "tenant", "regions", &names.regions, regions, "deployment in region");
    }
    for located in &tables.teams {
        known(checker, located, "team", "tenant", &names.tenants, [located.entry.tenant.as_str()], "tenant");
    }
    for located in &tables.limits {
        let entry = &located.entry;
        known(checker, located, "limit", "tenant", &names.tenants, [entry.tenant.as_str()], "tenant");
        let models = entry.model.iter().map(ModelName::as_str);
        known(checker, located, "limit", "model", &names.models, models, "model");
        within(checker, located, "limit", "team", &names.teams, &entry.tenant, entry.team.as_deref());
        within(checker, located, "limit", "key", &names.keys, &entry.tenant, entry.key.as_deref());
    }
    for located in &tables.keys {
        let entry = &located.entry;
        known(checker, located, "key", "tenant", &names.tenants, [entry.tenant.as_str()], "tenant");
        within(checker, located, "key", "team", &names.teams, &entry.tenant, entry.team.as_deref());
        let models = entry.models.iter().flatten().map(ModelName::as_str);
        known(checker, located, "key", "models", &names.models, models, "model");
    }
}

fn known<'a, T>(
    checker: &mut Checker<'_>,
    located: &Located<T>,
    table: &str,
    field: &str,
    names: &BTreeSet<String>,
    referred: impl IntoIterator<Item = &'a str>,
    what: &str,
) {
    for name in referred.into_iter().filter(|name| !names.contains(*name)) {
        let problem = format!("there is no {what} `{}`", name.escape_debug());
        checker.report(located, table, field, problem, suggestion(names, what));
    }
}

/// For names within a tenant.
fn within<T>(
    checker: &mut Checker<'_>,
    located: &Located<T>,
    table: &str,
    field: &str,
    names: &BTreeSet<(String, String)>,
    tenant: &str,
    referred: Option<&str>,
) {
    let Some(name) = referred else { return };
    if names.contains(&(tenant.to_owned(), name.to_owned())) {
        return;
    }
    let of_tenant = names.iter().filter(|(owner, _)| owner == tenant).map(|(_, name)| name);
    let problem = format!("tenant `{}` has no {field} `{}`", tenant.escape_debug(), name.escape_debug());
    checker.report(located, table, field, problem, suggestion(of_tenant, field));
}

/// How many names a message lists: enough for a small catalog, short enough to read for a large one.
const MOST_SUGGESTIONS: usize = 5;

fn suggestion<N: Display>(names: impl IntoIterator<Item = N>, what: &str) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names.by_ref().take(MOST_SUGGESTIONS).map(|name| format!("`{name}`")).collect();
    let rest = if names.next().is_some() { ", …" } else { "" };
    match first.is_empty() {
        true => format!("add the {what}, or remove the reference"),
        false => format!("write one of {}{rest}, or add it", first.join(", ")),
    }
}
