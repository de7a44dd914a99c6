//! A volume that another server has open, for the one that takes it over.

use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_cipher::Key;
use underseal_datapath::Mapping;
use underseal_device::{Device, FileDevice};
use underseal_export::control::Known;
use underseal_export::control::status::{self, Format};
use underseal_volume::{Header, UnlockOptions, Volume};

use super::locks::{Locks, detached_header};
use super::{Inside, Opened, header_name, is_block_device};
use crate::cli::VolumeArgs;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::Lower;
use crate::reencryption::{Kept, Place, Where};

/// A volume that the old server of a handover has opened with these options and key, over its open
/// image, and over the detached header with that device and inode number. Fails when this version
/// would read or write other bytes; with the header's errors.
pub(crate) fn go_on(
    args: &VolumeArgs,
    (image, apart_file): (Arc<FileDevice>, Option<(u64, u64)>),
    volume: Volume,
    opened: status::Opened,
    (key, size): (Key, Option<u64>),
) -> Result<Opened> {
    let read_only = image.geometry().read_only;
    let lower = Lower::File(image.clone());
    let options = args.lower.options(read_only);
    let (apart, mut header) = detached_header(args, read_only)?;
    // Kept open for the sandbox, which gets no path that has to be walked again.
    let header_file = match (&apart, &args.header) {
        (Some(Where::File(file)), Some(name)) => {
            let file = file.file().try_clone().map_err(|e| Error::io(name, "cannot be kept open", e))?;
            if apart_file.is_some_and(|expected| file.metadata().ok().map(number) != Some(expected)) {
                let what = format!("{}: that is not the header that the server has open", name.display());
                return Err(Error::new(Exit::Failed, what).with_remedy("close the volume, and open it again"));
            }
            Some(file)
        }
        _ => None,
    };
    let header_path = header_file.as_ref().map(descriptor).or_else(|| args.header.clone());
    header.extend(header_file);
    let kept = Kept::Header { apart, allow_null: args.allow_null };
    let (there, open) = (std::fs::metadata(&args.image).ok(), image.file().metadata().ok());
    if there.is_none() || there.map(number) != open.map(number) {
        let what = format!("{}: that is no longer the name of the open image", args.image.display());
        return Err(Error::new(Exit::Failed, what).with_remedy("rename it back"));
    }
    let opened = status::Opened { header: header_name(args, opened.format), ..opened };
    let place = Place::open(lower.again(), kept, read_only);
    let check = match opened.format {
        Format::Luks1 | Format::Luks2 => {
            let (on, _) = place.bytes()?;
            let name = args.header.as_ref().unwrap_or(&args.image);
            let header = Header::read(&*on).map_err(|e| e.in_file(name))?;
            // The old server has the volume open, too.
            place.keep_open(&header).map_err(|e| e.in_file(name))?;
            let unlock = UnlockOptions { allow_null: args.allow_null, ..UnlockOptions::default() };
            let key = header.volume_key(Key::new(key.as_bytes())?, &unlock).map_err(|e| e.in_file(name))?;
            Some(header.key_check(&key).map_err(|e| e.in_file(name))?)
        }
        _ => None,
    };
    let is_direct = options.direct && is_block_device(&args.image);
    let can_reencrypt = opened.format == Format::Luks2 && !read_only && !is_direct;
    let (inside, reencryption) = match can_reencrypt {
        true => (Some(Inside { place, stood: None }), Vec::new()),
        false => (None, place.into_locks()),
    };
    let locks = Locks::new(reencryption, header);
    let known = Known { check, size, key: Some(Arc::new(key)) };
    let lower = [Some(descriptor(image.file())), header_path].into_iter().flatten().collect();
    let mapping = Mapping::new(volume, image.clone() as Arc<dyn Device>)?;
    let (layers, image) = (Vec::new(), Some(image));
    Ok(Opened { mapping, lower, opened, known, inside, unfinished: false, locks, layers, image })
}

/// Returns a file's device and inode number.
fn number(about: Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// Returns a path that leads to an open file, whatever its name.
fn descriptor(file: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_raw_fd().to_string())
}
