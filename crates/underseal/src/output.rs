//! What a command says.

use std::io::{self, Write};

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

/// Text of somebody else's making as a harmless piece of a line: what moves a terminal's cursor, ends the line or turns the
/// direction of writing shows as `?`.
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
