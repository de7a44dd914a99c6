//! A volume in the middle of its reencryption, as it stands.

use super::shape::{self, ShapeInput};
use super::slot::Reencryption;
use super::{Stage, digest};
use crate::luks2::metadata::Metadata;
use crate::reencrypt::{Mode, Plan, Progress};
use crate::{ActivateOptions, Error, ErrorKind, Result, Volume, VolumeKey};

/// Plan and progress, with all of it verified that the keys can vouch for.
///
/// # Errors
/// `Untrusted` where somebody without the keys wrote what the header says; those of
/// [`shape::read`].
pub(super) fn verified(
    metadata: &Metadata,
    of: &Reencryption,
    key: &VolumeKey,
    given: ShapeInput,
) -> Result<(Plan, Progress)> {
    if let Some(digest) = of.digests().into_iter().find(|digest| key.of(*digest).is_none()) {
        return Err(shape::lacks(metadata, digest));
    }
    is_vouched_for(metadata, of, key)?;
    shape::read(metadata, of, key, given)
}

/// Whether the keys vouch for the metadata: not without all of them, as when all is new and the old
/// one is gone.
///
/// # Errors
/// `Untrusted` where all of them are there and somebody without them wrote it; `TooCostly`,
/// `Memory`.
pub(super) fn is_vouched_for(metadata: &Metadata, of: &Reencryption, key: &VolumeKey) -> Result<bool> {
    let keys: Option<Vec<_>> = of.digests().into_iter().map(|digest| key.of(digest)).collect();
    keys.map_or(Ok(false), |keys| digest::verify(metadata, of, &keys).map(|()| true))
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
        // All of it has the new key, and the old one may be gone. Without any, who says that it was
        // decrypted must have had it.
        Stage::Final if of.mode != Mode::Decrypt => return is_vouched_for(metadata, &of, key).map(|_| None),
        Stage::Clean | Stage::Final => {}
    }
    let ActivateOptions { detached, allow_null, .. } = *options;
    let given = ShapeInput { data_size, hot_zone: None, allow_null, detached };
    let (plan, progress) = verified(metadata, &of, key, given)?;
    plan.volume(progress).map(Some)
}
