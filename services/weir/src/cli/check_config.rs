//! `weir check-config`.

use clap::Args;

use super::{ConfigArgs, Failure, Output};

#[derive(Debug, Args)]
pub(super) struct CheckConfigArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the JSON schema of weir.toml instead, for editors.
    #[arg(long)]
    schema: bool,
}

pub(super) fn run(args: &CheckConfigArgs, output: &Output) -> Result<(), Failure> {
    if args.schema {
        let schema = crate::config::json_schema().map_err(|error| Failure::failed(&error))?;
        return output.line(schema.trim_end());
    }
    let config = args.config.load()?;
    let text = if output.is_json {
        serde_json::to_string_pretty(&config).map_err(|error| Failure::failed(&error))?
    } else {
        config.to_toml().map_err(|error| Failure::failed(&error))?
    };
    output.line(text.trim_end())
}
