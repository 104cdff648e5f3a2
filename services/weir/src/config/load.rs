//! From file and environment to a [`Config`], with errors that name place, field and fix.
//!
//! What stands where a reference to a secret belongs is never repeated: it may be the secret itself.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use thiserror::Error;
use toml::{Table, Value};

use super::Config;
use super::check::check;
use super::places::{Places, position};

/// Variables that override a field: `WEIR_<SECTION>__<FIELD>`, such as `WEIR_LISTEN__GATEWAY`.
const PREFIX: &str = "WEIR_";
const SEPARATOR: &str = "__";

/// A configuration is a page or two; something larger is another file.
const LARGEST_CONFIG_BYTES: u64 = 1 << 20;

/// The variables of a process. A value, so that tests need not change their own.
#[derive(Debug, Clone, Default)]
pub struct Environment(Vec<(String, String)>);

impl Environment {
    /// This process's, as far as it is text.
    #[must_use]
    pub fn of_process() -> Self {
        let is_text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        std::env::vars_os().filter_map(is_text).collect()
    }

    /// Every override, in the order of their names.
    fn overrides(&self) -> Vec<Override<'_>> {
        let read = |variable: &'_ (String, String)| -> Option<(String, String)> {
            let (section, field) = variable.0.strip_prefix(PREFIX)?.split_once(SEPARATOR)?;
            Some((section.to_ascii_lowercase(), field.to_ascii_lowercase()))
        };
        let mut overrides = Vec::new();
        for variable in &self.0 {
            if let Some((section, field)) = read(variable) {
                overrides.push(Override { variable: &variable.0, section, field, text: &variable.1 });
            }
        }
        overrides.sort_by_key(|known| known.variable);
        overrides
    }
}

#[derive(Debug)]
struct Override<'a> {
    variable: &'a str,
    section: String,
    field: String,
    text: &'a str,
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// One mistake. Shown as `weir.toml:3:1: gateway.max_body: what is wrong; what to write`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    /// A file with line and column, or an environment variable.
    pub place: String,
    /// Such as `gateway.max_body`; `configuration` for what is no table at all.
    pub field: String,
    pub problem: String,
    pub fix: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, field, problem, fix } = self;
        write!(f, "{place}: {field}: {problem}")?;
        if fix.is_empty() { Ok(()) } else { write!(f, "; {fix}") }
    }
}

/// Why there is no configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("{} cannot be read: {source}; name another file with --config, or leave it out for the defaults", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is larger than {LARGEST_CONFIG_BYTES} bytes, so it is no configuration; name another file", path.display())]
    TooLarge { path: PathBuf },
    #[error("{0}")]
    Problem(ConfigProblem),
}

impl Config {
    /// Reads `file` (absent: the defaults), lays `environment` over it, and checks the whole.
    ///
    /// # Errors
    /// [`ConfigError`]: the first mistake, where it is and what to write.
    pub fn load(file: Option<&Path>, environment: &Environment) -> Result<Self, ConfigError> {
        match file {
            None => Self::from_text("defaults", "", environment),
            Some(path) => {
                let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
                if std::fs::metadata(path).map_err(unreadable)?.len() > LARGEST_CONFIG_BYTES {
                    return Err(ConfigError::TooLarge { path: path.to_owned() });
                }
                let text = std::fs::read_to_string(path).map_err(unreadable)?;
                Self::from_text(&path.display().to_string(), &text, environment)
            }
        }
    }

    /// As [`load`](Self::load), from a text that is called `name` in errors.
    ///
    /// # Errors
    /// [`ConfigError::Problem`].
    pub fn from_text(name: &str, text: &str, environment: &Environment) -> Result<Self, ConfigError> {
        let mut table = parse_file(name, text).map_err(ConfigError::Problem)?;
        let overrides = environment.overrides();
        for over in &overrides {
            let value = read_override(over).map_err(ConfigError::Problem)?;
            let fields = table.entry(over.section.clone()).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(fields) = fields {
                fields.insert(over.field.clone(), value);
            }
        }
        let config = Self::deserialize(table).map_err(|error| {
            ConfigError::Problem(explain(name.to_owned(), "configuration".to_owned(), error.message()))
        })?;
        check(&config).map_err(|(field, problem, fix)| {
            let over = overrides.iter().find(|over| format!("{}.{}", over.section, over.field) == field);
            let place = match (over, Places::of(text).get(field)) {
                (Some(over), _) => over.variable.to_owned(),
                (None, Some((line, column))) => format!("{name}:{line}:{column}"),
                (None, None) => name.to_owned(),
            };
            ConfigError::Problem(ConfigProblem { place, field: field.to_owned(), problem, fix })
        })?;
        Ok(config)
    }

    /// Checks fields that were set after loading, such as by a flag.
    ///
    /// # Errors
    /// [`ConfigError::Problem`].
    pub fn check(&self) -> Result<(), ConfigError> {
        check(self).map_err(|(field, problem, fix)| {
            let place = "command line".to_owned();
            ConfigError::Problem(ConfigProblem { place, field: field.to_owned(), problem, fix })
        })
    }

    /// Everything that is in force, as a file that could be read back. Secrets are references, so it may be shown.
    ///
    /// # Errors
    /// None for a configuration that was read; the type is the library's.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

fn parse_file(name: &str, text: &str) -> Result<Table, ConfigProblem> {
    let at = |offset: usize| {
        let (line, column) = position(text, offset);
        format!("{name}:{line}:{column}")
    };
    let syntax = |error: toml::de::Error| {
        let place = at(error.span().map_or(0, |span| span.start));
        explain(place, "configuration".to_owned(), error.message())
    };
    let table: Table = text.parse().map_err(syntax)?;
    let typed: Result<Config, _> =
        serde_path_to_error::deserialize(toml::de::Deserializer::parse(text).map_err(syntax)?);
    match typed {
        Ok(_) => Ok(table),
        Err(error) => {
            let path = error.path().to_string();
            let error = error.into_inner();
            let place = at(error.span().map_or(0, |span| span.start));
            let field = if path == "." { "configuration".to_owned() } else { path };
            Err(explain(place, field, error.message()))
        }
    }
}

/// A variable is text; whether a field wants text or a number is known only by trying.
fn read_override(over: &Override<'_>) -> Result<Value, ConfigProblem> {
    let Override { variable, section, field, text } = over;
    let as_text = Value::String((*text).to_owned());
    let Err(error) = fits(section, field, &as_text) else { return Ok(as_text) };
    let literal = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    let error = match literal {
        None => error,
        Some(literal) => match fits(section, field, &literal) {
            Ok(()) => return Ok(literal),
            Err(error) => error,
        },
    };
    Err(explain((*variable).to_owned(), format!("{section}.{field}"), &error))
}

fn fits(section: &str, field: &str, value: &Value) -> Result<(), String> {
    let fields = Table::from_iter([(field.to_owned(), value.clone())]);
    let table = Table::from_iter([(section.to_owned(), Value::Table(fields))]);
    Config::deserialize(table).map(|_| ()).map_err(|error| error.message().to_owned())
}

/// Splits what the parser says into what is wrong and what to write.
fn explain(place: String, field: String, message: &str) -> ConfigProblem {
    let message = message.trim_end();
    let parts = |problem: &str, fix: &str| (problem.to_owned(), format!("write {fix}"));
    let (problem, fix) = match message.split_once(", expected ") {
        Some((problem, expected)) if problem.starts_with("unknown ") => parts(problem, expected),
        Some((problem, expected)) if problem.starts_with("invalid ") => {
            parts("it has the wrong type", in_words(expected))
        }
        Some(_) | None => match message.split_once("; write ").or_else(|| message.split_once(": write ")) {
            Some((problem, fix)) => parts(problem, fix),
            None if message == "invalid socket address syntax" => {
                parts("it is no address with a port", "for example \"127.0.0.1:8080\"")
            }
            None => (message.to_owned(), String::new()),
        },
    };
    ConfigProblem { place, field, problem, fix }
}

/// What the parser calls by the names of Rust.
fn in_words(expected: &str) -> &str {
    match expected {
        "usize" | "u32" | "u64" | "i64" => "a whole number",
        _ if expected.starts_with("struct ") => "a table of fields",
        _ => expected,
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
