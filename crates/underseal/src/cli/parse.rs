//! Parsing, with the definition of the command that is called alone.

use std::ffi::OsString;

use clap::{Args, FromArgMatches, Parser, Subcommand};

use super::{
    CheckArgs, Cli, CompletionsArgs, Control, DmArgs, DownArgs, EcryptfsArgs, FormatArgs, HeaderArgs,
    InfoArgs, IntegrityCommandArgs, KeyslotArgs, ManArgs, OpenArgs, PsArgs, ReadArgs, ReencryptArgs,
    TableArgs, TokenCommandArgs, UpArgs, Verbosity, WriteArgs,
};

/// A function that adds a command's arguments to it.
type Define = fn(clap::Command) -> clap::Command;

/// The commands apart from those of `Control`, which are small.
const COMMANDS: [(&str, Define); 19] = [
    ("format", FormatArgs::augment_args),
    ("open", OpenArgs::augment_args),
    ("info", InfoArgs::augment_args),
    ("header", HeaderArgs::augment_args),
    ("keyslot", KeyslotArgs::augment_args),
    ("reencrypt", ReencryptArgs::augment_args),
    ("check", CheckArgs::augment_args),
    ("read", ReadArgs::augment_args),
    ("write", WriteArgs::augment_args),
    ("table", TableArgs::augment_args),
    ("token", TokenCommandArgs::augment_args),
    ("ecryptfs", EcryptfsArgs::augment_args),
    ("integrity", IntegrityCommandArgs::augment_args),
    ("dm", DmArgs::augment_args),
    ("up", UpArgs::augment_args),
    ("down", DownArgs::augment_args),
    ("ps", PsArgs::augment_args),
    ("completions", CompletionsArgs::augment_args),
    ("man", ManArgs::augment_args),
];

impl Cli {
    /// Parses the words of a command line, of which the first is the program's name.
    ///
    /// The definition of all commands takes longer than most of a command's work, so the one that
    /// is called is tried alone. Where that does not parse, all of them are defined, and what they
    /// say, help or an error, is the answer.
    pub(crate) fn of_words<W: Into<OsString>>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        Self::of_one_command(&words).map_or_else(|| Self::try_parse_from(words), Ok)
    }

    fn of_one_command(words: &[OsString]) -> Option<Self> {
        // No option before it takes a value.
        let name = words.iter().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"))?;
        let mut matches = alone(name.to_str()?)?.try_get_matches_from(words).ok()?;
        Self::from_arg_matches_mut(&mut matches).ok()
    }
}

/// Returns the program's definition with this command only, or with those of `Control`.
fn alone(name: &str) -> Option<clap::Command> {
    let program = Verbosity::augment_args(clap::Command::new("underseal")).subcommand_required(true);
    if Control::has_subcommand(name) {
        return Some(Control::augment_subcommands(program));
    }
    let (name, define) = COMMANDS.into_iter().find(|(command, _)| *command == name)?;
    Some(program.subcommand(define(clap::Command::new(name))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn a_command_alone_is_what_it_is_among_all() {
        fn arguments(of: &clap::Command) -> Vec<String> {
            let own = of.get_arguments().map(|argument| format!("{argument:?}"));
            let groups = of.get_groups().map(|group| format!("{group:?}"));
            let inner = of.get_subcommands().flat_map(arguments);
            own.chain(groups).chain(inner).collect()
        }
        for among_all in
            Cli::command().get_subcommands().filter(|command| command.get_name() != "desktop-helper")
        {
            let name = among_all.get_name();
            let program = alone(name).unwrap_or_else(|| panic!("{name} is not in the list"));
            let alone = program.find_subcommand(name).unwrap();
            assert_eq!(arguments(alone), arguments(among_all), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_all_commands_in_mind() {
        for words in [&["underseal", "read"][..], &["underseal", "-v", "raed"], &["underseal"]] {
            let said = Cli::of_words(words).unwrap_err().to_string();
            assert_eq!(said, Cli::try_parse_from(words).unwrap_err().to_string());
        }
    }
}
