//! Reading the files that decide which images are opened: only their owner and root may write to
//! them.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::{Error, Result};

/// The longest list: longer than any host needs.
const LONGEST: u64 = 1 << 20;
/// The most files: more than any host needs.
const MOST: usize = 10_000;

/// Reads a list's text. Fails with `Usage` when it belongs to another user, other users may write
/// to it, or it is not UTF-8; with `Failed`.
pub(super) fn text(path: &Path) -> Result<String> {
    let failed = |e| Error::io(path, "cannot read", e);
    // Opening a FIFO would wait, and a systemd generator must never wait.
    let now = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::options().read(true).custom_flags(now.bits().cast_signed()).open(path);
    let file = file.map_err(|e| failed(e).with_remedy("--config FILE"))?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return refused(path, "not a file", "--config FILE");
    }
    trust(path, &about)?;
    let mut text = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > LONGEST {
        return refused(path, "longer than 1 MiB", "a shorter one");
    }
    String::from_utf8(text).or_else(|_| refused(path, "not in UTF-8", "iconv"))
}

/// Returns the files of a folder whose names have this ending, by name; none without a folder.
/// Fails with `Usage` when the folder belongs to another user, or other users may write to it; with
/// `Failed`.
pub(super) fn folder(path: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let failed = |e| Error::io(path, "cannot read", e);
    let about = match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        about => about.map_err(failed)?,
    };
    if !about.is_dir() {
        return refused(path, "not a folder", "another name for it");
    }
    trust(path, &about)?;
    let mut files = Vec::new();
    for entry in path.read_dir().map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(ending.as_bytes()) && !bytes.starts_with(b".") {
            files.push(path.join(name));
        }
        if files.len() > MOST {
            return refused(path, "more than 10000 files", "fewer");
        }
    }
    files.sort();
    Ok(files)
}

fn trust(path: &Path, about: &Metadata) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    match () {
        () if about.uid() != own && about.uid() != 0 => refused(path, "it belongs to another user", "chown"),
        () if about.mode() & 0o022 != 0 => refused(path, "others may write to it", "chmod go-w"),
        () => Ok(()),
    }
}

fn refused<T>(path: &Path, why: &str, remedy: &str) -> Result<T> {
    Err(Error::usage(format!("{}: {why}", path.display())).with_remedy(remedy))
}
