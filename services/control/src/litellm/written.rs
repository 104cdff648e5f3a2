//! Price entries as a catalog's text: one line for the rates of each tier and band, as people write them.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use weir_domain::price::{PriceEntry, TermsEntry};
use weir_domain::usage::Meter;

use super::Imported;

/// What stands above the prices.
#[derive(Debug, Clone, Copy)]
pub struct Heading<'a> {
    /// The name of the file that was read.
    pub file: &'a str,
    /// Its SHA-256, so that it can be told later which one it was.
    pub sha256: &'a str,
    /// Whether to write what a deployment of each price would look like, as comments.
    pub with_deployments: bool,
}

/// `imported` as the text of a catalog.
#[must_use]
pub fn to_toml(imported: &[Imported], heading: Heading<'_>) -> String {
    let mut text = String::new();
    let Heading { file, sha256, with_deployments } = heading;
    // Writing to a string cannot fail. A name with a line break must not end the comment.
    let _ = writeln!(text, "# {} prices of LiteLLM's price map {}", imported.len(), file.escape_debug());
    let _ = writeln!(text, "# sha256 {sha256}");
    let _ = writeln!(text, "# The map has no dates: these hold since ever, until `effective_from` says otherwise.");
    for one in imported {
        text.push('\n');
        if with_deployments {
            deployment(&mut text, one);
        }
        price(&mut text, &one.price);
    }
    text
}

fn deployment(text: &mut String, one: &Imported) {
    let Imported { price, provider, model, max_output_tokens } = one;
    let _ = writeln!(text, "# [[deployment]]");
    let _ = writeln!(text, "# id = {}", quoted(&format!("{model}@{provider}")));
    let _ = writeln!(text, "# provider = {}", quoted(provider));
    let _ = writeln!(text, "# model = {}", quoted(model));
    if *model != price.name {
        let _ = writeln!(text, "# price = {}", quoted(&price.name));
    }
    match max_output_tokens {
        Some(tokens) => writeln!(text, "# max_output_tokens = {tokens}"),
        None => writeln!(text, "# max_output_tokens = ?   # the map does not say"),
    }
    .unwrap_or_default();
}

fn price(text: &mut String, price: &PriceEntry) {
    let _ = writeln!(text, "[[price]]\nname = {}", quoted(&price.name));
    if let Some(source) = &price.source {
        let _ = writeln!(text, "source = {}", quoted(source));
    }
    if !price.each.is_empty() {
        let _ = writeln!(text, "each = {}", table(&price.each));
    }
    for TermsEntry { tier, above_input_tokens, from_threshold, rates } in &price.terms {
        text.push_str("\n[[price.terms]]\n");
        if let Some(tier) = tier {
            let _ = writeln!(text, "tier = {}", quoted(tier));
        }
        if let Some(above) = above_input_tokens {
            let _ = writeln!(text, "above_input_tokens = {above}");
        }
        if *from_threshold {
            text.push_str("from_threshold = true\n");
        }
        let _ = writeln!(text, "rates = {}", table(rates));
    }
}

fn table<T: Display>(rates: &BTreeMap<Meter, T>) -> String {
    let rates: Vec<String> = rates.iter().map(|(meter, rate)| format!("\"{meter}\" = \"{rate}\"")).collect();
    format!("{{ {} }}", rates.join(", "))
}

/// A basic string on one line: what is no plain character is written as its escape.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}
