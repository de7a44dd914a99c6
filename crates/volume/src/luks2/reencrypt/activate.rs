//! A volume in the middle of its reencryption, as it stands.

use super::shape::{self, Given};
use super::slot::Reencryption;
use super::{Stage, digest};
use crate::luks2::metadata::Metadata;
use crate::reencrypt::{Mode, Plan, Progress};
use crate::{ActivateOptions, Error, ErrorKind, Result, Volume, VolumeKey};

/// Plan and progress, with all of it verified that the keys can vouch for.
///
/// # Errors
/// `Untrusted` where somebody without the keys wrote what the header says; those of [`shape::read`].
pub(super) fn verified(
    metadata: &Metadata,
    of: &Reencryption,
    key: &VolumeKey,
    given: Given,
) -> Result<(Plan, Progress)> {
    let keys =
        of.digests().into_iter().map(|digest| key.of(digest).ok_or_else(|| shape::lacks(metadata, digest)));
    digest::verify(metadata, of, &keys.collect::<Result<Vec<_>>>()?)?;
    shape::read(metadata, of, key, given)
}

/// The volume as it stands; none where its segments alone say what it is.
pub(in crate::luks2) fn activate(
    metadata: &Metadata,
    key: &VolumeKey,
    data_size: u64,
    options: &ActivateOptions,
) -> Result<Option<Volume>> {
    let Some(of) = Reencryption::parse(metadata)? else { return Ok(None) };
    match shape::stage(metadata, &of) {
        Stage::Hot => {
            let context = "a reencryption was cut off in the middle of a step: some of its bytes are old, some new, and it must be made \
                           good first";
            return Err(Error::new(ErrorKind::NeedsRecovery, context));
        }
        // All of it has the new key, and the old one may be gone. Without any, who says that it was decrypted must have had it.
        Stage::Final if of.mode != Mode::Decrypt => return Ok(None),
        Stage::Clean | Stage::Final => {}
    }
    let ActivateOptions { detached, allow_null, .. } = *options;
    let given = Given { data_size, hot_zone: None, allow_null, detached };
    let (plan, progress) = verified(metadata, &of, key, given)?;
    plan.volume(progress).map(Some)
}
