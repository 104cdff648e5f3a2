//! `weir completions`.

use clap::{Args, CommandFactory as _, ValueEnum};

use super::{Cli, Failure, Output};

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// bash: `weir completions bash > /etc/bash_completion.d/weir`; zsh: into a file `_weir` of `$fpath`; fish: into
    /// `~/.config/fish/completions/weir.fish`.
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: &CompletionsArgs, output: &Output) -> Result<(), Failure> {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "weir", &mut script);
    output.line(String::from_utf8_lossy(&script).trim_end())
}
