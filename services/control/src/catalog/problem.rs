//! What is wrong with a catalog: where, which field, and what to write instead.

use std::fmt;

use serde::Serialize;
use thiserror::Error;

/// Lines and columns count from one, columns in characters, as editors do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CatalogProblem {
    pub file: String,
    #[serde(flatten)]
    pub at: Position,
    /// The table and key, such as `deployment.price`; `catalog` for what is no table at all.
    pub field: String,
    pub problem: String,
    pub fix: String,
}

impl fmt::Display for CatalogProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, at: Position { line, column }, field, problem, fix } = self;
        write!(f, "{file}:{line}:{column}: {field}: {problem}")?;
        if fix.is_empty() { Ok(()) } else { write!(f, "; {fix}") }
    }
}

/// Every mistake of a catalog, in the order of the file. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct CatalogProblems(pub Vec<CatalogProblem>);

impl fmt::Display for CatalogProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
    }
}

/// Turns byte offsets into positions.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub fn new(text: &'a str) -> Self {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(after_breaks).collect() }
    }

    pub fn position(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        let before = self.text.get(start..offset).unwrap_or_default();
        Position { line, column: before.chars().count() + 1 }
    }
}
