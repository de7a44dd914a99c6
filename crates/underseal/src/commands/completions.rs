//! `underseal completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::error::Result;
use crate::output::print;

/// Prints a shell's completions for this command.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal completions bash > ~/.local/share/bash-completion/completions/underseal
  underseal completions fish > ~/.config/fish/completions/underseal.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "underseal", &mut script);
    print(&String::from_utf8_lossy(&script))
}
