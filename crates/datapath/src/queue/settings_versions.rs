//! Settings versions: a request pins the current settings when it begins, and ends under them.
//!
//! The queue has one reference to each volume in use, and counts its requests itself: a reference
//! for each request would be counted on a cache line that all queues share.

use std::sync::Arc;

use underseal_volume::Volume;

use crate::control::VolumeSettings;

pub(super) struct SettingsVersions {
    all: Vec<SettingsVersion>,
    /// The number of the version in which requests begin.
    current: u32,
}

struct SettingsVersion {
    /// `None`: the key is wiped.
    volume: Option<Arc<Volume>>,
    /// Requests of this version take the range lock.
    locks: bool,
    /// Requests that have pinned this version.
    users: u32,
}

impl SettingsVersions {
    pub(super) fn new(settings: &VolumeSettings) -> Self {
        Self { all: vec![SettingsVersion::new(settings)], current: 0 }
    }

    /// Begins another version, unless the new settings make no difference to requests.
    pub(super) fn set(&mut self, settings: &VolumeSettings) {
        let next = SettingsVersion::new(settings);
        let now = &self.all[self.current as usize];
        let same = match (&now.volume, &next.volume) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        if same && now.locks == next.locks {
            return;
        }
        let before = std::mem::replace(&mut self.current, u32::MAX);
        self.forget(before);
        let free = self.all.iter().position(|version| version.users == 0);
        let free = free.unwrap_or_else(|| {
            self.all.push(SettingsVersion { volume: None, locks: false, users: 0 });
            self.all.len() - 1
        });
        self.all[free] = next;
        self.current = u32::try_from(free).unwrap_or(u32::MAX);
    }

    /// Counts a request in the current version, and returns the version's number.
    pub(super) fn pin(&mut self) -> u32 {
        self.all[self.current as usize].users += 1;
        self.current
    }

    /// Notes that a request of a version is over.
    pub(super) fn unpin(&mut self, number: u32) {
        self.all[number as usize].users -= 1;
        self.forget(number);
    }

    fn forget(&mut self, number: u32) {
        let version = &mut self.all[number as usize];
        if version.users == 0 && number != self.current {
            version.volume = None;
        }
    }

    pub(super) fn volume(&self, number: u32) -> Option<&Arc<Volume>> {
        self.all[number as usize].volume.as_ref()
    }

    /// The volume for requests that begin now.
    pub(super) fn current(&self) -> Option<&Arc<Volume>> {
        self.volume(self.current)
    }

    /// True when requests that begin now take the range lock.
    pub(super) fn locks(&self) -> bool {
        self.all[self.current as usize].locks
    }

    /// True when all requests of earlier versions are over.
    pub(super) fn old_are_over(&self) -> bool {
        (0..).zip(&self.all).all(|(number, version)| number == self.current || version.users == 0)
    }
}

impl SettingsVersion {
    fn new(settings: &VolumeSettings) -> Self {
        Self { volume: settings.volume.clone(), locks: settings.locks, users: 0 }
    }
}
