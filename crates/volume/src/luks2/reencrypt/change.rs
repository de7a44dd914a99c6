//! Another protection for the remaining steps.

use serde_json::Value;

use super::arrange::{Document, area_words, parse, sign, steps_fit};
use super::ledger::Ledger;
use crate::luks2::metadata::Metadata;
use crate::luks2::update::words;
use crate::reencrypt::{Ledger as _, Mode, Protection};
use crate::{Error, ErrorKind, Result, VolumeKey};

impl Ledger<'_> {
    /// Changes the protection of the remaining steps, with the key of [`Ledger::resume`], in one
    /// update of the header. The shift of the data stays.
    ///
    /// # Errors
    /// `NeedsRecovery` in the middle of a step, which needs the old protection; `BadOption` for a
    /// protection that this reencryption cannot have; `BadLayout` when the area is too small;
    /// `NoRoom` when the header is too small; `Busy`, `Io`.
    pub fn protect_with(&mut self, protection: Protection, key: &VolumeKey) -> Result<()> {
        if self.plan().step(self.progress()).is_none() {
            return Ok(());
        }
        if self.progress().hot.is_some() {
            let context = "a step was cut off, and is made good with the protection that it had: go on first";
            return Err(Error::new(ErrorKind::NeedsRecovery, context));
        }
        let shift = self.of.resilience.shift;
        let guards_moved = self.of.mode == Mode::Decrypt && shift.is_some();
        let fits = match protection {
            Protection::Source => false,
            Protection::None => shift.is_none(),
            Protection::Checksum { .. } | Protection::Journal => shift.is_none() || guards_moved,
        };
        if !fits {
            let context = "data that moves is protected by its source, and by no other means";
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        let header_size = self.header.stored.binary.size;
        let slot = self.of.slot;
        let given = self.given;
        let mut found = None;
        let edit = |document: &mut Document, _: &Metadata| {
            let said = words::keyslot(document, slot)?;
            let area = words::object(said.get_mut("area"), "area")?;
            let mut new = area_words(protection, shift, guards_moved);
            let words = words::object(Some(&mut new), "area")?;
            for name in ["offset", "size"] {
                words.insert(name.into(), area.get(name).cloned().unwrap_or(Value::Null));
            }
            *area = words.clone();
            sign(document, header_size, key)?;
            let (metadata, of) = parse(document, header_size)?;
            let (plan, _) = super::activate::verified(&metadata, &of, key, given)?;
            steps_fit(document, &of, &plan, header_size)?;
            found = Some(plan);
            Ok(())
        };
        self.header.update(&self.on, edit, |()| Ok(()))?;
        self.taken_over(found)
    }
}
