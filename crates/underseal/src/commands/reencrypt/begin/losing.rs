//! What is lost by a reencryption: passphrases that nobody gives, the end of a device, and with no protection the data of a crash.

use std::path::Path;

use underseal_volume::luks2;

use crate::cli::{ReencryptArgs, Resilience};
use crate::commands::reencrypt::keys::Known;
use crate::error::{Error, Result};
use crate::passphrase;
use crate::size;

/// Says what will be lost, and asks whether that is meant.
///
/// # Errors
/// `Usage` unless it is.
pub(super) fn confirm(
    args: &ReencryptArgs,
    header: &luks2::Header,
    known: &[Known],
    name: &Path,
) -> Result<()> {
    let kept: Vec<u32> = known.iter().map(|known| known.slot).collect();
    let lost = if args.keep_key { vec![] } else { header.lost_keyslots(&kept) };
    if !lost.is_empty() {
        let slots = lost.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let what = format!(
            "{}: the passphrases of keyslots {slots} were not given. They open nothing any more when all is reencrypted.",
            name.display()
        );
        sure(args, &what, "--other-passphrase-file or --other-key-file for each of them, or --force")?;
    }
    unprotected(args, name)
}

/// The same for data that nothing protects meanwhile.
///
/// # Errors
/// `Usage` unless it is meant.
pub(in super::super) fn unprotected(args: &ReencryptArgs, name: &Path) -> Result<()> {
    if args.resilience != Some(Resilience::None) {
        return Ok(());
    }
    let what = format!(
        "{}: with --resilience none a crash, a power cut or a failing disk loses data, and nothing tells which.",
        name.display()
    );
    sure(args, &what, "--resilience checksum, or --force")
}

/// The same for the end of a device over which its data move.
///
/// # Errors
/// `Usage` unless it is meant.
pub(super) fn the_end(args: &ReencryptArgs, image: &Path) -> Result<()> {
    let Some(reduce) = args.reduce_device_size else { return Ok(()) };
    let what = format!(
        "{}: its last {} make room for the header. What lies there is lost.",
        image.display(),
        size::show(reduce)
    );
    sure(args, &what, "make what is on it smaller first, and then --force")
}

/// The same for what lies behind a part of the volume, which alone gets the new key.
///
/// # Errors
/// `Usage` unless it is meant.
pub(super) fn the_rest(args: &ReencryptArgs, image: &Path) -> Result<()> {
    let Some(part) = args.device_size else { return Ok(()) };
    let what = format!(
        "{}: what lies behind its first {} keeps the old key, which goes. It is lost.",
        image.display(),
        size::show(part)
    );
    sure(args, &what, "without --device-size; or --force, if nothing lies there")
}

/// # Errors
/// `Usage` unless somebody at the terminal says yes.
pub(super) fn sure(args: &ReencryptArgs, what: &str, otherwise: &str) -> Result<()> {
    if args.force {
        log::warn!("{what}");
        return Ok(());
    }
    if passphrase::confirm(what)? {
        return Ok(());
    }
    Err(Error::usage(what).with_remedy(otherwise))
}
