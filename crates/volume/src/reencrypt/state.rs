//! The state file: a reencryption's ledger for volumes without a header.
//! `docs/reencryption-state.md` is its format.
//!
//! ```text
//!   byte 0        a copy of the document     written in turn, so a copy is always whole     copies
//!   byte 16384    the other copy
//!   byte 32768    the area, for the protection of a step
//! ```
//!
//! The file holds no key. It holds proofs of the right keys, and a seal over all of the document
//! that needs the keys: without the keys, an attacker cannot cause a decryption, or an exchange of
//! old and new bytes.

mod copies;
mod document;
pub mod marker;
mod seal;

use serde::Serialize;
use uuid::Uuid;

use self::copies::{Copies, Text};
use self::document::Document;
use self::seal::Seal;
use super::{Ledger, Plan, Progress};
use crate::kdf::Budget;
use crate::lock::HeaderLock;
use crate::storage::{self, Target};
use crate::{Error, ErrorKind, KdfLimits, Key, LockTo, Result};

/// The beginning of the area.
const AREA: u64 = 2 * copies::LEN;

/// The keys of a volume's two forms. `None` stands for plaintext.
#[derive(Debug, Clone, Copy)]
pub struct Keys<'k> {
    /// The key of the old form.
    pub old: Option<&'k Key>,
    /// The key of the new form.
    pub new: Option<&'k Key>,
}

/// A state file as it was read, not yet confirmed by the keys.
pub struct State<'a> {
    on: &'a dyn Target,
    document: Document,
    text: Text,
    copies: Copies,
    lock: Option<HeaderLock<'a>>,
}

/// The information in a state file that needs no key.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    /// The reencryption's UUID.
    pub identity: Uuid,
    /// The change: reencrypt, encrypt or decrypt.
    pub mode: super::Mode,
    /// The volume's size in bytes.
    pub size: u64,
    /// The number of new bytes.
    pub done: u64,
    /// True when the volume needs recovery before its next use.
    pub hot: bool,
    /// True when the reencryption is over.
    pub finished: bool,
    /// The old cipher, if any.
    pub old: Option<String>,
    /// The new cipher, if any.
    pub new: Option<String>,
}

/// A state file with confirmed keys: a ledger. It stays locked until this value is dropped.
pub struct StateLedger<'a> {
    on: &'a dyn Target,
    plan: Plan,
    document: Document,
    seal: Seal,
    copies: Copies,
    _lock: Option<HeaderLock<'a>>,
}

impl<'a> State<'a> {
    /// The default number of PBKDF2 rounds over each key, which may come from a passphrase.
    pub const ITERATIONS: u32 = 500_000;

    /// Reads a state file, and keeps it locked: to change it, or to read it.
    ///
    /// # Errors
    /// `NoHeader` when it is no state file; `BadHeader` when neither copy is sound; `Busy` when
    /// another process uses it; `Io`.
    pub fn read(on: &'a dyn Target, to: LockTo) -> Result<Self> {
        let lock = on.lock(to)?;
        let (copies, text) = Copies::read(on)?;
        let document = Document::parse(text.json())?;
        Ok(Self { on, document, text, copies, lock })
    }

    /// Returns the information that needs no key.
    pub fn about(&self) -> About {
        self.document.about()
    }

    /// Confirms the keys, and resumes the reencryption over a data device of `data_size` bytes.
    ///
    /// # Errors
    /// `WrongKey`, with the name of the key; `Untrusted` when the file was written without the
    /// keys; `BadLayout` when the device's size has changed, or the plan is invalid; `TooSmall`
    /// when the file ends before its area does; `Unsupported` for its ciphers; `TooCostly`,
    /// `Memory`.
    pub fn unlock(self, keys: Keys<'_>, data_size: u64) -> Result<StateLedger<'a>> {
        let Self { on, document, text, copies, lock } = self;
        let seal = document.unseal(keys, &Budget::new(KdfLimits::default()))?;
        seal.confirm(text.json(), text.seal())?;
        document.fits(data_size)?;
        let plan = document.plan(keys)?;
        plan.check()?;
        plan.check_progress(document.progress())?;
        let end = AREA.checked_add(plan.area).filter(|end| storage::size(on).is_ok_and(|size| size >= *end));
        end.ok_or_else(|| Error::new(ErrorKind::TooSmall, "the state file ends before its area does"))?;
        Ok(StateLedger { on, plan, document, seal, copies, _lock: lock })
    }
}

impl<'a> StateLedger<'a> {
    /// Creates a state file for a plan, over a data device of `data_size` bytes. On return the file
    /// is on stable storage, except its name in its folder; no data has changed.
    ///
    /// # Errors
    /// `BadLayout` when the plan cannot be carried out; `BadOption` when keys and ciphers do not
    /// fit, or the file already has a state; `TooCostly` for more rounds than [`State::unlock`]
    /// allows; `Busy` when another process uses the file; `Memory`, `Io`.
    pub fn create(
        on: &'a dyn Target,
        plan: Plan,
        keys: Keys<'_>,
        data_size: u64,
        iterations: u32,
    ) -> Result<Self> {
        let lock = on.lock(LockTo::Change)?;
        plan.check()?;
        let end = AREA + plan.area;
        if storage::size(on)? < end {
            on.set_len(end).map_err(|e| {
                let context = format!("the state file cannot be made {end} bytes long");
                Error::new(ErrorKind::Io, context).with_source(e)
            })?;
        }
        let mut copies = Copies::begin(on)?;
        // The limits of a later [`State::unlock`].
        let budget = || Budget::new(KdfLimits::default());
        let document = Document::new(&plan, keys, data_size, iterations, &budget())?;
        let seal = document.unseal(keys, &budget())?;
        copies.write(on, &document, &seal)?;
        Ok(Self { on, plan, document, seal, copies, _lock: lock })
    }

    /// Returns the information that needs no key.
    pub fn about(&self) -> About {
        self.document.about()
    }

    /// Returns the place of a range of the area in the file.
    fn place(&self, at: u64, len: usize) -> Result<u64> {
        let beyond = || Error::new(ErrorKind::TooSmall, format!("{len} bytes at {at} are beyond the area"));
        let end = at.checked_add(len as u64).filter(|end| *end <= self.plan.area);
        end.map(|_| AREA + at).ok_or_else(beyond)
    }

    /// Writes a changed document, and keeps it once it is on stable storage.
    fn update(&mut self, change: impl FnOnce(&mut Document)) -> Result<()> {
        let mut document = self.document.clone();
        change(&mut document);
        document.count()?;
        // Even after an error, the number counts as used.
        self.document.set_count(&document);
        self.copies.write(self.on, &document, &self.seal)?;
        self.document = document;
        Ok(())
    }
}

impl Ledger for StateLedger<'_> {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn progress(&self) -> Progress {
        self.document.progress()
    }

    fn secure(&mut self) -> Result<()> {
        self.copies.secure(self.on).map_err(within)
    }

    fn write_area(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        storage::write(self.on, self.place(at, bytes.len())?, bytes).map_err(within)
    }

    fn sync_area(&mut self) -> Result<()> {
        storage::sync(self.on).map_err(within)
    }

    fn read_area(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        storage::read_into(self.on, self.place(at, bytes.len())?, bytes).map_err(within)
    }

    fn record(&mut self, progress: Progress) -> Result<()> {
        self.update(|document| document.set_progress(progress)).map_err(within)
    }

    fn finish(&mut self, data: &(dyn Target + Sync)) -> Result<()> {
        if self.document.is_finished() {
            return Ok(());
        }
        for place in self.plan.leftovers() {
            storage::scrub(data, place)?;
            storage::sync(data)?;
        }
        // The area has held old bytes, or their hashes.
        storage::scrub(self.on, AREA..AREA + self.plan.area).map_err(within)?;
        storage::sync(self.on).map_err(within)?;
        self.update(Document::set_finished).map_err(within)
    }
}

fn within(e: Error) -> Error {
    e.within("the state file")
}

#[cfg(test)]
mod tests;
