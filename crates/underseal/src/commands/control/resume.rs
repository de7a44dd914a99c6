//! `underseal resume`, also for a volume whose key was wiped.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use underseal_cipher::Key;
use underseal_export::control::status::{Format, KeyState, Opened};
use underseal_export::control::{Name, Request, Status};
use underseal_volume::plain::PassphraseHash;
use underseal_volume::{Header, UnlockOptions};

use super::message::{PROMPT, as_in_a_table};
use super::{NameArg, PATIENCE, ask, ask_status, done, finished, without_record};
use crate::cli::{SecretArgs, TokenArgs, TrustArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::{is_remote, open_header};
use crate::part::window;
use crate::passphrase::{Secret, ask_hidden, terminal_is_there};
use crate::reencryption::Bytes;
use crate::tokens;
use crate::volume::plain_key;

/// Resumes a suspended volume; asks for its passphrase if its key is wiped.
///
/// The header is read again, where the volume was opened from: a passphrase that was added since is
/// good. A plain volume takes its passphrase or key file as it was opened, a table's its key as the
/// table says it (hex digits, or :SIZE:TYPE:NAME). Whether that is the right one nothing can tell
/// for those two: wrong keys read noise.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal resume disk.img
  underseal resume disk.img --passphrase-file passphrase
  underseal resume disk.img --header backup.hdr")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// Read the LUKS header from this file; by default from where the volume was opened
    #[arg(long, value_name = "FILE")]
    pub(crate) header: Option<PathBuf>,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
}

pub(super) fn run(args: &ResumeArgs) -> Result<()> {
    let name = &args.volume.name;
    let status = ask_status(name)?;
    let secret = Secret::new(args.secret.source(), Path::new(&status.image));
    // Without a terminal to ask on, the server's refusal says that a key is needed.
    let nobody = secret.is_asked() && !terminal_is_there() && !args.tokens.are_named();
    if status.key == KeyState::Set || nobody {
        return done(name, &Request::Resume);
    }
    let Some(opened) = &status.opened else {
        return Err(without_record(name).with_remedy("`underseal message NAME key set`"));
    };
    let key = match opened.format {
        Format::Luks1 | Format::Luks2 => of_header(args, &status, opened, &secret)?,
        Format::Plain => plain(name, opened, &secret)?,
        Format::Table if secret.is_asked() => as_in_a_table(&ask_hidden(PROMPT)?)?,
        Format::Table => as_in_a_table(&secret.get()?)?,
        // A volume without encryption has no key that could be wiped.
        Format::Integrity => return done(name, &Request::Resume),
        Format::Tcrypt | Format::Bitlk | Format::Fvault2 | Format::Loopaes => {
            let what = format!("{name}: a volume of another system gets its key when it is opened");
            let remedy = format!("`underseal close {name}`, and `underseal open` again");
            return Err(Error::new(Exit::Unsupported, what).with_remedy(remedy));
        }
    };
    let request = Request::SetKey { size: key.len(), resume: true };
    finished(name, ask(name, &request, Some(&key), PATIENCE)?)?;
    if matches!(opened.format, Format::Plain | Format::Table) {
        log::warn!("{name}: it has no header, so only its data can tell whether this is its key");
    }
    Ok(())
}

/// Returns the volume key that a passphrase opens in the present header; the server checks whether
/// it is the volume's.
fn of_header(args: &ResumeArgs, status: &Status, opened: &Opened, secret: &Secret<'_>) -> Result<Key> {
    let known = opened.header.as_ref().unwrap_or(&status.image);
    let path = args.header.clone().unwrap_or_else(|| PathBuf::from(known));
    if !is_remote(&path) && !path.exists() {
        let what = format!(
            "{}: the header that {} was opened with is not there any more",
            path.display(),
            args.volume.name
        );
        return Err(Error::new(Exit::Failed, what)
            .with_remedy("--header with where it is now, or with a backup of it"));
    }
    let mut on = open_header(&path, true)?;
    if args.header.is_none() && opened.header_offset > 0 {
        on = volume_in(on, opened.header_offset).map_err(|e| Error::io(&path, "cannot be measured", e))?;
    }
    let header = Header::read(&*on).map_err(|e| e.in_file(&path))?;
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(&path))?;
    let options =
        UnlockOptions { slot: args.key_slot, limits: args.trust.limits(), ..UnlockOptions::default() };
    let unlocked = match tokens::unlock(&header, &*on, (&args.tokens, secret), &path, &options)? {
        Some((unlocked, _)) => unlocked,
        None => {
            secret.try_with(|key| Ok(header.unlock(&*on, key, &options).map_err(|e| e.in_file(&path))?))?
        }
    };
    log::info!("{}: keyslot {} opens", path.display(), unlocked.slot);
    Ok(unlocked.key.into_key())
}

/// Returns the image from the start of the volume's partition on.
fn volume_in(image: Bytes, offset: u64) -> io::Result<Bytes> {
    let end = image.size()?;
    Ok(window(&image, Some(&(offset.min(end)..end))))
}

fn plain(name: &Name, opened: &Opened, secret: &Secret<'_>) -> Result<Key> {
    let no_size =
        || Error::new(Exit::Unsupported, format!("{name}: its server does not tell its key's length"));
    let hash = match &opened.hash {
        Some(hash) => hash.parse()?,
        None => PassphraseHash::default(),
    };
    plain_key(secret, &hash, opened.key_size.ok_or_else(no_size)?)
}
