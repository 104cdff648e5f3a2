//! Where a field stands in the file, for messages that an editor can jump to.

use std::collections::HashMap;

use toml::de::{DeTable, DeValue};

/// Line and column of every section and field that the file has. Both count from one, columns in characters.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<String, (usize, usize)>);

impl Places {
    /// Empty where the text is no TOML: whoever parses it says so.
    pub fn of(text: &str) -> Self {
        let mut places = HashMap::new();
        if let Ok(document) = DeTable::parse(text) {
            for (section, value) in document.get_ref() {
                places.insert(section.get_ref().to_string(), position(text, section.span().start));
                let DeValue::Table(fields) = value.get_ref() else { continue };
                for field in fields.keys() {
                    let path = format!("{}.{}", section.get_ref(), field.get_ref());
                    places.insert(path, position(text, field.span().start));
                }
            }
        }
        Self(places)
    }

    pub fn get(&self, path: &str) -> Option<(usize, usize)> {
        self.0.get(path).copied()
    }
}

pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
