//! The output of a command.

use std::io::{self, Write};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::exit::Exit;

/// Writes the whole text to stdout. Fails with `Failed`, also for a closed pipe.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Like [`print()`], for text of any encoding.
pub(crate) fn print_bytes(text: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text)
        .and_then(|()| stdout.flush())
        .map_err(|e| Error::new(Exit::Failed, "cannot write to stdout").because(&e))
}

/// The version of all `--json` output. Added fields do not change it; it is raised when a field
/// changes.
const JSON_VERSION: u32 = 1;

/// A value for programs: its fields, and the version of their meaning.
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

/// Writes one JSON object to stdout, with its version. Fails with `Failed`.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&json(&Versioned::new(value))?)
}

/// Formats a value as indented JSON. Fails for values without a JSON form, which are not printed.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    Ok(text.map_err(|e| Error::new(Exit::Failed, "cannot be said in JSON").because(&e))? + "\n")
}

/// Makes untrusted text a harmless part of a line: characters that move a terminal's cursor, end
/// the line or change the direction of writing become `?`.
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
