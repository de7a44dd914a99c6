//! What a command says on stdout.

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
