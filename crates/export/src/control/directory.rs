//! The directory of the control sockets: one for each user, closed to all others.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat};

use super::Name;
use crate::net::{Endpoint, Found, Listener, SocketAccess, listen};
use crate::{Error, ErrorKind, Result};

/// Where a user's control sockets are.
#[derive(Debug, Clone)]
pub struct Directory(PathBuf);

/// Names tried for a volume whose file's name is in use.
const TRIES: u32 = 1000;

impl Directory {
    /// The user's: `$UNDERSEAL_RUNTIME_DIR`; else `/run/underseal` for root; else `$XDG_RUNTIME_DIR/underseal`; else
    /// `/tmp/underseal-UID`.
    pub fn of_user() -> Self {
        let uid = rustix::process::geteuid();
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self(match (set("UNDERSEAL_RUNTIME_DIR"), set("XDG_RUNTIME_DIR")) {
            (Some(path), _) => path,
            _ if uid.is_root() => "/run/underseal".into(),
            (None, Some(path)) => path.join("underseal"),
            (None, None) => format!("/tmp/underseal-{}", uid.as_raw()).into(),
        })
    }

    /// Another one.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the socket of a volume is.
    pub fn socket(&self, name: &Name) -> PathBuf {
        self.0.join(format!("{name}.sock"))
    }

    /// The names of volumes that are open, or were when their server was killed; in order. None where there is no
    /// directory.
    ///
    /// # Errors
    /// `Directory` when it cannot be read or is not the user's own.
    pub fn names(&self) -> Result<Vec<Name>> {
        match self.open() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            opened => opened.map_err(|e| self.unusable(e))?,
        };
        let name = |entry: io::Result<fs::DirEntry>| -> Option<Name> {
            entry.ok()?.file_name().to_str()?.strip_suffix(".sock")?.parse().ok()
        };
        let mut names: Vec<Name> =
            fs::read_dir(&self.0).map_err(|e| self.unusable(e))?.filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Makes a volume's socket, and the directory if there is none. A socket that a killed server left is replaced.
    ///
    /// # Errors
    /// `Directory` when there can be none, or it is not the user's own; `InUse` when another open volume has the name;
    /// `Listen`.
    pub fn listen(&self, name: &Name) -> Result<Vec<Listener>> {
        self.make()?;
        listen(&Endpoint::Unix(self.socket(name)))
    }

    /// As [`Directory::listen`], with a number behind the name where another volume has it.
    ///
    /// # Errors
    /// As [`Directory::listen`].
    pub fn listen_as(&self, name: &Name) -> Result<(Vec<Listener>, Name)> {
        let mut number = 1;
        loop {
            let name = name.numbered(number);
            match self.listen(&name) {
                Err(e) if e.kind() == ErrorKind::InUse && number < TRIES => number += 1,
                done => return done.map(|listeners| (listeners, name)),
            }
        }
    }

    /// A place beside the control socket for the socket that clients of a volume connect to, with a number behind the name where
    /// another server listens there.
    ///
    /// # Errors
    /// As [`Directory::listen`].
    pub fn listen_for_clients(&self, name: &Name, access: SocketAccess) -> Result<(Vec<Listener>, PathBuf)> {
        self.make()?;
        let mut number = 1;
        loop {
            let path = self.0.join(format!("{}.nbd", name.numbered(number)));
            let found = Found::look_up(&Endpoint::Unix(path.clone()))?.with_access(access);
            match found.listen() {
                Err(e) if e.kind() == ErrorKind::InUse && number < TRIES => number += 1,
                done => return done.map(|listeners| (listeners, path)),
            }
        }
    }

    /// Makes the directory, if there is none.
    ///
    /// # Errors
    /// `Directory` when there can be none, or it is not the user's own.
    pub fn make(&self) -> Result<()> {
        self.made().map_err(|e| self.unusable(e))
    }

    fn made(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => self.open().map(drop),
        }
    }

    /// Only a directory itself, of this user, that nobody else can put anything into: somebody may have been faster in
    /// /tmp.
    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::open(&self.0, flags, Mode::empty())?;
        let about = fstat(&directory)?;
        if about.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        if about.st_mode & 0o022 != 0 {
            return Err(io::Error::other("others may write to it (chmod 700 mends that)"));
        }
        Ok(directory)
    }

    fn unusable(&self, e: io::Error) -> Error {
        let context = format!("{}: the directory of control sockets cannot be used", self.0.display());
        Error::new(ErrorKind::Directory, context).with_source(e)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn a_directory_is_made_for_the_user_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path().join("run"));
        assert!(directory.names().unwrap().is_empty());
        let listeners = directory.listen(&name("disk")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(directory.path()), 0o700);
        assert_eq!(mode(&directory.socket(&name("disk"))), 0o600);
        assert_eq!(directory.names().unwrap(), [name("disk")]);
        drop(listeners);
        assert!(directory.names().unwrap().is_empty());
    }

    #[test]
    fn a_name_in_use_gets_a_number_and_one_of_a_dead_server_is_taken() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path());
        let (_first, found) = directory.listen_as(&name("disk")).unwrap();
        assert_eq!(found, name("disk"));
        let (second, found) = directory.listen_as(&name("disk")).unwrap();
        assert_eq!(found, name("disk-2"));
        assert_eq!(directory.listen(&name("disk")).unwrap_err().kind(), ErrorKind::InUse);
        drop(second);
        drop(std::os::unix::net::UnixListener::bind(directory.socket(&name("disk-2"))).unwrap());
        let (_third, found) = directory.listen_as(&name("disk")).unwrap();
        assert_eq!(found, name("disk-2"));
    }

    #[test]
    fn a_directory_that_others_can_change_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let own = scratch.path().join("own");
        fs::create_dir(&own).unwrap();
        let link = scratch.path().join("link");
        symlink(&own, &link).unwrap();
        let open = scratch.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [link, open, file, scratch.path().join("a/b")] {
            let error = Directory::at(&path).listen(&name("disk")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Directory, "{}", path.display());
        }
    }
}
