//! A listening socket that a handover passes on: clients that connect meanwhile wait in the kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::net::sockopt;
use serde::{Deserialize, Serialize};

use super::unix::{self, UnixPath};
use super::{Address, BACKLOG, Listener};
use crate::{Error, ErrorKind, Result};

/// A listening socket and its address.
#[derive(Debug)]
pub struct CarriedListener {
    /// A descriptor of the socket.
    pub fd: OwnedFd,
    /// The address and the file of the socket.
    pub place: ListenerPlace,
}

/// The address and the file of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ListenerPlace {
    /// The address as text.
    name: String,
    /// The file of a Unix socket that is removed at the end: its path, device and inode number.
    path: Option<(String, u64, u64)>,
}

impl Listener {
    /// Returns the socket for the new server of a handover.
    ///
    /// # Errors
    /// `Io` when no descriptor is left; `Listen` where the path is not UTF-8.
    pub fn carried(&self) -> Result<CarriedListener> {
        let fd = self.fd.try_clone()?;
        let path = self.path.as_ref().map(UnixPath::named).transpose()?;
        let name = match &self.address {
            Address::Unix(name) => name.clone(),
            Address::Tcp(address) => address.to_string(),
        };
        Ok(CarriedListener { fd, place: ListenerPlace { name, path } })
    }

    /// The listener of an old server. The old server removes the socket's file until this process
    /// calls [`is_ours`](Listener::is_ours).
    ///
    /// # Errors
    /// `Listen` when the descriptor is no listening socket, or bound to another path.
    pub fn from_carried(carried: CarriedListener) -> Result<Self> {
        let CarriedListener { fd, place: ListenerPlace { name, path } } = carried;
        let mut listener = Self::adopt(fd, &name)?;
        if let Some((path, device, inode)) = path {
            // A compromised old server may send the path of any file, for the helper to remove.
            if !unix::is_bound_to(&listener.fd, Path::new(&path)) {
                let what = format!("{name}: the socket is not bound to {path}");
                return Err(Error::new(ErrorKind::Listen, what));
            }
            // Dropping the listener leaves the file alone until this process owns the socket.
            listener.path = Some(UnixPath::of(path, device, inode).left_alone());
        }
        Ok(listener)
    }

    /// Makes this process the owner: the socket's file is removed at the end, and clients that
    /// connect see this process as the peer.
    ///
    /// # Errors
    /// `Listen` when the kernel refuses.
    pub fn is_ours(&self) -> Result<()> {
        if let Some(path) = &self.path {
            path.is_ours();
        }
        let is_unix = matches!(self.address, Address::Unix(_));
        if is_unix && sockopt::socket_acceptconn(self.as_fd()) == Ok(true) {
            rustix::net::listen(&self.fd, BACKLOG).map_err(|e| {
                Error::new(ErrorKind::Listen, format!("{self}: cannot listen")).with_source(e)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::net::{Endpoint, listen};

    #[test]
    fn what_is_carried_listens_on_and_is_removed_by_its_owner_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("s");
        let first = listen(&Endpoint::Unix(path.clone())).unwrap().remove(0);
        let given_up = Listener::from_carried(first.carried().unwrap()).unwrap();
        drop(given_up);
        assert!(path.exists(), "it was nobody's yet");
        let carried = first.carried().unwrap();
        let text = serde_json::to_string(&carried.place).unwrap();
        assert_eq!(serde_json::from_str::<ListenerPlace>(&text).unwrap(), carried.place);
        let second = Listener::from_carried(carried).unwrap();
        let waiting = UnixStream::connect(&path).unwrap();
        // `forget` stands for a process that ends without removing the file.
        std::mem::forget(first);
        second.is_ours().unwrap();
        assert!(second.accept().unwrap().is_some(), "who connected meanwhile waits");
        drop(waiting);
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_path_that_the_socket_is_not_bound_to_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let victim = scratch.path().join("victim");
        std::fs::write(&victim, b"precious").unwrap();
        let about = std::fs::metadata(&victim).unwrap();
        let first = listen(&Endpoint::Unix(scratch.path().join("s"))).unwrap().remove(0);
        let mut carried = first.carried().unwrap();
        carried.place.path = Some((victim.to_str().unwrap().into(), about.dev(), about.ino()));
        let error = Listener::from_carried(carried).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Listen);
        assert!(error.to_string().contains("is not bound to"), "{error}");
        assert!(victim.exists());
    }

    #[test]
    fn what_does_not_listen_is_refused() {
        let (one, _other) = UnixStream::pair().unwrap();
        let place = ListenerPlace { name: "s".into(), path: None };
        let error = Listener::from_carried(CarriedListener { fd: one.into(), place }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Listen);
    }
}
