//! Changes of the UUID, and the removal of all keyslots.

use crate::format::bad;
use crate::luks1::Header;
use crate::luks1::phdr::{LEN, Phdr};
use crate::text::FixedText;
use crate::{Result, Settings, Target, storage};

impl Header {
    /// Changes settings; see [`crate::Header::set`].
    pub(crate) fn set(&mut self, on: &(impl Target + ?Sized), settings: &Settings) -> Result<()> {
        let Settings { label, subsystem, uuid, on: flags, off } = settings;
        if label.is_some() || subsystem.is_some() {
            return Err(bad("LUKS1 has no label or subsystem; convert it to LUKS2"));
        }
        if !flags.is_empty() || !off.is_empty() {
            return Err(bad("LUKS1 has no persistent flags; convert it to LUKS2"));
        }
        let Some(uuid) = uuid else { return Ok(()) };
        let uuid = FixedText::new(&uuid.hyphenated().to_string(), "UUID")?;
        self.update(
            on,
            |phdr: &mut Phdr| {
                phdr.set_uuid(uuid);
                Ok(())
            },
            |()| Ok(()),
        )
    }

    /// Removes all keyslots; see [`crate::Header::erase`].
    pub(crate) fn erase(&mut self, on: &(impl Target + ?Sized)) -> Result<Vec<u32>> {
        let gone: Vec<u32> = self.areas().into_iter().map(|(number, _)| number).collect();
        let end = self.keyslots_end().min(storage::size(on)?);
        let mut areas = self.areas();
        let edit = |phdr: &mut Phdr| {
            phdr.slots.fill(None);
            Ok(())
        };
        self.update(on, edit, |()| {
            // The whole room is wiped: keyslots removed earlier may have left remains, too.
            areas.push((0, LEN.next_multiple_of(4096) as u64..end));
            areas.iter().try_for_each(|(_, area)| storage::scrub(on, area.clone()))?;
            storage::sync(on)
        })?;
        Ok(gone)
    }
}
