//! A reencryption that was cut off in a step, or after the last one, as its volume is opened.

use underseal_volume::luks2::{Stage, Status};
use underseal_volume::reencrypt::{self, Options};
use underseal_volume::{Header, Target, VolumeKey};

use super::no_step::NoStep;
use super::{Bytes, Place, size, status_of};
use crate::error::{Error, Result};
use crate::exit::Exit;

/// Refuses to write to a volume that is decrypted wholly while its header still has the decryption:
/// cryptsetup would take the decryption for one that has not begun, and decrypt the plaintext.
pub(crate) fn is_not_all_decrypted(header: &Header) -> Result<()> {
    match status_of(header)? {
        Some(Status { mode: reencrypt::Mode::Decrypt, stage: Stage::Final, .. }) => {
            let what = "all of the volume is decrypted, and the decryption has not ended";
            let remedy = "end it with `underseal reencrypt --resume-only`, or open it --read-only";
            Err(Error::new(Exit::Failed, what).with_remedy(remedy))
        }
        _ => Ok(()),
    }
}

/// Returns true when [`mended`] would change the header.
pub(crate) fn is_to_be_mended(header: &Header) -> Result<bool> {
    Ok(cut_off(header)?.is_some())
}

fn cut_off(header: &Header) -> Result<Option<Status>> {
    Ok(status_of(header)?.filter(|status| status.stage != Stage::Clean))
}

/// Recovers an interrupted step before the volume is used, and ends a reencryption that is
/// complete: cryptsetup would take it for one that has not begun. Returns the header as it is then.
/// After an error the volume is unchanged.
pub(crate) fn mended(
    header: Header,
    on: &(dyn Target + Sync),
    key: &VolumeKey,
    (place, data): (&Place, &Bytes),
) -> Result<Header> {
    let Some(status) = cut_off(&header)? else { return Ok(header) };
    let mut ledger = place.resume(on, key, size(data)?, None)?;
    if status.stage == Stage::Final {
        log::warn!(
            "all of the volume was reencrypted, and the reencryption had not ended: it is ended first"
        );
        reencrypt::run(&**data, &mut ledger, &NoStep::default(), &Options::default())?;
    } else {
        mend(data, &mut ledger)?;
    }
    drop(ledger);
    Ok(Header::read(on)?)
}

/// Recovers an interrupted step, if the ledger has one. After an error the volume is unchanged.
pub(crate) fn mend(data: &Bytes, ledger: &mut dyn reencrypt::Ledger) -> Result<()> {
    if ledger.progress().hot.is_some() {
        log::warn!("a reencryption was cut off in the middle of a step, which is made good first");
        reencrypt::run(&**data, ledger, &NoStep::default(), &Options::default())?;
    }
    Ok(())
}
