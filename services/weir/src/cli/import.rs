//! `weir catalog import litellm`.
//!
//! It changes nothing: it writes a text that `catalog check` takes, and tells on stderr what it could not say.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use weir_control::litellm::{Conversion, Heading, Unsaid, Wanted, convert, to_toml};

use super::catalog::read;
use super::{Failure, Output, failure};

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Turn LiteLLM's model_prices_and_context_window.json into `[[price]]` tables, to the last digit. What cannot be
    /// said exactly is listed on stderr with its reason.
    Litellm(LitellmArgs),
}

#[derive(Debug, Args)]
struct LitellmArgs {
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only models of this `litellm_provider`; may be repeated.
    #[arg(long = "provider", value_name = "NAME")]
    providers: Vec<String>,
    /// Only this model, by its name in the file; one `*` stands for anything; may be repeated.
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
    /// Write above each price what a deployment of it would look like, as comments.
    #[arg(long)]
    with_deployments: bool,
    /// Write to this file, which must not exist, instead of standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Tell only the counts of what could not be said.
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &ImportArgs, output: &Output) -> Result<(), Failure> {
    let From::Litellm(args) = &args.from;
    let (name, text) = read(&args.file)?;
    let wanted = Wanted { providers: args.providers.clone(), models: args.models.clone() };
    let conversion = convert(&text, &wanted)
        .map_err(|error| Failure::new(failure::USAGE, format!("{name}: {}", weir_runtime::story::story(&error))))?;
    let sha256 = Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _written = write!(hex, "{byte:02x}");
        hex
    });
    let written = if output.is_json {
        json!({ "file": name, "sha256": sha256, "conversion": conversion }).to_string() + "\n"
    } else {
        let heading = Heading { file: &name, sha256: &sha256, with_deployments: args.with_deployments };
        to_toml(&conversion.prices, heading)
    };
    match &args.output {
        Some(path) => create(path, &written)?,
        None => output.line(written.trim_end())?,
    }
    tell(&conversion, args.quiet, output.is_json);
    Ok(())
}

/// Never over a file that somebody may have written by hand.
fn create(path: &PathBuf, text: &str) -> Result<(), Failure> {
    use std::io::Write as _;
    let file = std::fs::File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    file.map_err(|error| {
        let path = path.display();
        Failure::new(failure::FAILED, format!("{path} cannot be written: {error}; name a file that does not exist"))
    })
}

fn tell(conversion: &Conversion, is_quiet: bool, is_json: bool) {
    let Conversion { prices, skipped, left_out, batch_prices } = conversion;
    // With --json the lists are in the answer.
    if !is_quiet && !is_json {
        for Unsaid { name, reason } in skipped {
            eprintln!("skipped {}: {reason}", name.escape_debug());
        }
        for Unsaid { name, reason } in left_out {
            eprintln!("left out of {}: {reason}", name.escape_debug());
        }
    }
    let (prices, skipped, parts) = (prices.len(), skipped.len(), left_out.len());
    eprintln!(
        "{prices} prices; {skipped} models skipped; {parts} parts left out, whose requests will be refused; \
         {batch_prices} batch prices passed over"
    );
}
