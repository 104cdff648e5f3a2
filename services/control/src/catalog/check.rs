//! What the tables of a catalog must mean together: names that exist, are unique and are priced, and limits that can be
//! counted.
//!
//! Nothing stops at the first mistake, and a table that could not be read still lends its name to those that refer to
//! it, so that one mistake is one message.

use std::collections::{BTreeMap, BTreeSet};

use weir_domain::money::NanoUsd;
use weir_domain::price::{PriceBook, PriceBookError, PriceEntry};
use weir_domain::quota::{Measure, Unit};
use weir_domain::usage::Meter;

use super::Surroundings;
use super::entries::{Catalog, DeploymentEntry, LimitEntry, LimitMax, ProviderEntry};
use super::links::{Names, check_links};
use super::parse::{Located, Tables, explain};
use super::problem::{CatalogProblem, CatalogProblems};

/// Names go into logs, metrics' labels and headers.
const LONGEST_NAME: usize = 128;

/// More attempts than this are a retry storm, not a failover.
const MOST_ATTEMPTS: u16 = 16;
/// The client waits in mid-sentence: more than this it will not.
const MOST_CONTINUATIONS: u16 = 4;

/// A day: longer than any provider keeps a connection, short enough that a slip of the unit is noticed.
const LONGEST_DEADLINE_MS: u64 = 24 * 60 * 60 * 1_000;

/// Labels are copied to every event and ledger line of a request.
const MOST_LABELS: usize = 16;
const LONGEST_LABEL: usize = 256;

/// The most tokens that a kilobyte of text or a picture may be declared to be, and the largest output cap.
const MOST_TOKENS: i64 = 100_000_000;

pub(super) fn check(
    tables: Tables,
    unreadable: Vec<CatalogProblem>,
    surroundings: Surroundings<'_>,
) -> Result<Catalog, CatalogProblems> {
    let mut checker = Checker { file: surroundings.file, problems: unreadable };
    let names = checker.names(&tables, surroundings);
    checker.providers(&tables.providers);
    checker.deployments(&tables.deployments);
    checker.models(&tables);
    checker.limits(&tables.limits);
    checker.keys(&tables);
    check_links(&mut checker, &tables, &names);
    checker.prices(&tables, surroundings);
    if checker.problems.is_empty() {
        return Ok(sorted(tables));
    }
    checker.problems.sort_by(|a, b| (a.at, &a.field).cmp(&(b.at, &b.field)));
    Err(CatalogProblems(checker.problems))
}

/// Collects problems. `table` in the methods is the kind of a table as it is written.
pub(super) struct Checker<'a> {
    file: &'a str,
    problems: Vec<CatalogProblem>,
}

impl Checker<'_> {
    pub fn report<T>(&mut self, at: &Located<T>, table: &str, field: &str, problem: String, fix: impl Into<String>) {
        let name = if field.is_empty() { table.to_owned() } else { format!("{table}.{field}") };
        self.problems.push(CatalogProblem {
            file: self.file.to_owned(),
            at: at.position(field),
            field: name,
            problem,
            fix: fix.into(),
        });
    }

    /// Every name that can be referred to; reports those that are used twice or could not be printed.
    fn names(&mut self, tables: &Tables, surroundings: Surroundings<'_>) -> Names {
        let name_of_provider = |entry: &ProviderEntry| entry.id.to_string();
        let name_of_deployment = |entry: &DeploymentEntry| entry.id.to_string();
        let providers = self.unique(&tables.providers, "provider", "id", name_of_provider);
        let deployments = self.unique(&tables.deployments, "deployment", "id", name_of_deployment);
        let models = self.unique(&tables.models, "model", "name", |entry| entry.name.to_string());
        let tenants = self.unique(&tables.tenants, "tenant", "name", |entry| entry.name.clone());
        let teams = self.unique(&tables.teams, "team", "name", |entry| (entry.tenant.clone(), entry.name.clone()));
        let file_keys = self.unique(&tables.keys, "key", "name", |entry| (entry.tenant.clone(), entry.name.clone()));
        self.unique(&tables.keys, "key", "hash", |entry| entry.hash);
        let keys = file_keys.into_iter().chain(surroundings.admin_keys.iter().cloned()).collect();
        let regions = tables.deployments.iter().map(|located| located.entry.region.clone()).collect();
        let mut names = Names { providers, deployments, models, tenants, teams, keys, regions };
        for (kind, tenant, name) in &tables.unread {
            names.add_unread(kind, tenant, name);
        }
        names
    }

    fn unique<T, N: Named>(
        &mut self,
        entries: &[Located<T>],
        table: &str,
        field: &str,
        name_of: impl Fn(&T) -> N,
    ) -> BTreeSet<N> {
        let mut seen = BTreeMap::new();
        for located in entries {
            let name = name_of(&located.entry);
            if let Some(text) = name.text()
                && !is_name(text)
            {
                let fix = format!(
                    "use 1 to {LONGEST_NAME} letters, digits and any of `. _ - : / @ +`, beginning with a letter or digit"
                );
                self.report(located, table, field, format!("`{}` is no name", text.escape_debug()), fix);
            }
            let position = located.position(field);
            if let Some(first) = seen.get(&name) {
                let super::Position { line, .. } = first;
                let problem = format!("{} is there already, on line {line}", name.shown());
                self.report(located, table, field, problem, "rename one, or remove it");
            } else {
                seen.insert(name, position);
            }
        }
        seen.into_keys().collect()
    }

    fn providers(&mut self, providers: &[Located<ProviderEntry>]) {
        for located in providers {
            if let Err((problem, fix)) = check_base_url(&located.entry.base_url) {
                self.report(located, "provider", "base_url", problem, fix);
            }
        }
    }

    fn deployments(&mut self, deployments: &[Located<DeploymentEntry>]) {
        for located in deployments {
            let entry = &located.entry;
            let counts = [
                ("max_output_tokens", Some(entry.max_output_tokens).filter(|_| !entry.only_embeds())),
                ("tokens_per_kilobyte", Some(entry.tokens_per_kilobyte)),
                ("tokens_per_image", entry.tokens_per_image),
            ];
            for (field, count) in counts {
                if count.is_some_and(|count| !(1..=MOST_TOKENS).contains(&count)) {
                    let problem = format!("{} is no number of tokens", count.unwrap_or_default());
                    self.report(located, "deployment", field, problem, format!("write 1 to {MOST_TOKENS}"));
                }
            }
            let sees = entry.capabilities.contains(&weir_domain::registry::Capability::Vision);
            if sees && entry.tokens_per_image.is_none() {
                let problem = "it can see pictures, but nothing bounds what one costs".to_owned();
                let fix = "add `tokens_per_image`: the most input tokens that one picture can be";
                self.report(located, "deployment", "tokens_per_image", problem, fix);
            }
            for (field, text) in [("model", &entry.model), ("region", &entry.region)] {
                if text.is_empty() {
                    self.report(
                        located,
                        "deployment",
                        field,
                        "it is empty".to_owned(),
                        "write a name or remove the key",
                    );
                }
            }
        }
    }

    fn models(&mut self, tables: &Tables) {
        for located in &tables.models {
            let entry = &located.entry;
            let field = if entry.tiers.is_empty() { "deployments" } else { "tiers" };
            if !entry.deployments.is_empty() && !entry.tiers.is_empty() {
                let problem = "it has both `deployments` and `tiers`".to_owned();
                self.report(located, "model", "tiers", problem, "keep one: `deployments` is short for a single tier");
            } else if entry.deployments.is_empty() && entry.tiers.is_empty() {
                let problem = format!("model `{}` has no deployment", entry.name);
                self.report(located, "model", "deployments", problem, "add `deployments = [\"…\"]` or `tiers`");
            } else if entry.tiers().any(<[_]>::is_empty) {
                self.report(located, "model", "tiers", "a tier is empty".to_owned(), "name a deployment or remove it");
            }
            let mut seen = BTreeSet::new();
            for twice in entry.tiers().flatten().filter(|id| !seen.insert((*id).clone())) {
                let problem = format!("deployment `{twice}` is named twice");
                self.report(located, "model", field, problem, "name it once, in the earliest tier that it belongs to");
            }
            if !(1..=MOST_ATTEMPTS).contains(&entry.max_attempts) {
                let problem = format!("{} attempts", entry.max_attempts);
                self.report(located, "model", "max_attempts", problem, format!("write 1 to {MOST_ATTEMPTS}"));
            }
            if !(1..=MOST_CONTINUATIONS).contains(&entry.stream_failure.max_fallbacks) {
                let problem = format!("{} attempts to go on", entry.stream_failure.max_fallbacks);
                let fix = format!("write 1 to {MOST_CONTINUATIONS}");
                self.report(located, "model", "stream_failure", problem, fix);
            }
            self.default_cap(located, &tables.deployments);
            self.deadlines(located);
        }
    }

    /// A written cap above a deployment's own would be refused by the provider, on the requests that named none.
    fn default_cap(&mut self, located: &Located<super::ModelEntry>, deployments: &[Located<DeploymentEntry>]) {
        let entry = &located.entry;
        let Some(cap) = entry.default_output_tokens else { return };
        if cap < 1 {
            let problem = format!("{cap} is no number of tokens");
            return self.report(located, "model", "default_output_tokens", problem, "write 1 or more, or remove it");
        }
        let own = deployments.iter().map(|deployment| &deployment.entry);
        let behind = own.filter(|deployment| entry.tiers().flatten().any(|id| *id == deployment.id));
        for deployment in behind.filter(|deployment| deployment.max_output_tokens < cap && !deployment.only_embeds()) {
            let problem =
                format!("{cap} is above the {} of deployment `{}`", deployment.max_output_tokens, deployment.id);
            self.report(located, "model", "default_output_tokens", problem, "lower it to what every deployment gives");
        }
    }

    fn deadlines(&mut self, located: &Located<super::ModelEntry>) {
        let deadlines = located.entry.deadlines;
        let written = [
            ("plain_total", deadlines.plain_total),
            ("stream_total", deadlines.stream_total),
            ("first_content", deadlines.first_content),
            ("idle", deadlines.idle),
            ("connect", deadlines.connect),
            ("usage_after_finish", deadlines.usage_after_finish),
            ("write_stall", deadlines.write_stall),
        ];
        for (name, duration) in written {
            if let Some(duration) = duration
                && !(1..=LONGEST_DEADLINE_MS).contains(&duration.as_ms())
            {
                let problem = format!("`{name}` is {duration}");
                self.report(located, "model", "deadlines", problem, "write more than nothing and at most \"1d\"");
            }
        }
    }

    fn limits(&mut self, limits: &[Located<LimitEntry>]) {
        let mut seen = BTreeMap::new();
        for located in limits {
            let entry = &located.entry;
            if let Err((problem, fix)) = limit_max(entry) {
                self.report(located, "limit", "max", problem, fix);
            }
            if entry.team.is_some() && entry.key.is_some() {
                let problem = "it names a team and a key".to_owned();
                self.report(located, "limit", "key", problem, "keep one: a key's limit counts the key alone");
            }
            let what = (&entry.tenant, &entry.team, &entry.key, &entry.model, entry.kind.to_string());
            if let Some(line) = seen.insert(what, located.position("").line) {
                let problem = format!("the same is limited on line {line}");
                self.report(located, "limit", "", problem, "keep the one that you mean");
            }
        }
    }

    fn keys(&mut self, tables: &Tables) {
        for located in &tables.keys {
            if let Err((problem, fix)) = check_labels(&located.entry.labels) {
                self.report(located, "key", "labels", problem, fix);
            }
        }
    }

    fn prices(&mut self, tables: &Tables, surroundings: Surroundings<'_>) {
        let own: Vec<PriceEntry> = tables.prices.iter().map(|located| located.entry.clone()).collect();
        let mut is_sound = true;
        let names: BTreeSet<&str> = own.iter().map(|entry| entry.name.as_str()).collect();
        for name in names {
            let entries: Vec<PriceEntry> = own.iter().filter(|entry| entry.name == name).cloned().collect();
            if let Err(error) = PriceBook::new(&entries, |_| "".into()) {
                is_sound = false;
                self.price_problem(tables, name, &error);
            }
        }
        let entries = weir_domain::price::overlay(surroundings.shipped_prices.to_vec(), own);
        if is_sound && let Ok(book) = PriceBook::new(&entries, |_| "".into()) {
            for located in &tables.deployments {
                self.deployment_price(located, &entries, &book, surroundings.now_ms);
            }
        }
    }

    fn price_problem(&mut self, tables: &Tables, name: &str, error: &PriceBookError) {
        let Some(located) = tables.prices.iter().rfind(|located| located.entry.name == name) else { return };
        let text = error.to_string();
        let text = text.strip_prefix(&format!("price `{name}`: ")).unwrap_or(&text);
        let (problem, fix) = text.split_once("; ").unwrap_or((text, ""));
        self.report(located, "price", "name", format!("`{name}`: {problem}"), fix);
    }

    /// O21: what has no price is refused here, before it could ever be called.
    fn deployment_price(
        &mut self,
        located: &Located<DeploymentEntry>,
        entries: &[PriceEntry],
        book: &PriceBook,
        now_ms: i64,
    ) {
        let name = located.entry.price_name();
        let field = if located.entry.price.is_some() { "price" } else { "model" };
        let add = format!("add [[price]] with name = \"{name}\", or one with `free = true` if it costs nothing");
        if !book.knows(name) {
            return self.report(located, "deployment", field, format!("no price is named `{name}`"), add);
        }
        if book.price(name, now_ms).is_err() {
            let problem = format!("no price named `{name}` is in force now");
            return self.report(
                located,
                "deployment",
                field,
                problem,
                "look at its `effective_from` and `effective_to`",
            );
        }
        let is_covered = |meter| {
            let covers = |entry: &PriceEntry| {
                let in_all_terms = entry.terms.iter().all(|terms| terms.rates.contains_key(&meter));
                entry.free || (in_all_terms && !entry.terms.is_empty())
            };
            entries.iter().filter(|entry| entry.name == name).all(covers)
        };
        let has_no_output = located.entry.only_embeds();
        let needed =
            [Meter::InUncached, Meter::OutVisible].into_iter().filter(|meter| !has_no_output || meter.is_input());
        for meter in needed.filter(|meter| !is_covered(*meter)) {
            let problem = format!("the price `{name}` has no rate for `{meter}`");
            let fix = format!("add \"{meter}\" to its `rates`: a request that uses it could not be charged");
            self.report(located, "deployment", field, problem, fix);
        }
    }
}

/// What can be a name: something that compares, and how it is shown.
trait Named: Ord {
    /// The part that must be printable; `None` for what the type already bounds.
    fn text(&self) -> Option<&str>;
    fn shown(&self) -> String;
}

impl Named for String {
    fn text(&self) -> Option<&str> {
        Some(self)
    }
    fn shown(&self) -> String {
        format!("`{}`", self.escape_debug())
    }
}

impl Named for (String, String) {
    fn text(&self) -> Option<&str> {
        Some(&self.1)
    }
    fn shown(&self) -> String {
        format!("`{}` of tenant `{}`", self.1.escape_debug(), self.0.escape_debug())
    }
}

impl Named for super::KeyHashText {
    fn text(&self) -> Option<&str> {
        None
    }
    fn shown(&self) -> String {
        "the same key".to_owned()
    }
}

pub(crate) fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@+".contains(&byte);
    text.len() <= LONGEST_NAME
        && text.bytes().all(is_plain)
        && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

/// Labels of a key, wherever it is made.
pub(crate) fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), (String, String)> {
    if labels.len() > MOST_LABELS {
        return Err((format!("{} labels", labels.len()), format!("write at most {MOST_LABELS}")));
    }
    let is_bad = |(name, value): &(&String, &String)| !is_name(name) || value.len() > LONGEST_LABEL;
    match labels.iter().find(is_bad) {
        None => Ok(()),
        Some((name, _)) => Err((
            format!("label `{}` has a name that is none, or is too long", name.escape_debug()),
            format!("names are like ids, values have at most {LONGEST_LABEL} bytes"),
        )),
    }
}

/// The bound of a limit in the unit of its measure: a count, or nano-USD.
pub(crate) fn limit_max(entry: &LimitEntry) -> Result<i64, (String, String)> {
    let is_money = matches!(entry.kind.0, Measure::Calendar { unit: Unit::Usd, .. });
    let max = match (&entry.max, is_money) {
        (LimitMax::Money(text), true) => {
            text.parse::<NanoUsd>().map(NanoUsd::nanos).map_err(|error| explain("limit", &error.to_string()))?
        }
        (LimitMax::Count(count), false) => *count,
        (LimitMax::Count(count), true) => {
            return Err(("money is text".to_owned(), format!("write max = \"{count}\"")));
        }
        (LimitMax::Money(text), false) => {
            let fix = "write it as an integer without quotes, such as max = 1_000".to_owned();
            return Err((format!("`{text}` is text, but {} are counted", entry.kind), fix));
        }
    };
    if max < 0 {
        return Err(("a limit cannot be negative".to_owned(), "write 0 to admit nothing".to_owned()));
    }
    Ok(max)
}

fn check_base_url(url: &str) -> Result<(), (String, String)> {
    let wrong = |problem: &str, fix: &str| Err((problem.to_owned(), fix.to_owned()));
    let Some(rest) = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://")) else {
        return wrong("it is no http or https URL", "write it in full, such as \"https://api.openai.com/v1\"");
    };
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return wrong("it carries a user", "put the credential into `credential = \"env:…\"`");
    }
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte);
    if authority.is_empty() || !authority.bytes().all(is_host) {
        return wrong("it has no host", "write it in full, such as \"https://api.openai.com/v1\"");
    }
    if rest.bytes().any(|byte| byte.is_ascii_control() || b" ?#\\".contains(&byte)) {
        return wrong("it has a query, a fragment or a space", "write scheme, host and path only");
    }
    if url.ends_with('/') {
        return wrong("it ends in a slash", "remove it: paths are appended with their own");
    }
    Ok(())
}

fn sorted(tables: Tables) -> Catalog {
    fn entries<T>(located: Vec<Located<T>>) -> Vec<T> {
        located.into_iter().map(|one| one.entry).collect()
    }
    let mut catalog = Catalog {
        providers: entries(tables.providers),
        deployments: entries(tables.deployments),
        models: entries(tables.models),
        tenants: entries(tables.tenants),
        teams: entries(tables.teams),
        limits: entries(tables.limits),
        keys: entries(tables.keys),
        prices: entries(tables.prices),
    };
    catalog.providers.sort_by(|a, b| a.id.cmp(&b.id));
    catalog.deployments.sort_by(|a, b| a.id.cmp(&b.id));
    catalog.models.sort_by(|a, b| a.name.cmp(&b.name));
    catalog.tenants.sort_by(|a, b| a.name.cmp(&b.name));
    catalog.teams.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
    let of_limit = |limit: &LimitEntry| {
        (limit.tenant.clone(), limit.team.clone(), limit.key.clone(), limit.model.clone(), limit.kind.to_string())
    };
    catalog.limits.sort_by_key(of_limit);
    catalog.keys.sort_by(|a, b| (&a.tenant, &a.name).cmp(&(&b.tenant, &b.name)));
    catalog.prices.sort_by(|a, b| (&a.name, a.effective_from).cmp(&(&b.name, b.effective_from)));
    catalog
}
