//! The path of an open volume's plain bytes: `NAME` as a block device, or as a file in a folder of
//! the user.
//!
//! The setting is `UNDERSEAL_MAPPER`: `ublk`, or a folder. Without it: a block device where this
//! user may make one, else a file in the folder `mapper` beside the control sockets. For root
//! `/dev/mapper/NAME` leads to a block device in any case, as scripts expect: a file gets a loop
//! device.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::FlockOperation;
use underseal_export::control::{Directory, Name, Status};
use underseal_export::fuse::SOURCE;

use super::failure::{self, Failure, Result};
use super::loops::{self, LoopUse};

/// The control device of ublk.
const UBLK_CONTROL: &str = "/dev/ublk-control";
/// The folder that scripts expect.
const MAPPER: &str = "/dev/mapper";

/// The paths of one volume.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: Name,
    /// The file that the plain bytes are mounted over; `None` for a block device.
    pub(super) file: Option<PathBuf>,
}

impl Place {
    /// Returns the paths of the volume of that name, whether it is open or not.
    pub(super) fn of(name: &Path) -> Result<Self> {
        let text = name.to_string_lossy();
        // Scripts may name the link.
        let text = text.strip_prefix("/dev/mapper/").unwrap_or(&text);
        let name: Name =
            unescaped(text).parse().map_err(|e: underseal_export::Error| Failure::wrong(&e.to_string()))?;
        let folder = match std::env::var_os("UNDERSEAL_MAPPER").filter(|value| !value.is_empty()) {
            Some(value) if value == "ublk" => None,
            Some(folder) => Some(PathBuf::from(folder)),
            None if File::options().read(true).write(true).open(UBLK_CONTROL).is_ok() => None,
            None => Some(Directory::of_user().path().join("mapper")),
        };
        if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_absolute()) {
            let line = format!("UNDERSEAL_MAPPER: {} is neither ublk nor an absolute path", folder.display());
            return Err(Failure::wrong(&line));
        }
        let file = folder.map(|folder| folder.join(name.to_string()));
        Ok(Self { name, file })
    }

    /// Returns the path of the plain bytes.
    pub(super) fn path(&self) -> PathBuf {
        self.file.clone().unwrap_or_else(|| Path::new("/dev/underseal").join(self.name.to_string()))
    }

    /// Returns the path that scripts know.
    pub(super) fn shown(&self) -> PathBuf {
        if is_root() { self.link() } else { self.path() }
    }

    fn link(&self) -> PathBuf {
        Path::new(MAPPER).join(escaped(self.name.as_str()))
    }

    /// Prepares the paths for a volume that is about to be opened. The remains of a killed server
    /// are removed first.
    pub(super) fn make(&self) -> Result<()> {
        self.unlink();
        if is_root() && fs::symlink_metadata(self.link()).is_ok() {
            let line = format!("Device {} already exists.", self.name);
            return Err(Failure::new(failure::Status::Busy, line));
        }
        let Some(file) = &self.file else { return Ok(()) };
        let failed = |e: io::Error| Failure::wrong(&format!("{}: {e}", file.display()));
        let folder = file.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        // The default folder is in the runtime folder, which another user may have made in /tmp.
        let default = Directory::of_user().path().to_owned();
        for folder in [folder, &default].into_iter().filter(|above| folder.starts_with(above)) {
            belongs_to_user(folder)?;
        }
        self.unmount_dead().map_err(failed)?;
        match File::options().write(true).create_new(true).mode(0o600).open(file) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map(drop).map_err(failed),
        }
    }

    /// Replaces the paths by those of the volume's server, which may have had another environment.
    pub(super) fn where_served(mut self, about: &Status) -> Self {
        let named =
            |at: &&Path| at.is_absolute() && at.file_name() == Some(OsStr::new(&self.name.to_string()));
        let mut paths = about.addresses.iter().map(Path::new);
        if let Some(file) = paths.clone().find(|at| named(at) && !at.starts_with("/dev")) {
            self.file = Some(file.to_owned());
        } else if paths.any(|at| at.starts_with("/dev")) {
            self.file = None;
        }
        self
    }

    /// Excludes other processes from opening or closing a volume of this name, until it is dropped.
    pub(super) fn lock(&self) -> Result<File> {
        let default = Directory::of_user().path().to_owned();
        let folder = self.file.as_ref().and_then(|file| file.parent()).unwrap_or(&default);
        let path = folder.join(format!(".{}.lock", self.name));
        let failed = |e: io::Error| Failure::wrong(&format!("{}: {e}", path.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        belongs_to_user(folder)?;
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed)?;
        // The process that clears up after a server has it for a moment.
        for _ in 0..20 {
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                return Ok(file);
            }
            thread::sleep(Duration::from_millis(50));
        }
        let line = format!("Device {} is being opened or closed.", self.name);
        Err(Failure::new(failure::Status::Busy, line))
    }

    /// Makes the link `/dev/mapper/NAME` to the plain bytes.
    pub(super) fn link_up(&self, about: &Status) {
        if !is_root() {
            return;
        }
        let attach = |file: &PathBuf| loops::attach(file, about.block.min(4096), about.read_only);
        let device = self.file.as_ref().and_then(attach);
        let to = device.clone().unwrap_or_else(|| self.path());
        let made = DirBuilder::new().recursive(true).mode(0o755).create(MAPPER);
        let made = made.and_then(|()| {
            let of = device.as_deref().and_then(LoopUse::of_served).map(|of| of.to_bytes());
            let record = of.unwrap_or_else(|| to.as_os_str().as_bytes().to_owned());
            self.record().map_or(Ok(()), |path| fs::write(path, record))
        });
        if let Err(e) = made.and_then(|()| symlink(&to, self.link())) {
            let of = device.as_deref().and_then(LoopUse::of);
            let _ = of.map(|of| of.release());
            log::warn!("{}: {e}; the volume is at {}", self.link().display(), self.path().display());
        }
    }

    /// Returns the block device that scripts know, as long as it is the volume's.
    pub(super) fn device(&self) -> Option<PathBuf> {
        match &self.file {
            None => Some(self.path()),
            Some(_) => self.loop_use().map(|of| of.device),
        }
    }

    /// Returns the loop device that was made for the file, until it has given up the file: also
    /// after the file was unmounted, and with its link gone.
    fn loop_use(&self) -> Option<LoopUse> {
        if !is_root() {
            return None;
        }
        let recorded = self.recorded().and_then(|record| LoopUse::from_bytes(&record));
        match recorded {
            Some(of) => Some(of).filter(LoopUse::is_current),
            // Older versions recorded the path alone.
            None => {
                let device = fs::read_link(self.link()).ok().filter(|to| to.starts_with("/dev"))?;
                LoopUse::of(&device).filter(|_| loops::file_of(&device) == Some(self.path()))
            }
        }
    }

    /// Releases the loop device, which disappears when no program has it open; the link stays.
    pub(super) fn detach(&self) {
        if let Some(of) = self.loop_use()
            && let Err(e) = of.release()
        {
            log::warn!("{}: {e}", of.device.display());
        }
    }

    /// Releases the loop device of a volume whose server ends, and removes the link to it: the
    /// kernel may give the device to another file when its last user has closed it. Waits a moment
    /// for users, like udev.
    pub(super) fn let_go(&self) {
        if self.file.is_none() {
            return;
        }
        self.unlink_keeping_record();
        for _ in 0..40 {
            if self.loop_use().is_none() {
                return;
            }
            thread::sleep(Duration::from_millis(25));
        }
    }

    /// Makes `/dev/mapper/NAME` lead to the file, in place of a loop device that was released.
    pub(super) fn lead_to_file(&self) {
        if self.file.is_none() || self.linked().is_none_or(|to| to == self.path()) {
            return;
        }
        // The record keeps the loop device, which a program may have open still.
        let _ = fs::remove_file(self.link());
        if let Err(e) = symlink(self.path(), self.link()) {
            log::warn!("{}: {e}; the volume is at {}", self.link().display(), self.path().display());
        }
    }

    /// Corrects `/dev/mapper/NAME` where it leads to a loop device that has given up the file: by
    /// now another file may have that.
    pub(super) fn mend_link(&self, mend: fn(&Self)) {
        let leads_astray = || {
            let to = self.linked().filter(|to| *to != self.path());
            self.file.is_some() && to.is_some() && self.loop_use().is_none()
        };
        // Where the volume is just being opened or closed, that corrects it.
        if leads_astray()
            && let Ok(_lock) = self.lock()
            && leads_astray()
        {
            mend(self);
        }
    }

    /// Removes `/dev/mapper/NAME`, and the loop device that it led to.
    pub(super) fn unlink(&self) {
        self.unlink_keeping_record();
        let _ = self.record().map(fs::remove_file);
    }

    /// As [`Self::unlink`]. The record tells of a loop device that is still in use.
    fn unlink_keeping_record(&self) {
        self.detach();
        if self.linked().is_some() {
            // The link leads nowhere now.
            let _ = fs::remove_file(self.link());
        }
    }

    /// Removes the paths of a closed volume.
    pub(super) fn clear(&self) {
        self.unlink();
        let _ = self.unmount_dead();
        // A file with contents belongs to the user.
        if let Some(file) = &self.file
            && fs::symlink_metadata(file).is_ok_and(|about| about.is_file() && about.len() == 0)
        {
            let _ = fs::remove_file(file);
        }
    }

    /// Returns true when any of the paths is there.
    pub(super) fn is_left(&self) -> bool {
        let paths = [self.file.clone(), self.record()];
        paths
            .into_iter()
            .flatten()
            .any(|path| !matches!(fs::symlink_metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound))
    }

    /// Removes the mount of a server that was killed.
    fn unmount_dead(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        underseal_fuse::unmount_dead(file, |found| found.source == SOURCE).map(drop)
    }

    /// Returns the link's target, if this program made the link for a volume of this name; also
    /// when the loop device has another file by now.
    fn linked(&self) -> Option<PathBuf> {
        let to = fs::read_link(self.link()).ok().filter(|_| is_root())?;
        let recorded = || {
            let record = self.recorded()?;
            let path = record.split(|byte| *byte == 0).next()?;
            Some(path == to.as_os_str().as_bytes())
        };
        let is_ours =
            to == self.path() || loops::file_of(&to) == Some(self.path()) || recorded().unwrap_or(false);
        is_ours.then_some(to)
    }

    /// Returns the path of the record: what the link leads to, with the [use](LoopUse) of a loop
    /// device. It identifies both when no other fact does.
    fn record(&self) -> Option<PathBuf> {
        Some(self.file.as_ref()?.with_file_name(format!(".{}.device", self.name)))
    }

    fn recorded(&self) -> Option<Vec<u8>> {
        fs::read(self.record()?).ok()
    }
}

/// Escapes a name as device mapper's library does in `/dev/mapper`: ASCII characters that are
/// special to a shell or udev become `\xNN`.
fn escaped(name: &str) -> String {
    let is_kept = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c);
    let one = |c: char| if is_kept(c) { c.to_string() } else { format!("\\x{:02x}", u32::from(c)) };
    name.chars().map(one).collect()
}

/// Returns the name of an [`escaped`] text. A name with any other character is returned unchanged.
fn unescaped(text: &str) -> String {
    let mut parts = text.split("\\x");
    let mut name = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(u8::is_ascii);
        let Some(code) = code else { return text.to_owned() };
        name.push(char::from(code));
        name.push_str(&part[2..]);
    }
    if escaped(&name) == text { name } else { text.to_owned() }
}

/// Refuses a folder in which other users could replace a volume.
fn belongs_to_user(folder: &Path) -> Result<()> {
    let about = fs::symlink_metadata(folder);
    let about = about.map_err(|e| Failure::wrong(&format!("{}: {e}", folder.display())))?;
    let own = about.uid() == rustix::process::geteuid().as_raw();
    if about.is_dir() && own && about.mode() & 0o022 == 0 {
        return Ok(());
    }
    let line = format!("{} is no folder that this user alone may write to.", folder.display());
    Err(Failure::new(failure::Status::NoPermission, line))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_spelled_as_device_mapper_spells_it() {
        for (name, spelled) in [
            ("tomb.a_1", "tomb.a_1"),
            ("a b", r"a\x20b"),
            (",%~{}!'", r"\x2c\x25\x7e\x7b\x7d\x21\x27"),
            (r"a\b", r"a\x5cb"),
            ("größe", "größe"),
        ] {
            assert_eq!(escaped(name), spelled);
            assert_eq!(unescaped(spelled), name);
            assert_eq!(unescaped(name), name, "as it was meant");
        }
        // Names with both kinds of characters, and texts that are no escapes.
        for text in [r"a b\x20c", r"a\x4", r"a\xzz", r"a\x41", r"\xc3\xa4", r"a\x2"] {
            assert_eq!(unescaped(text), text);
        }
        // A character that is hidden in an escape is refused in a name.
        for text in [r"a\x2fb", r"a\x0a", r"a\x00"] {
            assert!(unescaped(text).parse::<Name>().is_err(), "{text}");
        }
    }
}
