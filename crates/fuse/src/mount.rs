//! How a mount is made: by mount(2), or for users other than root by fusermount3.

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::net::{SocketFlags, SocketType, recvmsg, socketpair};

use crate::point::Point;

/// How a folder or file is mounted on.
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// What the mount table shows as the source.
    pub name: String,
    /// The type that it shows after "fuse.", where fusermount3 mounts.
    pub subtype: &'static str,
    /// Refuse writes.
    pub read_only: bool,
    /// Let everybody in, not only the user who mounts.
    pub allow_other: bool,
    /// Options of every mount, as mount(8) has them. What says when to mount, or what goes without
    /// saying, has no effect.
    pub others: Vec<String>,
}

/// Why there is no mount.
#[derive(Debug)]
pub enum MountFailure {
    /// Users may not let others into their mounts on this system.
    OthersForbidden(io::Error),
    /// There is no fusermount3.
    NoHelper(io::Error),
    /// This process cannot use FUSE at all.
    NoDevice(io::Error),
    /// What the system said.
    Refused(io::Error),
}

impl MountFailure {
    /// The system's own words.
    pub fn into_source(self) -> io::Error {
        match self {
            Self::OthersForbidden(e) | Self::NoHelper(e) | Self::NoDevice(e) | Self::Refused(e) => e,
        }
    }
}

/// What follows "cannot mount on PATH".
impl fmt::Display for MountFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OthersForbidden(_) => {
                ": /etc/fuse.conf does not allow others, nor root, to be let in (user_allow_other)"
            }
            Self::NoHelper(_) => ": users other than root need fusermount3 (package fuse3)",
            Self::NoDevice(_) => {
                ": /dev/fuse cannot be opened (`modprobe fuse`; in a container --device /dev/fuse)"
            }
            Self::Refused(_) => "",
        })
    }
}

impl From<io::Error> for MountFailure {
    fn from(e: io::Error) -> Self {
        Self::Refused(e)
    }
}

impl From<Errno> for MountFailure {
    fn from(e: Errno) -> Self {
        Self::Refused(e.into())
    }
}

/// Mounts. The descriptor that requests come from.
pub(crate) fn mount(point: &Point, options: &MountSettings) -> Result<OwnedFd, MountFailure> {
    let device = device("/dev/fuse")?;
    if point.is_elsewhere()? {
        return Err(io::Error::other("it was moved or replaced since it was looked at").into());
    }
    let (at, target) = (point.path(), point.target()?);
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        fs::metadata(&target)?.mode(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(io::Error::from)?;
    match rustix::mount::mount(options.name.as_str(), &target, "fuse", options.flags(), &*data) {
        Ok(()) => Ok(device),
        // Only root may do it without help.
        Err(Errno::PERM) => fusermount(at, options),
        Err(e) => Err(e.into()),
    }
}

fn device(path: &str) -> Result<OwnedFd, MountFailure> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| MountFailure::NoDevice(e.into()))
}

/// The flag of an option of every mount.
fn flag(option: &str) -> Option<(MountFlags, bool)> {
    Some(match option {
        "suid" => (MountFlags::NOSUID, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "dev" => (MountFlags::NODEV, false),
        "nodev" => (MountFlags::NODEV, true),
        "exec" => (MountFlags::NOEXEC, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "sync" => (MountFlags::SYNCHRONOUS, true),
        "noatime" => (MountFlags::NOATIME, true),
        _ => return None,
    })
}

impl MountSettings {
    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
        flags.set(MountFlags::RDONLY, self.read_only);
        for (flag, on) in self.others.iter().filter_map(|option| flag(option)) {
            flags.set(flag, on);
        }
        flags
    }

    /// As fusermount3 takes them.
    fn text(&self) -> String {
        // A comma would begin another option.
        let name = self.name.replace([',', '\\'], "_");
        let access = if self.read_only { "ro" } else { "rw" };
        let mut text = format!("fsname={name},subtype={},default_permissions,{access}", self.subtype);
        let others = self.others.iter().map(String::as_str).filter(|option| flag(option).is_some());
        for option in others.chain(self.allow_other.then_some("allow_other")) {
            text.push(',');
            text.push_str(option);
        }
        text
    }
}

fn fusermount(at: &Path, options: &MountSettings) -> Result<OwnedFd, MountFailure> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options.text()).arg("--").arg(at);
    // It finds the socket in place of its input.
    command.env("_FUSE_COMMFD", "0").stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    let helper = command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => MountFailure::NoHelper(e),
        _ => MountFailure::Refused(e),
    })?;
    // Our copy of its end is in there: it is to be the last one.
    drop(command);
    let device = received(&ours);
    drop(ours);
    let said = helper.wait_with_output()?;
    match device? {
        Some(device) => Ok(device),
        None => {
            let said = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            let others = said.contains("user_allow_other");
            let e = io::Error::other(said);
            Err(if others { MountFailure::OthersForbidden(e) } else { MountFailure::Refused(e) })
        }
    }
}

/// The descriptor that the helper sends; nothing when it has ended without one.
fn received(from: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut messages = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut memory = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| recvmsg(from, &mut memory, &mut messages, RecvFlags::CMSG_CLOEXEC))?;
    let mut sent = messages.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(sent.next().and_then(|mut descriptors| descriptors.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_missing_is_named() {
        let failure = device("/no such folder/fuse").unwrap_err();
        assert!(failure.to_string().contains("/dev/fuse"), "{failure}");
        assert_eq!(failure.into_source().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn options_are_the_same_for_the_kernel_and_its_helper() {
        let others =
            ["nodev", "suid", "exec", "noexec", "noatime", "_netdev", "a,b"].map(String::from).into();
        let options = MountSettings {
            name: r"a,b\c".into(),
            subtype: "kind",
            read_only: true,
            allow_other: true,
            others,
        };
        let flags = MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME | MountFlags::RDONLY;
        assert_eq!(options.flags(), flags);
        assert_eq!(
            options.text(),
            "fsname=a_b_c,subtype=kind,default_permissions,ro,nodev,suid,exec,noexec,noatime,allow_other"
        );
    }
}
