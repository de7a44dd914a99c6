//! `underseal message`.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::Args;
use underseal_cipher::Key;
use underseal_export::control::Request;
use underseal_volume::table::TableKey;

use super::{NameArg, PATIENCE, ask, done, finished};
use crate::error::{Error, Result};
use crate::passphrase::{ask_hidden, first_line_of_descriptor, first_line_of_file};

/// Sends a suspended volume one of dm-crypt's messages: `key wipe` or `key set`.
///
/// After `key wipe` the volume's key is nowhere in memory, and the volume cannot be resumed before
/// `key set`. A key that is set must have the size of the old one, and of a LUKS volume be the
/// right one. Of plain volumes and tables nothing can tell that: wrong keys read noise.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal suspend disk.img
  underseal message disk.img key wipe
  underseal message disk.img key set --key-file volume.hex
  underseal message disk.img key set --key-fd 3 3< volume.hex
  echo :64:user:disk | underseal message disk.img key set
  underseal resume disk.img")]
pub(crate) struct MessageArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// The message's words. A key is none of them: other users can read arguments
    #[arg(required = true, value_name = "WORD")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

/// Where the key of `key set` comes from; stdin, or a terminal that does not show it, unless one of
/// these is given.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Key (from stdin unless one of these is given): hex digits, or :SIZE:TYPE:NAME of the keyring"
)]
pub(crate) struct KeyArgs {
    /// The first line of this file
    #[arg(long, value_name = "FILE", group = "from")]
    pub(crate) key_file: Option<PathBuf>,
    /// The first line from this open descriptor
    #[arg(long, value_name = "N", group = "from")]
    pub(crate) key_fd: Option<u32>,
}

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
