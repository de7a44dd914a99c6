//! The options of `underseal open` that a volume's file may have, as the command line defines them:
//! a new option of the command is a key of the files, a word of the list and in the schema.

use std::any::TypeId;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Arg, ArgAction, Command, CommandFactory};
use underseal_formats::tcrypt::Pim;

use crate::cli::Cli;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// true or false: an option of `open` without a value.
    Flag,
    /// Text.
    Text,
    /// True, or text: an option of `open` whose value may be left out.
    OptionalText,
    /// Text; the option may be repeated.
    Texts,
    /// A number.
    Number,
    /// A number of bytes, or text with a unit.
    Size,
    /// An absolute path.
    Path,
    /// Absolute paths: the option may be repeated.
    Paths,
    /// Devices, each as the volume's own: the option may be repeated.
    Devices,
    /// A mode: text, or an octal number.
    Mode,
    /// True for the volume's own socket, or NBD endpoints: the option may be repeated.
    Places,
}

/// Options of `open` that no file has: a file's name is the volume's, `up` decides about process
/// and passphrase, no program is run for a key, `key-file` is a key of the file's own, and
/// cryptsetup's parts of names are for its own actions.
const NOT_IN_FILES: [&str; 12] = [
    "chain-part",
    "name",
    "daemon",
    "desktop",
    "key-file",
    "pid-file",
    "passphrase-fd",
    "passphrase-command",
    "help",
    "quiet",
    "verbose",
    "version",
];

static COMMAND: LazyLock<Command> = LazyLock::new(|| {
    let mut command = Cli::command();
    command.build();
    command.find_subcommand("open").cloned().unwrap_or_default()
});

/// Names and types of the options that a volume's file may have, in the order of their names.
pub(super) static OPTIONS: LazyLock<Vec<(&'static str, Kind)>> = LazyLock::new(|| {
    let named = COMMAND.get_arguments().filter_map(|arg| Some((arg.get_long()?, kind(arg))));
    let mut options: Vec<_> = named.filter(|(name, _)| !NOT_IN_FILES.contains(name)).collect();
    options.sort_by_key(|(name, _)| *name);
    options
});

/// The name, as the command line has it, and the type of an option.
pub(super) fn find(name: &str) -> Option<(&'static str, Kind)> {
    OPTIONS.iter().copied().find(|(known, _)| *known == name)
}

/// The command line's definition of an option of `open`.
#[cfg(test)]
pub(super) fn definition(name: &str) -> Option<&'static Arg> {
    COMMAND.get_arguments().find(|arg| arg.get_long() == Some(name))
}

fn kind(arg: &Arg) -> Kind {
    let value = arg.get_value_parser().type_id();
    let is_named = |name| arg.get_value_names().is_some_and(|names| names.iter().any(|of| of == name));
    let numbers = [
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<Pim>(),
    ];
    match arg.get_action() {
        ArgAction::SetTrue => Kind::Flag,
        ArgAction::Append if is_named("WHERE") => Kind::Places,
        ArgAction::Append if is_named("IMAGE") => Kind::Devices,
        ArgAction::Append if is_named("FILE") => Kind::Paths,
        ArgAction::Append => Kind::Texts,
        _ if arg.get_num_args().is_some_and(|number| number.min_values() == 0) => Kind::OptionalText,
        _ if value == TypeId::of::<PathBuf>() => Kind::Path,
        _ if is_named("MODE") => Kind::Mode,
        // Of a sector's size, which is a `u32`, no units are read.
        _ if value == TypeId::of::<u64>() && (is_named("BYTES") || is_named("SIZE")) => Kind::Size,
        _ if numbers.iter().any(|of| value == *of) => Kind::Number,
        _ => Kind::Text,
    }
}
