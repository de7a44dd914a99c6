//! `underseal header repair`: the copies of the header, then an unfinished reencryption.

use std::path::PathBuf;

use clap::Args;
use underseal_cipher::Key;
use underseal_device::OpenOptions;
use underseal_volume::luks2::{Stage, Status};
use underseal_volume::{ErrorKind, Header, UnlockOptions, Unlocked, VolumeKey, repair as repair_header};

use super::{EXAMPLES, agreed, say, to_change};
use crate::cli::{HeaderPathArgs, SecretArgs, TrustArgs};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::Lower;
use crate::output::printable;
use crate::passphrase::{Secret, ask_hidden, first_line_of_file, secret_file, tell, terminal_is_there};
use crate::persona::persona;
use crate::reencryption::{Kept, Place, Where, mended, size, status_of, stood};

/// Makes the header good: LUKS2's bad copy from the other, LUKS1's free keyslots, a reencryption
/// that was cut off
///
/// Of a reencryption under way, with a passphrase: metadata without a digest are signed (cryptsetup
/// before 2.4.3 wrote none), a step that was cut off is made good, and the metadata of all others
/// are checked. The volume must be closed for that. The command fails where the header then still
/// asks for what this program does not know.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct HeaderRepairArgs {
    #[command(flatten)]
    pub(crate) of: HeaderPathArgs,
    /// Do not ask before something else than a header is overwritten, or metadata are signed
    #[arg(long)]
    pub(crate) force: bool,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    /// The first line of this file is the passphrase of the other key that a volume has while it is
    /// reencrypted, where no passphrase opens both
    #[arg(long, value_name = "FILE")]
    pub(crate) other_passphrase_file: Option<PathBuf>,
    /// All bytes of this file are
    #[arg(long, value_name = "FILE", conflicts_with = "other_passphrase_file")]
    pub(crate) other_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
}

/// The warning before signing: the header is trusted afterwards.
const UNSIGNED: &str = "nothing vouches for what the header says of the reencryption under way: cryptsetup before \
                        2.4.3 began it, or somebody took the digest out. It will be signed as it stands.";

pub(super) fn repair(args: &HeaderRepairArgs, quiet: bool) -> Result<()> {
    let path = args.of.path();
    let on = to_change(&args.of)?;
    let done = match repair_header(&*on, args.force) {
        Err(e) if e.kind() == ErrorKind::Ambiguous => {
            agreed(
                args.force,
                &args.of,
                &[format!("{e}. It will be overwritten with the volume's header.")],
            )?;
            repair_header(&*on, true)
        }
        done => done,
    };
    let done = done.map_err(|e| e.in_file(path))?;
    done.iter().try_for_each(|what| say(quiet, &args.of, &printable(what)))?;
    let header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    let is_unsigned = matches!(&header, Header::Luks2(header) if header.has_unsigned_reencryption());
    // A header whose requirements or reencryption metadata stop every activation is not repaired.
    let under_way = || status_of(&header).map_err(|e| e.within(path.display()));
    if is_unsigned || under_way()?.is_some() {
        return reencryption(args, is_unsigned, quiet);
    }
    if done.is_empty() { say(quiet, &args.of, "the header needs no repair") } else { Ok(()) }
}

/// Signs the metadata of a reencryption that lack a digest, recovers an interrupted step, and
/// checks that the keys confirm the metadata. No other program may use the volume.
fn reencryption(args: &HeaderRepairArgs, is_unsigned: bool, quiet: bool) -> Result<()> {
    let (path, image) = (args.of.path(), args.of.image.as_path());
    if is_unsigned {
        agreed(args.force, &args.of, &[UNSIGNED.into()])?;
    }
    let lower = Lower::open(image, OpenOptions::default())?;
    let apart = args.of.header.as_ref().map(|path| Where::open(path, false)).transpose()?;
    let place = Place::new(lower.again(), Kept::Header { apart, allow_null: false });
    let (on, data) = place.bytes()?;
    let mut header = Header::read(&*on).map_err(|e| e.in_file(path))?;
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(path))?;
    let options =
        UnlockOptions { slot: args.key_slot, limits: args.trust.limits(), ..UnlockOptions::default() };
    let open = |passphrase: &Key, options: &UnlockOptions| {
        Result::Ok(header.unlock(&*on, passphrase, options).map_err(|e| e.in_file(path))?)
    };
    let secret = Secret::new(args.secret.source(), image);
    let first = secret.try_with(|passphrase| open(passphrase, &options))?.key;
    let key = match other_key(args, &header, &first, secret.is_asked(), open)? {
        Some(other) => first.with(other),
        None => first,
    };
    if let Header::Luks2(header) = &mut header
        && is_unsigned
    {
        place.sign(header, (&*on, size(&data)?), &key).map_err(|e| e.in_file(path))?;
        say(quiet, &args.of, "the reencryption's metadata were signed")?;
    }
    let stage = |status: Option<Status>| status.map(|status| status.stage);
    let before = stage(status_of(&header).map_err(|e| e.within(path.display()))?);
    let header = mended(header, &*on, &key, (&place, &data)).map_err(|e| e.within(path.display()))?;
    let after = stage(status_of(&header).map_err(|e| e.within(path.display()))?);
    if before == Some(Stage::Hot) {
        say(quiet, &args.of, "a step of the reencryption that was cut off was made good")?;
    }
    if after.is_none() {
        return say(quiet, &args.of, "the reencryption has ended");
    }
    let checked = stood(&header, &*on, &key, (&place, size(&data)?));
    checked.map_err(|e| e.within(path.display()))?;
    say(
        quiet,
        &args.of,
        "the keys vouch for the reencryption under way; underseal reencrypt --resume-only resumes it",
    )
}

/// Returns the second key of a volume whose two keys no passphrase opens both: by the options, or
/// by a passphrase that is typed, as often as the persona permits. `None` where the first
/// passphrase opened both. Fails with `NoKey` without the second passphrase.
fn other_key(
    args: &HeaderRepairArgs,
    header: &Header,
    first: &VolumeKey,
    is_asked: bool,
    open: impl Fn(&Key, &UnlockOptions) -> Result<Unlocked>,
) -> Result<Option<VolumeKey>> {
    let Header::Luks2(luks2) = header else { return Ok(None) };
    let slots = luks2.keyslots_of_lacking_key(first);
    let options = UnlockOptions { unbound: true, limits: args.trust.limits(), ..UnlockOptions::default() };
    let named = args.other_passphrase_file.as_deref().map(first_line_of_file);
    let named = named.or_else(|| args.other_key_file.as_deref().map(|path| secret_file(path, 0, None)));
    if slots.is_empty() {
        return Ok(None);
    }
    if let Some(passphrase) = named.transpose()? {
        return Ok(Some(open(&passphrase, &options)?.key));
    }
    let list = slots.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ");
    let lacking = || {
        let what = format!(
            "{}: the passphrase opens one of the two keys that the volume has while it is reencrypted; keyslot {list} has \
             the other",
            args.of.path().display()
        );
        Error::new(Exit::NoKey, what).with_remedy("--other-passphrase-file FILE or --other-key-file FILE")
    };
    if !is_asked || !terminal_is_there() {
        return Err(lacking());
    }
    let question = format!("Passphrase of the volume's other key (keyslot {list}): ");
    let mut tries = persona().tries;
    loop {
        tries -= 1;
        let passphrase = ask_hidden(&question)?;
        let opened = slots.iter().find_map(|slot| {
            match open(&passphrase, &UnlockOptions { slot: Some(*slot), ..options.clone() }) {
                Err(e) if e.exit() == Exit::NoKey => None,
                opened => Some(opened),
            }
        });
        match opened {
            Some(opened) => return Ok(Some(opened?.key)),
            None if tries > 0 => tell(persona().wrong),
            None => return Err(lacking()),
        }
    }
}
