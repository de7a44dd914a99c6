//! What a command says.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::exit::Exit;

/// Writes text to stdout, all of it or an error: a pipe that was closed is one.
///
/// # Errors
/// `Failed`.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(Exit::Failed, "cannot write to stdout").because(&e))
}

/// The version of all that is printed with `--json`. Fields are added without another version; it
/// is raised when one changes.
const JSON_VERSION: u32 = 1;

/// Something for programs: its fields, and the version of their meaning.
#[derive(Serialize)]
pub(crate) struct Versioned<T> {
    json_version: u32,
    #[serde(flatten)]
    value: T,
}

impl<T: Serialize> Versioned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { json_version: JSON_VERSION, value }
    }
}

/// Writes one JSON object to stdout, with its version.
///
/// # Errors
/// `Failed`.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&json(&Versioned::new(value))?)
}

/// JSON as people can read it too.
///
/// # Errors
/// None in practice: what is printed has a JSON form.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    Ok(text.map_err(|e| Error::new(Exit::Failed, "cannot be said in JSON").because(&e))? + "\n")
}

/// Text of somebody else's making as a harmless piece of a line: what moves a terminal's cursor,
/// ends the line or turns the direction of writing shows as `?`.
pub(crate) fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(|c: char| c.is_control() || turns(c), "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_steers_a_terminal_is_replaced() {
        for (text, shown) in [
            ("größe 'a\\b'.img", "größe 'a\\b'.img"),
            ("a\nb", "a?b"),
            ("\x1b[31m\x07", "?[31m?"),
            ("\u{9b}2J", "?2J"),
            ("\u{202e}gmi", "?gmi"),
            ("e\u{301}\u{200d}", "e\u{301}\u{200d}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }
}
