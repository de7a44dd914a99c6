//! `underseal man`: one page for each command.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::Cli;
use crate::error::{Error, Result};
use crate::exit;

/// Texts that are too long for an option's help; written in roff.
const PASSPHRASES: &str = include_str!("man/passphrases.roff");
const FORMATS: &str = include_str!("man/formats.roff");
const TABLES: &str = include_str!("man/tables.roff");
const SERVING: &str = include_str!("man/serving.roff");
const CONTROL: &str = include_str!("man/control.roff");
const HOST: &str = include_str!("man/host.roff");
const STATUS: &str = include_str!("man/status.roff");
/// The manual page of the persona `cryptsetup`.
const FRONT: &str = include_str!("man/underseal-cryptsetup.7");

/// Writes the manual pages to a directory.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct ManArgs {
    /// The directory; it must exist
    pub(crate) directory: PathBuf,
}

pub(super) fn run(args: &ManArgs) -> Result<()> {
    let mut top = Cli::command();
    // This gives every command its whole name: "underseal table check".
    top.build();
    let pages = pages(&top);
    for (command, path) in &pages {
        let name = name(path);
        let others: Vec<_> = pages.iter().map(|(_, path)| self::name(path)).filter(|n| *n != name).collect();
        write(&args.directory, &name, &page(command, path, &others))?;
    }
    let path = args.directory.join("underseal-cryptsetup.7");
    fs::write(&path, FRONT).map_err(|e| Error::io(&path, "cannot write", e))
}

/// Returns all commands with their words, parents first.
fn pages(command: &Command) -> Vec<(&Command, Vec<&str>)> {
    let mut found = vec![(command, vec![command.get_name()])];
    for child in command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help") {
        found.extend(pages(child).into_iter().map(|(page, mut words)| {
            words.insert(0, command.get_name());
            (page, words)
        }));
    }
    found
}

/// Returns a command's name in manual pages: "underseal-bench-cipher".
fn name(words: &[&str]) -> String {
    words.join("-")
}

fn write(directory: &Path, name: &str, page: &io::Result<Vec<u8>>) -> Result<()> {
    let path = directory.join(format!("{name}.1"));
    match page {
        Ok(page) => fs::write(&path, page).map_err(|e| Error::io(&path, "cannot write", e)),
        Err(e) => Err(Error::usage("cannot make a manual page").because(e)),
    }
}

/// Makes a page: clap's text, then the written text, examples, statuses, and references.
fn page(command: &Command, words: &[&str], others: &[String]) -> io::Result<Vec<u8>> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (details, examples) = after.split_once("Examples:\n").unwrap_or((&after, ""));
    let title = name(words);
    // The text after the help has details and examples, which get sections of their own.
    let command = command.clone().name(title.clone()).after_help("").after_long_help("");
    let has_commands = command.has_subcommands();
    let man = Man::new(command.bin_name(words.join(" "))).manual("Underseal").title(title);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if has_commands {
        man.render_subcommands_section(&mut out)?;
    }
    man.render_options_section(&mut out)?;
    let by_hand = match words[1..] {
        [] | ["format"] => vec![FORMATS, PASSPHRASES],
        ["open"] => vec![SERVING, CONTROL, PASSPHRASES],
        ["integrity", "open"] => vec![SERVING, CONTROL],
        ["table", "open"] => vec![TABLES, SERVING, CONTROL],
        ["table", ..] => vec![TABLES],
        ["read" | "write"] | ["keyslot", ..] | ["reencrypt"] => vec![PASSPHRASES],
        ["up" | "down" | "ps"] => vec![HOST],
        ["list" | "status"] => vec![STATUS, CONTROL],
        ["policy" | "suspend" | "resume" | "resize" | "message" | "close" | "top"] => vec![CONTROL],
        _ => vec![],
    };
    out.extend(by_hand.concat().bytes());
    for (name, text) in [("DETAILS", details), ("EXAMPLES", examples)] {
        if !text.is_empty() {
            out.extend(section(name, &verbatim(text.trim_end())).bytes());
        }
    }
    let statuses: String =
        exit::STATUSES.iter().map(|(code, text)| format!(".TP\n{code}\n{text}\n")).collect();
    out.extend(section("EXIT STATUS", &statuses).bytes());
    let others: String =
        others.iter().map(|name| format!(".BR {} (1),\n", name.replace('-', "\\-"))).collect();
    out.extend(section("SEE ALSO", &format!("{others}.BR cryptsetup (8),\n.BR nbdinfo (1)\n")).bytes());
    Ok(out)
}

fn section(name: &str, body: &str) -> String {
    format!(".SH {name}\n{body}")
}

/// Escapes text whose lines must stay as they are.
fn verbatim(text: &str) -> String {
    let line = |line: &str| {
        let escaped = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with one of these would be a roff request.
        if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}\n") } else { format!("{escaped}\n") }
    };
    format!(".nf\n{}.fi\n", text.lines().map(line).collect::<String>())
}
