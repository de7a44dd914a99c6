//! Mounting: by mount(2), or for users other than root by fusermount3.

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

/// The settings of a mount on a folder or file.
#[derive(Debug, Clone)]
pub struct MountSettings {
    /// The source in the mount table.
    pub name: String,
    /// The type that the mount table shows after "fuse.", where fusermount3 mounts.
    pub subtype: &'static str,
    /// Refuses writes.
    pub read_only: bool,
    /// Whether all users may use the mount, not only its owner.
    pub allow_other: bool,
    /// Options of every mount, as mount(8) has them. Options about the time of mounting, and
    /// options that are defaults, have no effect.
    pub others: Vec<String>,
}

/// The reason of a failed mount.
#[derive(Debug)]
pub enum MountFailure {
    /// Users may not give others access to their mounts on this system.
    OthersForbidden(io::Error),
    /// fusermount3 is not installed.
    NoHelper(io::Error),
    /// This process cannot use FUSE at all.
    NoDevice(io::Error),
    /// Any other error of the system.
    Refused(io::Error),
}

impl MountFailure {
    /// Returns the system's error.
    pub fn into_source(self) -> io::Error {
        match self {
            Self::OthersForbidden(e) | Self::NoHelper(e) | Self::NoDevice(e) | Self::Refused(e) => e,
        }
    }
}

/// The text behind "cannot mount on PATH".
impl fmt::Display for MountFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OthersForbidden(_) => {
                ": /etc/fuse.conf does not allow access for others or root (user_allow_other)"
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

/// Mounts. Returns the descriptor of requests.
pub(crate) fn mount(point: &Point, options: &MountSettings) -> Result<OwnedFd, MountFailure> {
    let device = device("/dev/fuse")?;
    if point.is_elsewhere()? {
        return Err(io::Error::other("it was moved or replaced since it was inspected").into());
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
    // As fusermount3 does it for other users.
    let kind = format!("fuse.{}", options.subtype);
    match rustix::mount::mount(options.name.as_str(), &target, kind.as_str(), options.flags(), &*data) {
        Ok(()) => Ok(device),
        // Only root may do it without fusermount3.
        Err(Errno::PERM) => fusermount(at, options),
        Err(e) => Err(e.into()),
    }
}

fn device(path: &str) -> Result<OwnedFd, MountFailure> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| MountFailure::NoDevice(e.into()))
}

/// Returns the flag of an option of every mount.
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

    /// Returns the options in fusermount3's form.
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
    // fusermount3 finds the socket at its standard input.
    command.env("_FUSE_COMMFD", "0").stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    let helper = command.spawn().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => MountFailure::NoHelper(e),
        _ => MountFailure::Refused(e),
    })?;
    // The command holds this process's copy of the helper's end, so that the helper's is the last.
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

/// Returns the descriptor that the helper sends, or `None` when it has ended without one.
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
