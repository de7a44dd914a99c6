//! `underseal header repair`: the copies of the header, then an unfinished reencryption.

use underseal_device::OpenOptions;
use underseal_volume::luks2::{Stage, Status};
use underseal_volume::{ErrorKind, Header, UnlockOptions, repair as repair_header};

use super::{agreed, say, to_change};
use crate::cli::HeaderRepairArgs;
use crate::error::Result;
use crate::lower::Lower;
use crate::output::printable;
use crate::passphrase::Secret;
use crate::reencryption::{Kept, Place, Where, mended, size, status_of, stood};

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
    let unlocked = Secret::new(args.secret.source(), image)
        .try_with(|key| Ok(header.unlock(&*on, key, &options).map_err(|e| e.in_file(path))?))?;
    if let Header::Luks2(header) = &mut header
        && is_unsigned
    {
        place.sign(header, (&*on, size(&data)?), &unlocked.key).map_err(|e| e.in_file(path))?;
        say(quiet, &args.of, "the reencryption's metadata were signed")?;
    }
    let stage = |status: Option<Status>| status.map(|status| status.stage);
    let before = stage(status_of(&header).map_err(|e| e.within(path.display()))?);
    let header =
        mended(header, &*on, &unlocked.key, (&place, &data)).map_err(|e| e.within(path.display()))?;
    let after = stage(status_of(&header).map_err(|e| e.within(path.display()))?);
    if before == Some(Stage::Hot) {
        say(quiet, &args.of, "a step of the reencryption that was cut off was made good")?;
    }
    if after.is_none() {
        return say(quiet, &args.of, "the reencryption has ended");
    }
    let checked = stood(&header, &*on, &unlocked.key, (&place, size(&data)?));
    checked.map_err(|e| e.within(path.display()))?;
    say(
        quiet,
        &args.of,
        "the keys vouch for the reencryption under way; underseal reencrypt --resume-only resumes it",
    )
}
