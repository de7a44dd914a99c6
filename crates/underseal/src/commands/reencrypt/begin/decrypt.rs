//! The start of a decryption: a header in front of the data is first moved to a separate file.

use std::path::Path;

use underseal_volume::luks2::{self, DecryptOptions, OverwrittenStart};
use underseal_volume::reencrypt::Direction;
use underseal_volume::{Header, VolumeKey};

use super::losing::Losses;
use crate::commands::reencrypt::args::ReencryptArgs;
use crate::commands::reencrypt::keys;
use crate::error::{Error, Result};
use crate::reencryption::{self, Kept, Place, Where};
use crate::size;

/// Begins to decrypt data that stay in place, or whose header is in a separate file already.
pub(in super::super) fn decrypt(
    args: &ReencryptArgs,
    mut header: luks2::Header,
    key: VolumeKey,
    place: &super::Place<'_>,
) -> Result<VolumeKey> {
    let mut losses = Losses::default().unprotected(args, place.image).the_rest(args, place.image);
    let mut options =
        DecryptOptions { is_open: place.size.is_some(), ..options(args, &header, place.image)? };
    let start = header.overwritten_start(place.data).map_err(|e| e.in_file(place.image))?;
    if let Some(OverwrittenStart { len, signature }) = start {
        if let Some(there) = signature {
            let what = format!(
                "{}: the data would move over {there}, which lies in front of them",
                place.image.display()
            );
            return Err(Error::usage(what).with_remedy("copy it away, and wipe its start"));
        }
        // This is also the state after an interrupted start whose header had reached its file.
        let what = format!(
            "{}: the data move over its first {}, where their header was. What else lies there is lost.",
            place.image.display(),
            size::show(len)
        );
        losses = losses.and(what, "--force where nothing but the header was there");
        options.over_header = true;
    }
    losses.sure(args)?;
    let begun = header.begin_decryption(place.on, place.data, &key, &options);
    begun.map_err(|e| e.in_file(place.name))?;
    Ok(key)
}

/// Moves the header from in front of the data to the file of `--header`, and begins. Returns `None`
/// when no header is in front. Fails with `Usage` without `--header`; with the header's errors.
pub(in super::super) fn takes_header_away(
    args: &ReencryptArgs,
    place: &mut Place,
) -> Result<Option<VolumeKey>> {
    let image = args.image.as_path();
    let data = place.data.bytes()?;
    if !args.decrypt || args.resume_only {
        return Ok(None);
    }
    let in_front = Header::in_front(&*data, args.header.as_deref());
    let Some(header) = in_front.map_err(|e| e.in_file(image))? else { return Ok(None) };
    let Some(path) = &args.header else {
        let error = Error::usage(format!(
            "{}: its header is in front of the data, which takes its place",
            image.display()
        ));
        return Err(error.with_remedy(
            "--header FILE with a new file, which is the volume's header until all is decrypted",
        ));
    };
    if path.exists() {
        let error = Error::usage(format!("{}: is there already", path.display()));
        return Err(error.with_remedy("another name, or move it away"));
    }
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(image))?;
    if let Some(status) = reencryption::status_of(&header)? {
        super::fits(args, Some(status.mode), image)?;
    }
    super::refuse_backward(args)?;
    Losses::default().unprotected(args, image).the_rest(args, image).sure(args)?;
    let (key, _) = keys::unlock(args, &header, &*data, image)?;
    let header = super::luks2_of(header, image)?;
    let options = DecryptOptions { over_header: true, ..options(args, &header, image)? };
    let file = header.begin_decryption_into(path, &*data, &key, &options);
    let file = file.map_err(|e| super::taken(path, e.in_file(image)))?;
    place.kept = Kept::Header { apart: Some(Where::File(file)), allow_null: false };
    Ok(Some(key))
}

fn options(args: &ReencryptArgs, header: &luks2::Header, image: &Path) -> Result<DecryptOptions> {
    Ok(DecryptOptions {
        direction: Direction::Forward,
        protection: super::protection(args, image, &super::forms(&header.info().segments)?)?,
        // `--hotzone-size` does not limit this length: cryptsetup cannot finish a reencryption with
        // less than can be moved at first.
        first: None,
        size: args.device_size,
        over_header: false,
        allow_null: false,
        is_open: false,
    })
}
