//! Paths that another user may change: links on the way are followed only when root or this user
//! made them.
//!
//! The kernel's `fs.protected_symlinks` has the same rule, for sticky folders only. Here the rule
//! is for every folder and every link of a path: root's command with a path in a user's folder
//! reaches no file that the user chose. Each name is opened before it is inspected, and the
//! inspected file is the one in which the next name is looked up.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Statx, StatxFlags, fcntl_setfl, fstat, fstatfs,
    openat, readlinkat, statx,
};
use rustix::io::Errno;

/// The number of links that a path may have, as in the kernel.
const MOST_LINKS: u32 = 40;

const PIN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A link that is not followed: another user made it.
#[derive(Debug)]
pub struct ForeignLink {
    path: PathBuf,
    user: u32,
}

impl ForeignLink {
    /// A remedy, for the line under the error.
    pub const REMEDY: &'static str = "the path that the link leads to, if that is meant";

    /// Returns true when an error was caused by such a link.
    pub fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<Self>)
    }
}

impl fmt::Display for ForeignLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is a link of another user (uid {}), and is not followed",
            self.path.display(),
            self.user
        )
    }
}

impl Error for ForeignLink {}

/// Returns the absolute path of an existing file or folder, without links.
///
/// # Errors
/// `PermissionDenied` with a [`ForeignLink`]; `ELOOP` when the last name became a link meanwhile;
/// errors of the system.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    let fd = pin(path)?;
    fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens an existing file or folder, without access to its contents (`O_PATH`).
///
/// # Errors
/// The kinds of [`canonical`].
pub fn pin(path: &Path) -> io::Result<OwnedFd> {
    let place = LastName::of(path)?;
    let flags = if place.is_of_kernel { OFlags::PATH | OFlags::CLOEXEC } else { PIN };
    let fd = openat(&place.folder, &*place.name, flags, Mode::empty())?;
    if is_link(&about(&fd)?) {
        return Err(Errno::LOOP.into());
    }
    Ok(fd)
}

/// Opens the folder of a path's last name, and returns both. A mount on the last name is not asked
/// for anything: its server may not answer.
///
/// # Errors
/// The kinds of [`canonical`]; `EINVAL` for a path without a last name.
pub fn folder_of(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    match LastName::of(path)? {
        LastName { folder, name, is_of_kernel: false } if name != "." => Ok((folder, name)),
        _ => Err(Errno::INVAL.into()),
    }
}

/// Opens a file to append to it, and creates it for its owner only if it is missing.
///
/// # Errors
/// The kinds of [`canonical`]; `InvalidInput` for a named pipe, whose reader may make a writer
/// wait. Pipes that this process has open (`/dev/stderr`) are no named ones.
pub fn append(path: &Path) -> io::Result<File> {
    let named_pipe = || io::Error::new(io::ErrorKind::InvalidInput, "a named pipe, not a file");
    let place = LastName::of(path)?;
    // The open does not wait for a reader of a pipe.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOCTTY | OFlags::NONBLOCK;
    let flags = flags | OFlags::CLOEXEC;
    let flags = if place.is_of_kernel { flags } else { flags | OFlags::NOFOLLOW };
    let file = match openat(&place.folder, &*place.name, flags, Mode::RUSR | Mode::WUSR) {
        // No process reads the pipe.
        Err(Errno::NXIO) => return Err(named_pipe()),
        file => file?,
    };
    if !place.is_of_kernel && FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::Fifo {
        return Err(named_pipe());
    }
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file.into())
}

/// The last name of a path, which need not exist, in an open folder. The name was no link when it
/// was inspected.
pub(crate) struct LastName {
    pub(crate) folder: OwnedFd,
    pub(crate) name: OsString,
    /// The name is a link in /proc, which leads to an open file and has no path to look up.
    is_of_kernel: bool,
}

impl LastName {
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let start = if path.is_absolute() { "/" } else { "." };
        let mut folder = openat(CWD, start, FOLDER, Mode::empty())?;
        let mut left = names(path);
        let mut links = 0;
        while let Some(name) = left.pop() {
            let is_last = left.is_empty();
            let fd = match openat(&folder, &*name, PIN, Mode::empty()) {
                Err(Errno::NOENT) if is_last => return Ok(Self { folder, name, is_of_kernel: false }),
                fd => fd?,
            };
            let about = match about(&fd) {
                // A link is never mounted on.
                Err(_) if is_last && mount_of(&fd)? != mount_of(&folder)? => {
                    return Ok(Self { folder, name, is_of_kernel: false });
                }
                about => about?,
            };
            if !is_link(&about) {
                if is_last && name != ".." {
                    return Ok(Self { folder, name, is_of_kernel: false });
                }
                folder = fd;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP.into());
            }
            if !is_trusted(about.stx_uid)? {
                let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
                let foreign = ForeignLink { path: path.unwrap_or(name.into()), user: about.stx_uid };
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, foreign));
            }
            if fstatfs(&fd)?.f_type == PROC_SUPER_MAGIC {
                // The text of a link to an open file is no path, and only the kernel changes links
                // here.
                if is_last {
                    return Ok(Self { folder, name, is_of_kernel: true });
                }
                folder = openat(&folder, &*name, FOLDER, Mode::empty())?;
                continue;
            }
            let target = OsString::from_vec(readlinkat(&fd, "", Vec::new())?.into_bytes());
            if Path::new(&target).is_absolute() {
                folder = openat(CWD, "/", FOLDER, Mode::empty())?;
            }
            left.extend(names(Path::new(&target)));
        }
        Ok(Self { folder, name: ".".into(), is_of_kernel: false })
    }
}

/// Returns the number of the mount of a descriptor's file, as in the mount table. The mount's
/// server is not asked.
///
/// # Errors
/// When /proc cannot be read.
pub fn mount_of(fd: &OwnedFd) -> io::Result<u64> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let number = about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or_else(|| Errno::NOTSUP.into())
}

/// Returns a path's names, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// Returns the attributes of a file, without a request to a mount's server, which may be paused.
fn about(fd: impl AsFd) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    Ok(statx(fd, "", flags, StatxFlags::TYPE | StatxFlags::UID)?)
}

fn is_link(about: &Statx) -> bool {
    FileType::from_raw_mode(about.stx_mode.into()) == FileType::Symlink
}

/// Returns true for this user and for root. A user namespace without root shows root's files, and
/// `/` with them, as those of another number.
fn is_trusted(user: u32) -> io::Result<bool> {
    if user == 0 || user == rustix::process::geteuid().as_raw() {
        return Ok(true);
    }
    Ok(about(openat(CWD, "/", FOLDER, Mode::empty())?)?.stx_uid == user)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use rustix::fs::mknodat;

    use super::*;

    const USER: u32 = 61_234;

    fn tree() -> tempfile::TempDir {
        let scratch = tempfile::tempdir().unwrap();
        fs::create_dir_all(scratch.path().join("victim/folder")).unwrap();
        fs::create_dir(scratch.path().join("user")).unwrap();
        scratch
    }

    #[test]
    fn links_lead_where_the_kernel_would_lead() {
        let scratch = tree();
        let at = |name: &str| scratch.path().join(name);
        symlink("../victim", at("user/relative")).unwrap();
        symlink(at("user/relative/folder"), at("user/absolute")).unwrap();
        symlink("self", at("self")).unwrap();
        for name in [
            "user/relative",
            "user/relative/folder",
            "user/absolute",
            "user/absolute/..",
            "user/absolute/../folder/.",
            "victim/folder/",
        ] {
            assert_eq!(canonical(&at(name)).unwrap(), fs::canonicalize(at(name)).unwrap(), "{name}");
        }
        assert_eq!(canonical(Path::new("/")).unwrap(), Path::new("/"));
        assert_eq!(canonical(Path::new(".")).unwrap(), fs::canonicalize(".").unwrap());
        for (name, errno) in [("self", Errno::LOOP), ("none", Errno::NOENT), ("none/x", Errno::NOENT)] {
            let refused = canonical(&at(name)).unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(errno), "{name}");
            assert!(!ForeignLink::is_cause_of(&refused), "{name}");
        }
        // A link to a missing file, and a link to an open file without a path.
        symlink("victim/log", at("log")).unwrap();
        io::Write::write_all(&mut append(&at("log")).unwrap(), b"line").unwrap();
        assert_eq!(fs::read(at("victim/log")).unwrap(), b"line");
        let (mut read, write) = io::pipe().unwrap();
        let mut log = append(Path::new(&format!("/proc/self/fd/{}", write.as_raw_fd()))).unwrap();
        io::Write::write_all(&mut log, b"line").unwrap();
        drop((log, write));
        let mut text = String::new();
        io::Read::read_to_string(&mut read, &mut text).unwrap();
        assert_eq!(text, "line");
    }

    #[test]
    fn as_many_links_are_followed_as_the_kernel_follows() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |n: u32| scratch.path().join(n.to_string());
        fs::write(at(0), b"").unwrap();
        (1..=MOST_LINKS + 1).for_each(|n| symlink(at(n - 1), at(n)).unwrap());
        for n in MOST_LINKS - 1..=MOST_LINKS + 1 {
            assert_eq!(canonical(&at(n)).is_ok(), fs::metadata(at(n)).is_ok(), "{n} links");
        }
    }

    #[test]
    fn a_last_name_is_in_its_folder_and_a_path_without_one_is_refused() {
        let scratch = tree();
        let at = |name: &str| scratch.path().join(name);
        symlink("../victim", at("user/link")).unwrap();
        let (folder, name) = folder_of(&at("user/link/folder")).unwrap();
        assert_eq!(name, "folder");
        assert_eq!(fstat(&folder).unwrap().st_ino, statx_of(&at("victim")));
        for path in ["/", ".", "..", "/proc/self/fd/0"] {
            let refused = folder_of(Path::new(path)).unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::INVAL), "{path}");
        }
    }

    fn statx_of(path: &Path) -> u64 {
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
    }

    #[test]
    fn a_pinned_open_file_gives_no_access_and_is_closed_for_other_programs() {
        let file = tempfile::tempfile().unwrap();
        let pinned = pin(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))).unwrap();
        assert!(rustix::fs::fcntl_getfl(&pinned).unwrap().contains(OFlags::PATH));
        assert!(rustix::io::fcntl_getfd(&pinned).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn a_new_log_is_its_owners_only() {
        let scratch = tempfile::tempdir().unwrap();
        let log = append(&scratch.path().join("log")).unwrap();
        assert_eq!(fstat(&log).unwrap().st_mode & 0o777, 0o600);
    }

    #[test]
    fn a_mount_has_the_number_of_the_mount_table() {
        let open = |path: &str| openat(CWD, path, FOLDER, Mode::empty()).unwrap();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let of_proc = table.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc")).unwrap();
        let number = mount_of(&open("/proc")).unwrap();
        assert_eq!(of_proc.split(' ').next(), Some(&*number.to_string()));
        assert_ne!(mount_of(&open("/")).unwrap(), number);
    }

    #[test]
    fn a_user_follows_links_of_his_own_and_of_root() {
        if !rustix::process::geteuid().is_root() {
            return underseal_testing::skip("links of two users", "making them needs root");
        }
        let scratch = tree();
        let at = |name: &str| scratch.path().join(name);
        fs::set_permissions(scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for (link, user) in [("own", USER), ("root", 0), ("other", USER + 1)] {
            symlink("victim", at(link)).unwrap();
            lchown(at(link), Some(user), None).unwrap();
        }
        let paths = ["own", "root", "other"].map(at);
        // Of this thread only.
        let followed = std::thread::spawn(move || {
            let user = rustix::fs::Uid::from_raw(USER);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            paths.map(|path| pin(&path).is_ok())
        });
        assert_eq!(followed.join().unwrap(), [true, true, false]);
    }

    #[test]
    fn a_named_pipe_is_no_log() {
        let scratch = tempfile::tempdir().unwrap();
        let pipe = scratch.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let refused = || assert_eq!(append(&pipe).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        refused();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = openat(CWD, &pipe, flags, Mode::empty()).unwrap();
        refused();
    }

    #[test]
    fn a_link_of_another_user_is_not_followed() {
        let scratch = tree();
        let at = |name: &str| scratch.path().join(name);
        fs::write(at("victim/file"), b"").unwrap();
        symlink("../victim/file", at("user/file")).unwrap();
        symlink("../victim", at("user/folder")).unwrap();
        for link in ["user/file", "user/folder"] {
            match lchown(at(link), Some(USER), None) {
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    return underseal_testing::skip("links of other users", "giving them away needs root");
                }
                done => done.unwrap(),
            }
        }
        // A link of root that leads to a link of the user.
        symlink("user/file", at("link")).unwrap();
        for name in ["user/file", "user/folder", "user/folder/file", "user/folder/new", "link"] {
            for refused in [pin(&at(name)).map(drop), append(&at(name)).map(drop)] {
                let refused = refused.unwrap_err();
                assert!(ForeignLink::is_cause_of(&refused), "{name}: {refused}");
                assert!(refused.to_string().contains("/user/f"), "{name}: {refused}");
            }
        }
        assert!(fs::read(at("victim/file")).unwrap().is_empty() && !at("victim/new").exists());
        lchown(at("user/file"), Some(0), None).unwrap();
        append(&at("user/file")).unwrap();
    }
}
