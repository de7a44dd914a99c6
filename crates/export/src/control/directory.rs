//! The directory of the control sockets: one for each user, without access for other users.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use underseal_device::RuntimeDirectory;
use underseal_volume::Hash;

use super::Name;
use crate::net::{Endpoint, Found, Listener, SocketAccess, listen};
use crate::{Error, ErrorKind, Result};

/// The path of a user's directory of control sockets.
#[derive(Debug, Clone)]
pub struct Directory(RuntimeDirectory);

/// How many names [`Directory::listen_as`] tries for a volume whose name is in use.
const TRIES: u32 = 1000;
/// The kernel's limit for a socket's path, without the zero byte at its end.
const LONGEST_PATH: usize = 107;
/// The length in bytes of the digest that replaces a long name in a socket's path.
const DIGEST: usize = 16;

impl Directory {
    /// Returns the [user's directory](RuntimeDirectory::of_user).
    pub fn of_user() -> Self {
        Self(RuntimeDirectory::of_user())
    }

    /// A directory at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(RuntimeDirectory::at(path))
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a volume's control socket: `NAME.sock`. For a name that makes this path
    /// too long for a socket, `NAME.sock` is a link to a socket that is named by a digest of the
    /// volume's name.
    pub fn socket(&self, name: &Name) -> PathBuf {
        self.short(name, "sock")
            .map_or_else(|| self.long(name, "sock"), |alias| self.real().join(format!(".{alias}")))
    }

    /// Returns the default path of a volume's NBD socket: `NAME.nbd`, or a digest of the name where
    /// this path is too long for a socket.
    pub fn socket_for_clients(&self, name: &Name) -> PathBuf {
        self.short(name, "nbd").map_or_else(|| self.long(name, "nbd"), |alias| self.path().join(alias))
    }

    /// Returns the path of a volume's record: `NAME.record`.
    pub(super) fn record(&self, name: &Name) -> PathBuf {
        self.long(name, "record")
    }

    /// Opens the directory, as [`RuntimeDirectory::open`] does.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        self.0.open()
    }

    fn long(&self, name: &Name, kind: &str) -> PathBuf {
        self.path().join(format!("{name}.{kind}"))
    }

    /// Returns a socket's file name made of a digest, when the path with the volume's name is too
    /// long. The digest is of the resolved path: every process finds the same file name, whatever
    /// path it has for the directory.
    fn short(&self, name: &Name, kind: &str) -> Option<String> {
        let long = self.real().join(format!("{name}.{kind}"));
        let digest = || Hash::Sha256.digest(&[name.as_str().as_bytes()]);
        let hex = || digest().iter().take(DIGEST).map(|byte| format!("{byte:02x}")).collect::<String>();
        (long.as_os_str().len() > LONGEST_PATH).then(|| format!("{}.{kind}", hex()))
    }

    fn real(&self) -> PathBuf {
        fs::canonicalize(self.path()).unwrap_or_else(|_| self.path().to_owned())
    }

    /// Returns the names of open volumes, and of those whose server was killed, in order. The list
    /// is empty when the directory does not exist.
    ///
    /// # Errors
    /// `Directory` when the directory cannot be read or does not belong to the user.
    pub fn names(&self) -> Result<Vec<Name>> {
        match self.0.open() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            opened => opened.map_err(|e| self.unusable(e))?,
        };
        let name = |entry: io::Result<fs::DirEntry>| -> Option<Name> {
            let entry = entry.ok()?;
            let name = entry.file_name().to_str()?.strip_suffix(".sock")?.parse().ok();
            // The link of a long name outlives its server.
            name.filter(|_| entry.path().exists())
        };
        let mut names: Vec<Name> =
            fs::read_dir(self.path()).map_err(|e| self.unusable(e))?.filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Makes a volume's socket, and the directory if it is missing. A socket that a killed server
    /// left is replaced.
    ///
    /// # Errors
    /// `Directory` when the directory cannot be made, or does not belong to the user; `InUse` when
    /// another open volume has the name; `Listen`.
    pub fn listen(&self, name: &Name) -> Result<Vec<Listener>> {
        self.make()?;
        let socket = self.socket(name);
        let listeners = listen(&Endpoint::Unix(socket.clone()))?;
        // This server has the socket: no second server runs the following lines for this name.
        let link = self.long(name, "sock");
        let link_up = || match (socket.file_name(), link.file_name()) {
            (Some(file), Some(own)) if file != own => {
                match fs::remove_file(&link) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                    _ => {}
                }
                symlink(file, &link)
            }
            _ => Ok(()),
        };
        link_up().map_err(|e| self.unusable(e))?;
        Ok(listeners)
    }

    /// Makes a volume's socket as [`Directory::listen`] does, and appends a number to the name
    /// where another volume has it.
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

    /// Makes the socket for NBD clients in this directory, and appends a number to the name where
    /// another server listens.
    ///
    /// # Errors
    /// As [`Directory::listen`].
    pub fn listen_for_clients(&self, name: &Name, access: SocketAccess) -> Result<(Vec<Listener>, PathBuf)> {
        self.make()?;
        let mut number = 1;
        loop {
            let path = self.socket_for_clients(&name.numbered(number));
            let found = Found::look_up(&Endpoint::Unix(path.clone()))?.with_access(access);
            match found.listen() {
                Err(e) if e.kind() == ErrorKind::InUse && number < TRIES => number += 1,
                done => return done.map(|listeners| (listeners, path)),
            }
        }
    }

    /// Makes the directory, if it is missing.
    ///
    /// # Errors
    /// `Directory` when the directory cannot be made, or does not belong to the user.
    pub fn make(&self) -> Result<()> {
        self.0.make().map_err(|e| self.unusable(e))
    }

    fn unusable(&self, e: io::Error) -> Error {
        let context = format!("{}: the directory of control sockets cannot be used", self.path().display());
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
    fn a_name_that_is_too_long_for_a_socket_is_found_by_its_own_name() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path().join("run"));
        let names = ["a", "b"].map(|last| name(&("x".repeat(126) + last)));
        let listeners: Vec<_> = names.iter().map(|name| directory.listen(name).unwrap()).collect();
        assert_eq!(directory.names().unwrap(), names);
        for name in &names {
            std::os::unix::net::UnixStream::connect(directory.socket(name)).unwrap();
            assert_eq!(directory.listen(name).unwrap_err().kind(), ErrorKind::InUse);
        }
        // A path with `..` leads to the same socket.
        let around = Directory::at(scratch.path().join("run/../run"));
        assert_eq!(around.socket(&names[0]), directory.socket(&names[0]));
        let (clients, path) = directory.listen_for_clients(&names[0], SocketAccess::default()).unwrap();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        let (others, other) = directory.listen_for_clients(&names[0], SocketAccess::default()).unwrap();
        assert_ne!(other, path);
        drop((listeners, clients, others));
        assert!(directory.names().unwrap().is_empty());
        let _again = directory.listen(&names[1]).unwrap();
        assert_eq!(directory.names().unwrap(), names[1..]);
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
