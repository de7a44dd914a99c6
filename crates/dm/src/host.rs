//! The interface of the commands to the machine: served tables and block devices.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use underseal_cipher::Key;

use crate::records::Line;
use crate::{DeviceNumber, GrantedKeys, Result};

/// How large a table is, and what its users' requests are multiples of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The size in 512-byte sectors.
    pub sectors: u64,
    /// The logical block size in bytes.
    pub block: u32,
}

/// A loaded table, whose lower devices are open.
pub struct Table {
    /// The lines in the kernel's printed form, with devices as numbers.
    pub lines: Vec<Line>,
    /// The table's lower devices, without repetition.
    pub deps: Vec<DeviceNumber>,
    /// The devices below those lower devices that are not this server's, as far as they are known:
    /// a loop device's file may lie on any device.
    pub beneath: Vec<DeviceNumber>,
    /// The size.
    pub room: Room,
    /// The server of the table.
    pub served: Arc<dyn Served>,
}

/// A table to be loaded.
pub struct TableLoad<'l> {
    /// The device that it is for. A table on that device is refused.
    pub number: DeviceNumber,
    /// The table's lines.
    pub lines: Vec<Line>,
    /// The table is read-only.
    pub read_only: bool,
    /// The table that it will replace.
    pub live: Option<&'l [Line]>,
    /// Returns the lines of another device's live table.
    pub below: &'l dyn Fn(DeviceNumber) -> Option<Vec<Line>>,
    /// The keys of the caller's keyrings that the table names.
    pub keys: &'l GrantedKeys,
}

/// Loads tables.
pub trait Host: Send + Sync {
    /// Parses a table and opens its lower devices.
    ///
    /// # Errors
    /// `EINVAL` and others, in the kernel's words.
    fn load(&self, load: TableLoad<'_>) -> Result<Table>;
}

impl<H: Host> Host for Arc<H> {
    fn load(&self, load: TableLoad<'_>) -> Result<Table> {
        H::load(self, load)
    }
}

/// A mount or a disk that a table's server hands over to the next table's server.
#[derive(Debug)]
pub struct Given {
    /// The source of a mount's requests.
    pub device: Option<OwnedFd>,
    /// The next server's information about it.
    pub place: String,
}

/// A ublk disk that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UblkDisk {
    /// The path beside which the table's server has its files.
    pub file: PathBuf,
    /// The N of /dev/ublkbN.
    pub id: u32,
    /// A number that only this device has.
    pub identity: u64,
    /// The table is read-only.
    pub read_only: bool,
}

/// The outcome of a message to a target.
#[derive(Debug, Default)]
pub struct Messaged {
    /// The target's answer.
    pub text: Option<String>,
    /// The line's new parameters.
    pub params: Option<Key>,
    /// Why the message failed although it changed the parameters.
    pub failed: Option<crate::Error>,
}

/// A table that can be read and written.
pub trait Served: Send + Sync {
    /// Shows the table as this file.
    ///
    /// # Errors
    /// The errors of the system calls.
    fn show(&self, file: &Path) -> Result<()>;

    /// Shows the table as a ublk disk.
    ///
    /// # Errors
    /// `EBUSY` when another program has the disk's number; the errors of the system calls.
    fn show_disk(&self, disk: &UblkDisk) -> Result<()>;

    /// Takes that disk away.
    ///
    /// # Errors
    /// `EBUSY` when a program has claimed the disk: the disk stays.
    fn hide_disk(&self) -> Result<()>;

    /// Ends the requests in progress, accepts no more requests, flushes, and returns the file for
    /// another table. If no other table takes it, [`Served::keep`] follows.
    ///
    /// # Errors
    /// `EIO` when the flush fails: the table continues.
    fn give(&self) -> Result<Given>;

    /// Continues after [`Served::give`] whose file no other table has taken.
    ///
    /// # Errors
    /// `EIO`.
    fn keep(&self) -> Result<()>;

    /// Ends after another table has taken the file.
    fn leave(&self);

    /// Continues with the file of another table.
    ///
    /// # Errors
    /// The system's errors: the file stays the other table's.
    fn take(&self, given: Given) -> Result<()>;

    /// Ends the requests in progress, accepts no more requests, and flushes.
    ///
    /// # Errors
    /// `EIO`: the table continues.
    fn suspend(&self) -> Result<()>;

    /// Accepts requests again.
    ///
    /// # Errors
    /// `EAGAIN` after the key was wiped.
    fn resume(&self) -> Result<()>;

    /// Accepts requests again even after the key was wiped: requests that need the key fail.
    fn release(&self);

    /// Has a table's delays begin, or end: requests that wait are sent soon then. Not for suspended
    /// tables.
    fn delay(&self, _is_up: bool) {}

    /// Sends a message to the target of this line, with the keys that it names.
    ///
    /// # Errors
    /// `EINVAL`, in the kernel's words, for a message that the target refuses.
    fn message(&self, line: &Line, words: &str, keys: &GrantedKeys) -> Result<Messaged>;

    /// Returns the state of each line, in the kernel's form.
    ///
    /// # Errors
    /// `EIO` when the server has ended.
    fn status(&self) -> Result<Vec<String>>;

    /// Hides the file, flushes, and ends.
    ///
    /// # Errors
    /// `EIO` when writes may be lost.
    fn end(&self) -> Result<()>;
}

/// A device's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names<'n> {
    /// The name in /dev/mapper.
    pub name: &'n str,
    /// The UUID; may be empty.
    pub uuid: &'n str,
}

/// Creates block devices.
pub trait Nodes: Send + Sync {
    /// Creates a device, with the minor number if given.
    ///
    /// # Errors
    /// `EBUSY` when the number is in use; the system's errors.
    fn create(&self, minor: Option<u32>) -> Result<Box<dyn Node>>;

    /// Records that a device of these names lies on these devices now.
    fn lies_on(&self, _device: DeviceNumber, _names: Names<'_>, _on: &BTreeSet<DeviceNumber>) {}

    /// Refuses a name under which another program shows a device.
    ///
    /// # Errors
    /// `EBUSY`; the system's errors.
    fn is_free(&self, _name: &str) -> Result<()> {
        Ok(())
    }
}

/// A block device. It shows nothing until it shows a table.
pub trait Node: Send + Sync {
    /// Returns the device's number. It may be another one once the device has shown a table.
    fn number(&self) -> DeviceNumber;

    /// Shows the first table.
    ///
    /// # Errors
    /// The errors of the system calls.
    fn show(&self, table: &dyn Served, room: Room, read_only: bool) -> Result<()>;

    /// Refuses a further table that the device cannot show.
    ///
    /// # Errors
    /// `EINVAL`.
    fn accepts(&self, _room: Room) -> Result<()> {
        Ok(())
    }

    /// Adapts the device to another table's size.
    ///
    /// # Errors
    /// The errors of the system calls.
    fn follow(&self, room: Room) -> Result<()>;

    /// Takes the device off its table.
    ///
    /// # Errors
    /// `EBUSY` while other programs have it open.
    fn detach(&self, table: &dyn Served) -> Result<()>;

    /// Returns the number of openers, as far as this process can see. Table servers do not count.
    /// With `is_below`, tables lie on it, and an exclusive claim is theirs.
    fn opens(&self, is_below: bool) -> u32;

    /// Writes what the kernel keeps of it down to the file.
    ///
    /// # Errors
    /// `ETIMEDOUT` and `EBUSY` when that hangs. Refusals of the file's server are in the log only.
    fn sync(&self) -> Result<()>;

    /// Stores its names for a later server, before showing them.
    ///
    /// # Errors
    /// `ENOSPC` and other write errors.
    fn remember(&self, _names: Names<'_>) -> Result<()> {
        Ok(())
    }

    /// Stores for a later server whether the device is removed after its last close.
    ///
    /// # Errors
    /// `ENOSPC` and other write errors.
    fn keep_deferred(&self, _deferred: bool) -> Result<()> {
        Ok(())
    }

    /// Stores for a later server whether the device has an inactive table, which that server will
    /// not have.
    ///
    /// # Errors
    /// `ENOSPC` and other write errors.
    fn keep_loaded(&self, _loaded: bool) -> Result<()> {
        Ok(())
    }

    /// Shows it as `/dev/mapper/NAME`, and by its UUID if any, in place of another name and UUID.
    ///
    /// # Errors
    /// The errors of the system calls.
    fn name(&self, names: Names<'_>, before: Option<Names<'_>>) -> Result<()>;

    /// Releases the device to the system at once, although it is still open here.
    fn give_back(&self);

    /// Removes its names.
    fn unname(&self, names: Names<'_>);
}
