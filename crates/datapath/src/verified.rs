//! Who would notice that a sector is not as it was written.

use underseal_cipher::IntegrityKind;
use underseal_volume::{Segment, Stored};

use crate::Mapping;

impl Mapping {
    /// True when somebody would for each sector that is stored: its cipher, or the device that it
    /// lies on. No volume without a key is.
    pub fn is_authenticated(&self) -> bool {
        let by_whom = |stored: &Stored| {
            let integrity = stored.recipe.as_ref().and_then(|recipe| recipe.integrity);
            // Stored IVs alone tell nothing.
            integrity.is_some_and(|integrity| integrity.kind == IntegrityKind::Aead)
                || self.devices().get(stored.device).is_some_and(|device| device.verifies())
        };
        self.volume()
            .is_some_and(|volume| volume.segments().iter().filter_map(Segment::as_stored).all(by_whom))
    }

    /// True when such sectors may be found: [`Mapping::has_tags`], or a device below has tags of
    /// its own.
    pub fn may_mismatch(&self) -> bool {
        self.has_tags() || self.devices().iter().any(|device| device.verifies())
    }

    /// How many bytes nobody compares at the moment, though somebody
    /// [will](Mapping::is_authenticated): their tags are still to be made.
    pub fn unverified(&self) -> u64 {
        self.devices().iter().fold(0, |sum: u64, device| sum.saturating_add(device.unverified()))
    }

    /// Before a look for damage: what the devices keep in memory of what they have read is read
    /// again.
    pub fn forget(&self) {
        self.devices().iter().for_each(|device| device.forget());
    }
}
