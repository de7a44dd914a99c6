//! `underseal header dump-key`.

use std::io::{self, IsTerminal, stdout};
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::io::{Errno, write};
use underseal_cipher::Key;
use underseal_volume::{Header, UnlockOptions};

use super::EXAMPLES;
use super::backup::new_file;
use crate::cli::{HeaderPathArgs, SecretArgs, TrustArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::open_header;
use crate::passphrase::Secret;

/// Prints the volume key: it decrypts the volume, whatever becomes of the passphrases
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderDumpKeyArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// The file to make, for you alone and read only, with the key's bytes (- is stdout, where that
    /// is no terminal); else they are shown in hex on the terminal
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

pub(super) fn dump(args: &HeaderDumpKeyArgs) -> Result<()> {
    let path = args.of.path();
    let (is_stdout, is_terminal) = (args.output.as_deref().is_some_and(is_dash), stdout().is_terminal());
    if args.output.is_none() && !is_terminal {
        let what = "the volume key is shown on a terminal only";
        let remedy = "-o FILE, which is made for you alone; -o - for its bytes on stdout";
        return Err(Error::usage(what).with_remedy(remedy));
    }
    if is_stdout && is_terminal {
        let what = "the volume key's bytes would go to the terminal";
        return Err(Error::usage(what).with_remedy("without -o it is shown in hex"));
    }
    let on = open_header(path, true)?;
    let header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(path))?;
    let options = UnlockOptions { slot: args.key_slot, limits: args.trust.limits(), ..Default::default() };
    let secret = Secret::new(args.secret.source(), &args.of.image);
    let unlocked =
        secret.try_with(|key| Ok(header.unlock(&*on, key, &options).map_err(|e| e.in_file(path))?))?;
    log::warn!(
        "{}: whoever has this key reads the volume, whatever becomes of its passphrases",
        path.display()
    );
    let key = unlocked.key.key();
    match &args.output {
        Some(_) if is_stdout => write_secret(key.as_bytes()),
        Some(file) => new_file(file, key.as_bytes()),
        None => show(key),
    }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Shows the key in hex, from locked memory straight to the terminal.
fn show(key: &Key) -> Result<()> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Key::zeroed(2 * key.len() + 1)?;
    let (last, pairs) =
        text.as_mut_bytes().split_last_mut().ok_or_else(|| Error::usage("there is no key"))?;
    for (pair, byte) in pairs.chunks_exact_mut(2).zip(key.as_bytes()) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    *last = b'\n';
    write_secret(text.as_bytes())
}

/// Writes to stdout without this program's buffers, which are not wiped. Fails with `Failed`.
pub(crate) fn write_secret(mut left: &[u8]) -> Result<()> {
    while !left.is_empty() {
        match write(stdout(), left) {
            Ok(written) => left = &left[written..],
            Err(Errno::INTR) => {}
            Err(e) => {
                return Err(Error::new(Exit::Failed, "cannot write to stdout").because(&io::Error::from(e)));
            }
        }
    }
    Ok(())
}
