//! The facts that a table server keeps for the next back end: the table in the kernel's form, with
//! its keys.
//!
//! ```text
//!   ro|rw SECTORS BLOCK DEVICE,DEVICE..
//!   START LENGTH TARGET PARAMETERS..        each line
//! ```

use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_dm::records::Line;
use underseal_dm::{DeviceNumber, Error, Result, Room};
use zeroize::Zeroizing;

/// A table's facts.
pub(super) struct RememberedTable {
    pub(super) lines: Vec<Line>,
    pub(super) deps: Vec<DeviceNumber>,
    pub(super) room: Room,
    pub(super) read_only: bool,
}

impl RememberedTable {
    /// Formats the facts as text.
    pub(super) fn print(&self) -> Zeroizing<String> {
        let mode = if self.read_only { "ro" } else { "rw" };
        let deps = self.deps.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let head = format!("{mode} {} {} {deps}\n", self.room.sectors, self.room.block);
        let lines = super::host::text(&self.lines);
        let mut text = Zeroizing::new(String::with_capacity(head.len() + lines.len()));
        text.push_str(&head);
        text.push_str(&lines);
        text
    }

    /// Parses that text.
    pub(super) fn parse(text: &Key) -> Result<Self> {
        let bad = || Error::new(Errno::IO, "a table's server has kept a malformed text");
        let text = std::str::from_utf8(text.as_bytes()).map_err(|_| bad())?;
        let (head, lines) = text.split_once('\n').ok_or_else(bad)?;
        let mut words = head.split(' ');
        let mut word = || words.next().ok_or_else(bad);
        let read_only = word()? == "ro";
        let sectors = word()?.parse().map_err(|_| bad())?;
        let block = word()?.parse().map_err(|_| bad())?;
        let deps = word()?.split(',').filter(|dep| !dep.is_empty());
        let deps = deps.map(|dep| dep.parse().map_err(|_| bad())).collect::<Result<_>>()?;
        let line = |line: &str| {
            let mut words = line.splitn(4, ' ');
            let mut word = || words.next().ok_or_else(bad);
            let (start, len) = (word()?.parse().map_err(|_| bad())?, word()?.parse().map_err(|_| bad())?);
            Line::new(start, len, word()?, words.next().unwrap_or_default())
        };
        let lines = lines.lines().map(line).collect::<Result<_>>()?;
        Ok(Self { lines, deps, room: Room { sectors, block }, read_only })
    }
}
