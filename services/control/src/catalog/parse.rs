//! TOML into tables that remember where their fields stand.
//!
//! Each table is read by itself, so that one mistake does not hide those of the other tables, and the place of every
//! field is kept beside the value, so that `check` can point at it long after the text is gone.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use weir_domain::price::PriceEntry;
use weir_domain::usage::Meter;

use super::entries::{DeploymentEntry, KeyEntry, LimitEntry, ModelEntry, ProviderEntry, TeamEntry, TenantEntry};
use super::problem::{CatalogProblem, Lines, Position};

/// Far above any catalog written by hand or generated for 100,000 tenants; a bound on what one call can hold in memory.
pub const LARGEST_CATALOG_BYTES: usize = 64 << 20;

/// A table and where it stands.
#[derive(Debug)]
pub(super) struct Located<T> {
    pub entry: T,
    header: Position,
    fields: BTreeMap<String, Position>,
}

impl<T> Located<T> {
    /// Where `field` is, or the table's header where the field is absent.
    pub fn position(&self, field: &str) -> Position {
        self.fields.get(field).copied().unwrap_or(self.header)
    }
}

/// The tables of a file, each well-formed by itself.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub providers: Vec<Located<ProviderEntry>>,
    pub deployments: Vec<Located<DeploymentEntry>>,
    pub models: Vec<Located<ModelEntry>>,
    pub tenants: Vec<Located<TenantEntry>>,
    pub teams: Vec<Located<TeamEntry>>,
    pub limits: Vec<Located<LimitEntry>>,
    pub keys: Vec<Located<KeyEntry>>,
    pub prices: Vec<Located<PriceEntry>>,
    /// Kind, tenant and name of the tables that could not be read: a reference to one is not a second mistake.
    pub unread: Vec<(String, String, String)>,
}

const KINDS: &str = "[[provider]], [[deployment]], [[model]], [[tenant]], [[team]], [[limit]], [[key]] or [[price]]";

/// Reads `text`. What could not be read is in the problems, the rest in the tables.
pub(super) fn parse(file: &str, text: &str) -> (Tables, Vec<CatalogProblem>) {
    let mut parser = Parser { file, lines: Lines::new(text), problems: Vec::new(), unread: Vec::new() };
    let mut tables = Tables::default();
    let (root, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            parser.report(error.span().map_or(0, |span| span.start), "catalog", error.message(), "");
        }
        return (tables, parser.problems);
    }
    for (kind, value) in root.into_inner() {
        match kind.get_ref().as_ref() {
            "provider" => tables.providers = parser.entries("provider", value),
            "deployment" => tables.deployments = parser.entries("deployment", value),
            "model" => tables.models = parser.entries("model", value),
            "tenant" => tables.tenants = parser.entries("tenant", value),
            "team" => tables.teams = parser.entries("team", value),
            "limit" => tables.limits = parser.entries("limit", value),
            "key" => tables.keys = parser.entries("key", value),
            "price" => tables.prices = parser.entries("price", value),
            other => {
                let fix = format!("write {KINDS}");
                parser.report(kind.span().start, "catalog", &format!("unknown table `{other}`"), &fix);
            }
        }
    }
    tables.unread = parser.unread;
    (tables, parser.problems)
}

struct Parser<'a> {
    file: &'a str,
    lines: Lines<'a>,
    problems: Vec<CatalogProblem>,
    unread: Vec<(String, String, String)>,
}

impl Parser<'_> {
    fn entries<T: DeserializeOwned>(&mut self, kind: &str, value: Spanned<DeValue<'_>>) -> Vec<Located<T>> {
        let start = value.span().start;
        match value.into_inner() {
            DeValue::Array(items) => items.into_iter().filter_map(|item| self.entry(kind, item)).collect(),
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Table(_) => {
                let fix = format!("write [[{kind}]] with two brackets, once for each");
                self.report(start, kind, "there can be several, so it is a list of tables", &fix);
                Vec::new()
            }
        }
    }

    fn entry<T: DeserializeOwned>(&mut self, kind: &str, item: Spanned<DeValue<'_>>) -> Option<Located<T>> {
        let start = item.span().start;
        let header = self.lines.position(start);
        let fields = item.get_ref().as_table().map(|table| self.places(table)).unwrap_or_default();
        let text =
            |field: &str| item.get_ref().get(field).and_then(|value| value.get_ref().as_str()).map(str::to_owned);
        let name = text("id").or_else(|| text("name"));
        let identity = (kind.to_owned(), text("tenant").unwrap_or_default(), name.unwrap_or_default());
        let error = match serde_path_to_error::deserialize(ValueDeserializer::from(item)) {
            Ok(entry) => return Some(Located { entry, header, fields }),
            Err(error) => error,
        };
        let path = error.path().to_string();
        let field = if path == "." { kind.to_owned() } else { format!("{kind}.{path}") };
        let error = error.into_inner();
        let (problem, fix) = explain(kind, error.message());
        self.unread.push(identity);
        self.report(error.span().map_or(start, |span| span.start), &field, &problem, &fix);
        None
    }

    fn places(&self, table: &DeTable<'_>) -> BTreeMap<String, Position> {
        table.keys().map(|key| (key.get_ref().to_string(), self.lines.position(key.span().start))).collect()
    }

    fn report(&mut self, offset: usize, field: &str, problem: &str, fix: &str) {
        self.problems.push(CatalogProblem {
            file: self.file.to_owned(),
            at: self.lines.position(offset),
            field: field.to_owned(),
            problem: problem.to_owned(),
            fix: fix.to_owned(),
        });
    }
}

/// Splits what serde and the types' parsers say into what is wrong and what to write.
pub(super) fn explain(kind: &str, message: &str) -> (String, String) {
    if let Some((wrong, expected)) = message.split_once(", expected ") {
        let in_quotes = if expected == "a string" { ", in quotes" } else { "" };
        return (wrong.to_owned(), format!("write {expected}{in_quotes}"));
    }
    if let Some(field) = message.strip_prefix("missing field ") {
        return (message.to_owned(), format!("add {field} to this [[{kind}]]"));
    }
    if message.starts_with("unknown meter ") {
        let meters: Vec<&str> = Meter::ALL.iter().map(|meter| meter.code()).collect();
        return (message.to_owned(), format!("write one of {}", meters.join(", ")));
    }
    let split = message.split_once("; ").or_else(|| {
        message
            .split_once(": write ")
            .map(|(problem, _)| (problem, message.get(problem.len() + 2..).unwrap_or_default()))
    });
    let (problem, fix) = split.unwrap_or((message, ""));
    (problem.to_owned(), fix.to_owned())
}
