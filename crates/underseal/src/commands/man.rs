//! `underseal man`: one page for each command.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, ManArgs};
use crate::error::{Error, Result};
use crate::exit;

/// What no option's help has room for; roff by hand.
const PASSPHRASES: &str = include_str!("man/passphrases.roff");
const FORMATS: &str = include_str!("man/formats.roff");
const SERVING: &str = include_str!("man/serving.roff");

pub(super) fn run(args: &ManArgs) -> Result<()> {
    let top = Cli::command();
    let pages: Vec<_> =
        top.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name().to_owned()).collect();
    write(&args.directory, "underseal", &page(&top, None, &pages))?;
    for name in &pages {
        let Some(command) = top.find_subcommand(name) else { continue };
        write(&args.directory, &format!("underseal-{name}"), &page(command, Some(name), &pages))?;
    }
    Ok(())
}

fn write(directory: &Path, name: &str, page: &io::Result<Vec<u8>>) -> Result<()> {
    let path = directory.join(format!("{name}.1"));
    match page {
        Ok(page) => fs::write(&path, page).map_err(|e| Error::io(&path, "cannot write", e)),
        Err(e) => Err(Error::usage("cannot make a manual page").because(e)),
    }
}

/// A page: what clap knows, then examples, what was written by hand, statuses, and where to read on.
fn page(command: &Command, name: Option<&str>, pages: &[String]) -> io::Result<Vec<u8>> {
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let title = name.map_or("underseal".to_owned(), |name| format!("underseal-{name}"));
    let bin = name.map_or("underseal".to_owned(), |name| format!("underseal {name}"));
    // "After" text is examples, which get a section of their own.
    let mut command = command.clone().name(title.clone()).bin_name(bin).after_help("").after_long_help("");
    command.build();
    let man = Man::new(command).manual("Underseal").title(title);
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if name.is_none() {
        man.render_subcommands_section(&mut out)?;
    }
    man.render_options_section(&mut out)?;
    let by_hand = match name {
        None => vec![FORMATS, PASSPHRASES],
        Some("format") => vec![FORMATS, PASSPHRASES],
        Some("open") => vec![SERVING, PASSPHRASES],
        Some("read" | "write") => vec![PASSPHRASES],
        Some(_) => vec![],
    };
    out.extend(by_hand.concat().bytes());
    out.extend(section("EXAMPLES", &verbatim(examples.trim_start_matches("Examples:\n"))).bytes());
    let statuses: String =
        exit::STATUSES.iter().map(|(code, text)| format!(".TP\n{code}\n{text}\n")).collect();
    out.extend(section("EXIT STATUS", &statuses).bytes());
    let others = pages.iter().filter(|page| Some(page.as_str()) != name);
    let others: String = others.map(|page| format!(".BR underseal\\-{page} (1),\n")).collect();
    let up = if name.is_some() { ".BR underseal (1),\n" } else { "" };
    out.extend(section("SEE ALSO", &format!("{up}{others}.BR cryptsetup (8),\n.BR nbdinfo (1)\n")).bytes());
    Ok(out)
}

fn section(name: &str, body: &str) -> String {
    format!(".SH {name}\n{body}")
}

/// Text whose lines stay as they are.
fn verbatim(text: &str) -> String {
    let line = |line: &str| {
        let escaped = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins so would be a request.
        if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}\n") } else { format!("{escaped}\n") }
    };
    format!(".nf\n{}.fi\n", text.lines().map(line).collect::<String>())
}
