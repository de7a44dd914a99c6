//! `underseal message`.

use std::io::IsTerminal;

use underseal_cipher::Key;
use underseal_export::control::Request;
use underseal_volume::table::TableKey;

use super::{PATIENCE, ask, done, finished};
use crate::cli::{KeyArgs, MessageArgs};
use crate::error::{Error, Result};
use crate::passphrase::{ask_hidden, first_line_of_descriptor, first_line_of_file};

pub(super) fn run(args: &MessageArgs) -> Result<()> {
    let name = &args.volume.name;
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    if let ["key", "set", rest @ ..] = &words[..] {
        if !rest.is_empty() {
            let what = "a key is never an argument: other users could read it there, and may have";
            return Err(
                Error::usage(what).with_remedy("`key set` with the key on stdin, --key-file or --key-fd")
            );
        }
        let key = key(&args.key)?;
        return finished(
            name,
            ask(name, &Request::SetKey { size: key.len(), resume: false }, Some(&key), PATIENCE)?,
        );
    }
    done(name, &Request::Message(words.join(" ")))
}

/// Reads a key in a table's form: hex digits, `-`, or a key of the caller's keyrings.
fn key(args: &KeyArgs) -> Result<Key> {
    let word = if let Some(path) = &args.key_file {
        first_line_of_file(path)?
    } else if let Some(number) = args.key_fd {
        first_line_of_descriptor(number)?
    } else if std::io::stdin().is_terminal() {
        ask_hidden(PROMPT)?
    } else {
        first_line_of_descriptor(0)?
    };
    as_in_a_table(&word)
}

/// The prompt for a key.
pub(super) const PROMPT: &str = "Key in hex, or :SIZE:TYPE:NAME: ";

/// Parses a key as a table does. Fails with `Usage` for malformed text, and when the keyring has no
/// key of the name.
pub(super) fn as_in_a_table(word: &Key) -> Result<Key> {
    let bytes = word.as_bytes();
    let text = std::str::from_utf8(bytes.trim_ascii()).map_err(|_| Error::usage("the key is no text"))?;
    Ok(TableKey::parse(text)?.bytes()?)
}
