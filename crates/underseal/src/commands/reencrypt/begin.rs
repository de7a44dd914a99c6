//! What is decided and written before the first step.

use std::path::Path;

use underseal_volume::{Header, Target, VolumeKey};

use crate::cli::ReencryptArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::reencryption::Place;

/// Whether the options say what is to become of the volume.
pub(super) fn says_what(args: &ReencryptArgs) -> bool {
    let ReencryptArgs { encrypt, decrypt, cipher, key_size, sector_size, keep_key, .. } = args;
    *encrypt || *decrypt || *keep_key || cipher.is_some() || key_size.is_some() || sector_size.is_some()
}

/// Whether what is asked for goes with what is under way.
///
/// # Errors
/// `Usage`.
pub(super) fn fits(args: &ReencryptArgs, under_way: bool, name: &Path) -> Result<()> {
    if !under_way && args.resume_only {
        let error = Error::usage(format!("{}: no reencryption is under way", name.display()));
        return Err(error.with_remedy("without --resume-only, to begin one"));
    }
    if under_way && (args.init_only || says_what(args)) {
        let error = Error::usage(format!("{}: a reencryption is under way already", name.display()));
        return Err(error.with_remedy("--resume-only, to bring that to its end first"));
    }
    Ok(())
}

/// Whether there is no header yet.
pub(super) fn makes_header(args: &ReencryptArgs, _path: &Path) -> Result<bool> {
    Ok(args.encrypt && !args.resume_only)
}

/// Begins to encrypt an image.
pub(super) fn with_new_header(_args: &ReencryptArgs, _place: &mut Place, _quiet: bool) -> Result<VolumeKey> {
    Err(Error::new(Exit::Unsupported, "not yet"))
}

/// Begins with the header that there is.
pub(super) fn begin(
    _args: &ReencryptArgs,
    _header: Header,
    _on: (&(dyn Target + Sync), &Path),
    _data_size: u64,
    _quiet: bool,
) -> Result<VolumeKey> {
    Err(Error::new(Exit::Unsupported, "not yet"))
}
