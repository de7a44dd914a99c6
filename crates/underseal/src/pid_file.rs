//! A file with the process's PID, for programs that stop it.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use underseal_sandbox::{Helper, RemovedKind};

use crate::error::{Error, Result};
use crate::exit::Exit;

/// The file; dropping it removes it.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    /// The device and inode number.
    file: (u64, u64),
}

impl PidFile {
    /// Writes this process's PID. Readers never see a partly written file. Fails with `Failed` when
    /// it cannot be written.
    pub(crate) fn write(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(path, "cannot write the process's number", e);
        let path = std::path::absolute(path).map_err(failed)?;
        let folder = path.parent().unwrap_or(&path);
        // The name cannot be predicted: other users may be able to put links into the folder.
        let mut new = tempfile::Builder::new()
            .prefix(".underseal-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder)
            .map_err(failed)?;
        writeln!(new, "{}", std::process::id()).map_err(failed)?;
        let about = new.as_file().metadata().map_err(failed)?;
        new.persist(&path).map_err(|e| failed(e.error))?;
        let file = (about.dev(), about.ino());
        underseal_sandbox::will_remove(&path, RemovedKind::RegularFile, file);
        Ok(Self { path, file })
    }
}

/// The PID file of an old server, which gets this process's PID at the handover.
#[derive(Debug)]
pub(crate) struct Another {
    path: PathBuf,
    file: File,
}

impl Another {
    /// Opens the file, as long as files can be opened. Fails with `Failed` when it cannot be
    /// written, and when it does not contain `pid`: the path comes from the old server, which may
    /// name any file.
    pub(crate) fn open(path: &Path, pid: i32) -> Result<Self> {
        let failed = |e| Error::io(path, "cannot write the process's number", e);
        // A symbolic link is not followed, since another user may have made it, and a pipe is not
        // waited for.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).write(true).custom_flags(flags).open(path).map_err(failed)?;
        let mut text = String::new();
        let read = (&file).take(16).read_to_string(&mut text);
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() || read.is_err() || text.trim() != pid.to_string() {
            let what = format!("{}: does not hold the number of the server, {pid}", path.display());
            return Err(Error::new(Exit::Failed, what).with_remedy("write that number into the file"));
        }
        let path = std::path::absolute(path).map_err(failed)?;
        underseal_sandbox::will_remove(&path, RemovedKind::RegularFile, (about.dev(), about.ino()));
        Ok(Self { path, file })
    }

    /// Writes this process's PID over the old server's, in one call. Fails with `Failed` when it
    /// cannot be written.
    pub(crate) fn take(self) -> Result<PidFile> {
        let text = format!("{}\n", std::process::id());
        let written = self.file.write_all_at(text.as_bytes(), 0);
        let written = written.and_then(|()| self.file.set_len(text.len() as u64));
        let about = written.and_then(|()| self.file.metadata());
        let about = about.map_err(|e| Error::io(&self.path, "cannot write the process's number", e))?;
        Ok(PidFile { path: self.path, file: (about.dev(), about.ino()) })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server's file stays. The numbers are compared, since a sandboxed server cannot
        // read the file.
        let ours =
            fs::symlink_metadata(&self.path).is_ok_and(|there| (there.dev(), there.ino()) == self.file);
        // A server with another root folder does not see the file: then its helper compares.
        if !ours && Helper::get().is_none() {
            return;
        }
        if let Err(e) = underseal_sandbox::remove(&self.path)
            && !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
        {
            log::warn!("{}: cannot remove: {e}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_that_wait_in_the_folder_are_not_followed() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, victim) = (scratch.path().join("pid"), scratch.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, scratch.path().join(format!("pid.{}", std::process::id()))).unwrap();
        symlink(&victim, &path).unwrap();
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        drop(file);
        assert!(fs::symlink_metadata(&path).is_err());
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2, "no other file is left");
    }
}
