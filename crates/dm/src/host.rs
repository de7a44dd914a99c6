//! The interface of the commands to the machine: served tables and block devices.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_cipher::Key;

use crate::records::Line;
use crate::{DeviceNumber, GrantedKeys, Result};

/// How large a table is, and what its users' requests are multiples of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// 512-byte sectors.
    pub sectors: u64,
    /// The logical block size in bytes.
    pub block: u32,
}

/// A table that was loaded: everything that it lies on is open.
pub struct Table {
    /// Its lines as the kernel prints them, devices by their numbers.
    pub lines: Vec<Line>,
    /// The devices that it lies on, each once.
    pub deps: Vec<DeviceNumber>,
    /// Its size.
    pub room: Room,
    /// What serves it.
    pub served: Arc<dyn Served>,
}

/// A table that is to be loaded.
pub struct TableLoad<'l> {
    /// The device that it is for: a table on that device is refused.
    pub number: DeviceNumber,
    /// The table's lines.
    pub lines: Vec<Line>,
    /// Nothing may be written to it.
    pub read_only: bool,
    /// The table that it will take the place of.
    pub live: Option<&'l [Line]>,
    /// Gives the lines of another device's live table.
    pub below: &'l dyn Fn(DeviceNumber) -> Option<Vec<Line>>,
    /// The keys of the caller's keyrings that it names.
    pub keys: &'l GrantedKeys,
}

/// Makes tables.
pub trait Host: Send + Sync {
    /// Parses a table and opens the devices that it lies on.
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

/// A mount that one table's server hands to the next one's.
#[derive(Debug)]
pub struct Given {
    /// What requests come from.
    pub device: OwnedFd,
    /// What the next server has to know of it.
    pub place: String,
}

/// The outcome of a message to a target.
#[derive(Debug, Default)]
pub struct Messaged {
    /// The target's answer.
    pub text: Option<String>,
    /// The line's parameters from now on.
    pub params: Option<Key>,
    /// Why the message fails, though it changed the parameters.
    pub failed: Option<crate::Error>,
}

/// A table that can be read and written.
pub trait Served: Send + Sync {
    /// Shows the table as this file.
    ///
    /// # Errors
    /// The system's.
    fn show(&self, file: &Path) -> Result<()>;

    /// Ends what is in flight, takes no more requests, flushes, and gives the file away. What is
    /// not taken by another table is [kept](Served::keep).
    ///
    /// # Errors
    /// `EIO` when the flush fails: the table goes on.
    fn give(&self) -> Result<Given>;

    /// Goes on after it was [given](Served::give) and not taken.
    ///
    /// # Errors
    /// `EIO`.
    fn keep(&self) -> Result<()>;

    /// Ends after another table has taken the file.
    fn leave(&self);

    /// Goes on with the file of another table.
    ///
    /// # Errors
    /// The system's: the file is the other table's.
    fn take(&self, given: Given) -> Result<()>;

    /// Ends what is in flight, takes no more requests, and flushes.
    ///
    /// # Errors
    /// `EIO`: the table goes on.
    fn suspend(&self) -> Result<()>;

    /// Takes requests again.
    ///
    /// # Errors
    /// `EAGAIN` after the key was wiped.
    fn resume(&self) -> Result<()>;

    /// Takes requests again even where the key was wiped: those that need it fail.
    fn release(&self);

    /// Gives a message to the target of this line, with the keys that it names.
    ///
    /// # Errors
    /// `EINVAL`, in the kernel's words, for one that it does not take.
    fn message(&self, line: &Line, words: &str, keys: &GrantedKeys) -> Result<Messaged>;

    /// The state of each line, in the kernel's form.
    ///
    /// # Errors
    /// `EIO` when the server is gone.
    fn status(&self) -> Result<Vec<String>>;

    /// Hides the file, flushes, and ends.
    ///
    /// # Errors
    /// `EIO` when what was written may be lost.
    fn end(&self) -> Result<()>;
}

/// A device's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names<'n> {
    /// In /dev/mapper.
    pub name: &'n str,
    /// Empty where it has none.
    pub uuid: &'n str,
}

/// Makes block devices.
pub trait Nodes: Send + Sync {
    /// Makes one, of this minor number where one is given.
    ///
    /// # Errors
    /// `EBUSY` where that one is in use; the system's.
    fn create(&self, minor: Option<u32>) -> Result<Box<dyn Node>>;

    /// A device of these names lies on these others now.
    fn lies_on(&self, _device: DeviceNumber, _names: Names<'_>, _on: &BTreeSet<DeviceNumber>) {}

    /// Refuses a name under which another program shows a device.
    ///
    /// # Errors
    /// `EBUSY`; the system's.
    fn is_free(&self, _name: &str) -> Result<()> {
        Ok(())
    }
}

/// A block device: there from the creation on, of size 0 until it is attached.
pub trait Node: Send + Sync {
    /// Its number.
    fn number(&self) -> DeviceNumber;

    /// Where a table shows itself for it.
    fn file(&self) -> PathBuf;

    /// Puts it over that file.
    ///
    /// # Errors
    /// The system's.
    fn attach(&self, room: Room, read_only: bool) -> Result<()>;

    /// Follows another table's size.
    ///
    /// # Errors
    /// The system's.
    fn follow(&self, room: Room) -> Result<()>;

    /// Takes it off the file.
    ///
    /// # Errors
    /// `EBUSY` while others have it open.
    fn detach(&self) -> Result<()>;

    /// How many have it open, as far as this process sees. Those that serve tables do not count;
    /// `is_below`: tables lie on it, whose claim is not another's.
    fn opens(&self, is_below: bool) -> u32;

    /// Writes what the kernel keeps of it down to the file.
    fn sync(&self);

    /// Keeps its names for a server that comes after this one, before it shows them.
    ///
    /// # Errors
    /// `ENOSPC` and others of writing them.
    fn remember(&self, _names: Names<'_>) -> Result<()> {
        Ok(())
    }

    /// Shows it as `/dev/mapper/NAME`, and by its UUID if it has one, in place of another name and
    /// UUID.
    ///
    /// # Errors
    /// The system's.
    fn name(&self, names: Names<'_>, before: Option<Names<'_>>) -> Result<()>;

    /// Gives it back to the system at once, although it is open here still.
    fn give_back(&self);

    /// Takes its names away.
    fn unname(&self, names: Names<'_>);
}
