//! Passphrases that are typed where a key file is named: "-" is stdin, and a terminal there is
//! asked as without a key file, without echo.

use std::io::{IsTerminal, stdin};

use super::Words;
use super::args::Args;
use super::failure::{Failure, Result};

/// The actions whose last word may be a key file.
const NAMED: [&str; 4] = ["luksFormat", "luksAddKey", "luksRemoveKey", "luksChangeKey"];

/// Removes key files that are a terminal on stdin. Fails when a passphrase that is typed would
/// begin at an offset, as cryptsetup refuses it.
pub(super) fn asks(args: &mut Args, words: &mut Words<'_>) -> Result<()> {
    if !stdin().is_terminal() || args.is(&["tcrypt", "loopaes"]) {
        return Ok(());
    }
    let is_stdin = |path: &std::path::PathBuf| path.as_os_str() == "-";
    args.key_file.retain(|path| !is_stdin(path));
    args.new_keyfile.take_if(|path| is_stdin(path));
    if NAMED.contains(&words.verb.name) && words.words.len() > 1 && words.words.last().is_some_and(is_stdin) {
        words.words.pop();
    }
    let is_typed = args.key_file.is_empty() && args.volume_key_file.is_none() && words.get(1).is_none();
    if is_typed && args.keyfile_offset.is_some() {
        return Err(Failure::wrong("Cannot use offset with terminal input."));
    }
    Ok(())
}
