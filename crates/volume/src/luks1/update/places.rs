//! Key material that moves.

use crate::lock::LockTo;
use crate::luks1::phdr::Phdr;
use crate::luks1::{Header, unchanged};
use crate::{Error, ErrorKind, Result, Target, storage};

impl Header {
    /// Moves a keyslot's key material to byte `place`, where nobody else's lies. It opens from the one place or the other at every instant.
    ///
    /// # Errors
    /// Those of an update.
    pub(crate) fn move_material(
        &mut self,
        on: &(impl Target + ?Sized),
        number: u32,
        place: u64,
    ) -> Result<()> {
        let areas = self.areas();
        let lost = || Error::new(ErrorKind::NoKeyslot, format!("keyslot {number} is not in use"));
        let (_, area) = areas.into_iter().find(|(other, _)| *other == number).ok_or_else(lost)?;
        let edit = |phdr: &mut Phdr| {
            phdr.slots[number as usize].as_mut().ok_or_else(lost)?.offset = place;
            Ok(())
        };
        self.update(on, edit, |()| {
            let len = usize::try_from(area.end - area.start).unwrap_or(usize::MAX);
            storage::write(on, place, &storage::read(on, area.start, len)?)?;
            storage::sync(on)
        })?;
        let _lock = on.lock(LockTo::Change)?;
        unchanged(on, self)?;
        storage::scrub(on, area)?;
        storage::sync(on)
    }
}
