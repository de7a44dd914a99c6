//! Whether a changed sector of a volume would be noticed.

use underseal_cipher::IntegrityKind;
use underseal_device::{Device, each_below};
use underseal_volume::{Segment, Stored};

use crate::Mapping;

impl Mapping {
    /// True when the cipher or the lower device of each stored sector authenticates it. False for a
    /// volume without a key.
    pub fn is_authenticated(&self) -> bool {
        let by_whom = |stored: &Stored| {
            let integrity =
                stored.cipher_parameters.as_ref().and_then(|cipher_parameters| cipher_parameters.integrity);
            // Stored IVs alone do not authenticate.
            integrity.is_some_and(|integrity| integrity.kind == IntegrityKind::Aead)
                || self.devices().get(stored.device).is_some_and(|device| verifies(&**device))
        };
        self.volume()
            .is_some_and(|volume| volume.segments().iter().filter_map(Segment::as_stored).all(by_whom))
    }

    /// True when reads may find mismatching sectors: [`Mapping::has_tags`], or a lower device with
    /// tags.
    pub fn may_mismatch(&self) -> bool {
        self.has_tags() || self.devices().iter().any(|device| verifies(&**device))
    }

    /// The number of bytes without tags at the moment, in a volume that [will
    /// be](Mapping::is_authenticated) authenticated: their tags are still to be made.
    pub fn unverified(&self) -> u64 {
        let unverified = self.devices().iter().filter_map(|device| Some(device.tag_check()?.unverified()));
        unverified.fold(0, u64::saturating_add)
    }

    /// Makes the devices read again instead of using sectors in memory, before a check for damage.
    pub fn forget(&self) {
        each_below(self.devices(), |device| device.tag_check().iter().for_each(|tags| tags.forget()));
    }
}

fn verifies(device: &dyn Device) -> bool {
    device.tag_check().is_some_and(|tags| tags.verifies())
}
