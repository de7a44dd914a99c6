//! A volume in the middle of its reencryption, in its present state.

use super::shape::{self, ShapeInput};
use super::slot::Reencryption;
use super::{Stage, digest};
use crate::luks2::metadata::Metadata;
use crate::reencrypt::{Mode, Plan, Progress};
use crate::{ActivateOptions, Error, ErrorKind, Result, Volume, VolumeKey};

/// Returns the plan and the progress after checking the metadata against the digest.
///
/// Fails with `Untrusted` when the metadata were written without the keys, and with the errors of
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

/// Returns true when the digest, made with the keys, confirms the metadata. Without all keys the
/// answer is false, for example at the end, when the old key is gone.
///
/// Fails with `Untrusted` when all keys are known and the metadata were written without them, and
/// with `TooCostly` and `Memory`.
pub(super) fn is_vouched_for(metadata: &Metadata, of: &Reencryption, key: &VolumeKey) -> Result<bool> {
    let keys: Option<Vec<_>> = of.digests().into_iter().map(|digest| key.of(digest)).collect();
    keys.map_or(Ok(false), |keys| digest::verify(metadata, of, &keys).map(|()| true))
}

/// Returns the volume in its present state, or `None` when the segments alone describe it.
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
        // All of the data has the new key, and the old key may be gone. After a decryption without
        // any key, the metadata must be confirmed by the old key.
        Stage::Final if of.mode != Mode::Decrypt => return is_vouched_for(metadata, &of, key).map(|_| None),
        Stage::Clean | Stage::Final => {}
    }
    let ActivateOptions { detached, allow_null, .. } = *options;
    let given = ShapeInput { data_size, hot_zone: None, allow_null, detached };
    let (plan, progress) = verified(metadata, &of, key, given)?;
    plan.volume(progress).map(Some)
}
