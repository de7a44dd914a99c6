//! Names, UUIDs and numbers of all devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::device::{Device, Snapshot};
use crate::header::{NAME_LEN, UUID_LEN};
use crate::host::Names;
use crate::{DeviceNumber, Error, Result};

/// The largest number of devices.
const MOST: usize = 10_000;

/// The major numbers of loop devices and of ublk disks (`LOOP_MAJOR`, `BLOCK_EXT_MAJOR`). Other
/// disks have the second one, too.
const OWN_MAJORS: [u32; 2] = [7, 259];

/// All devices, by the numbers that they were made with.
#[derive(Default)]
pub(crate) struct Registry(Mutex<BTreeMap<DeviceNumber, Entry>>);

/// A device under its names.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// The UUID; may be empty.
    pub(crate) uuid: String,
    pub(crate) device: Arc<Device>,
}

impl Entry {
    pub(crate) fn names(&self) -> Names<'_> {
        Names { name: &self.name, uuid: &self.uuid }
    }
}

/// The name, uuid or number that a caller uses for a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Called<'c> {
    pub(crate) name: &'c str,
    pub(crate) uuid: &'c str,
    pub(crate) dev: Option<DeviceNumber>,
}

impl Registry {
    /// Refuses names that are in use.
    pub(crate) fn is_free(&self, name: &str, uuid: &str) -> Result<()> {
        is_free(&self.lock(), name, uuid)
    }

    /// Adds a device.
    pub(crate) fn add(&self, name: &str, uuid: &str, device: Arc<Device>) -> Result<Entry> {
        let mut all = self.lock();
        is_free(&all, name, uuid)?;
        if all.len() >= MOST {
            return Err(Error::new(Errno::NOMEM, format!("there are {MOST} devices already")));
        }
        let entry = Entry { name: name.into(), uuid: uuid.into(), device };
        let number = entry.device.first_number();
        if all.contains_key(&number) {
            return Err(Error::new(Errno::BUSY, format!("{number}: a device has that number")));
        }
        all.insert(number, entry.clone());
        Ok(entry)
    }

    /// Returns the device with the caller's name, UUID or number.
    pub(crate) fn find(&self, called: Called<'_>) -> Result<Entry> {
        let all = self.lock();
        let found = match called {
            Called { name: "", uuid: "", dev: Some(dev) } => by_number(&all, dev),
            Called { name: "", uuid, dev: None } if !uuid.is_empty() => {
                all.values().find(|entry| entry.uuid == uuid)
            }
            Called { name, uuid: "", dev: None } if !name.is_empty() => {
                all.values().find(|entry| entry.name == name)
            }
            _ => None,
        };
        found.cloned().ok_or_else(|| Error::new(Errno::NXIO, "there is no such device"))
    }

    /// Returns the device of this number.
    pub(crate) fn at(&self, number: DeviceNumber) -> Option<Entry> {
        of_number(&self.lock(), number).cloned()
    }

    /// Renames a device, or sets the UUID of a device that has none. Returns the device under its
    /// old names.
    pub(crate) fn rename(&self, called: Called<'_>, new: &str, is_uuid: bool) -> Result<(Entry, Entry)> {
        let old = self.find(called)?;
        let mut all = self.lock();
        let (name, uuid) = if is_uuid { ("", new) } else { (new, "") };
        is_free(&all, name, uuid)?;
        let gone = || Error::new(Errno::NXIO, "there is no such device");
        let entry = all.get_mut(&old.device.first_number()).ok_or_else(gone)?;
        match is_uuid {
            true if !entry.uuid.is_empty() => {
                let why = format!("Unable to change uuid of mapped device {}: it has one", entry.name);
                return Err(Error::new(Errno::INVAL, why));
            }
            true => entry.uuid = new.into(),
            false => entry.name = new.into(),
        }
        Ok((old, entry.clone()))
    }

    /// Gives a device the names back that it had before it was renamed.
    pub(crate) fn put_back(&self, old: &Entry) {
        if let Some(entry) = self.lock().get_mut(&old.device.first_number()) {
            (entry.name, entry.uuid) = (old.name.clone(), old.uuid.clone());
        }
    }

    /// Removes a device from the registry.
    pub(crate) fn remove(&self, device: &Device) {
        self.lock().remove(&device.first_number());
    }

    /// Returns all devices, in the order of their names.
    pub(crate) fn all(&self) -> Vec<Entry> {
        let mut all: Vec<_> = self.lock().values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns the number of devices.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns how many devices' tables lie on this device. The count keeps no device: a device
    /// that is removed meanwhile is dropped at once.
    pub(crate) fn uses(&self, number: DeviceNumber) -> u32 {
        // A table that ends meanwhile may end with the last of these, when no lock is held.
        let snapshots: Vec<_> = self.lock().values().map(|entry| entry.device.snapshot()).collect();
        let uses = |Snapshot { live, inactive, .. }: &Snapshot| {
            live.iter().chain(inactive).filter(|table| table.deps.contains(&number)).count()
        };
        u32::try_from(snapshots.iter().map(uses).sum::<usize>()).unwrap_or(u32::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DeviceNumber, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the device that a caller means by a number.
fn by_number(all: &BTreeMap<DeviceNumber, Entry>, dev: DeviceNumber) -> Option<&Entry> {
    if let Some(entry) = of_number(all, dev) {
        return Some(entry);
    }
    // libdevmapper asks with its own major number for device mapper, whatever the devices' own is.
    let mut same = all
        .values()
        .filter(|entry| !OWN_MAJORS.contains(&dev.major) && entry.device.number().minor == dev.minor);
    same.next().filter(|_| same.next().is_none())
}

/// Returns the device that has this number, or had it before its first table.
fn of_number(all: &BTreeMap<DeviceNumber, Entry>, number: DeviceNumber) -> Option<&Entry> {
    let made = all.get(&number);
    made.or_else(|| all.values().find(|entry| entry.device.number() == number))
}

fn is_free(all: &BTreeMap<DeviceNumber, Entry>, name: &str, uuid: &str) -> Result<()> {
    let is_taken =
        |entry: &Entry| (!name.is_empty() && entry.name == name) || (!uuid.is_empty() && entry.uuid == uuid);
    match all.values().find(|entry| is_taken(entry)) {
        Some(entry) => {
            let why = format!("a device has that name or UUID: {} {}", entry.name, entry.uuid);
            Err(Error::new(Errno::BUSY, why))
        }
        None => Ok(()),
    }
}

/// Checks a device's name.
///
/// # Errors
/// `EINVAL`, as in the kernel, for a name with a slash, for `.`, `..` and `control`, and for a name
/// that is empty or too long.
pub fn check_name(name: &str) -> Result<()> {
    if name.contains('/') {
        return Err(Error::new(Errno::INVAL, "device name cannot contain '/'"));
    }
    if matches!(name, "." | ".." | "control") {
        return Err(Error::new(Errno::INVAL, r#"device name cannot be ".", "..", or "control""#));
    }
    if name.is_empty() || name.len() >= NAME_LEN {
        return Err(Error::new(Errno::INVAL, "Invalid new mapped device name or uuid string supplied."));
    }
    Ok(())
}

/// Refuses an empty UUID, and one that is too long, with `EINVAL`.
pub(crate) fn check_uuid(uuid: &str) -> Result<()> {
    if uuid.is_empty() || uuid.len() >= UUID_LEN {
        return Err(Error::new(Errno::INVAL, "Invalid new mapped device name or uuid string supplied."));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Room;
    use crate::host::{Node, Served};

    /// A node whose number changes.
    struct Numbered(u32, Arc<AtomicU32>);

    impl Node for Numbered {
        fn number(&self) -> DeviceNumber {
            DeviceNumber::new(self.0, self.1.load(Ordering::Relaxed))
        }
        fn show(&self, _table: &dyn Served, _room: Room, _read_only: bool) -> Result<()> {
            Ok(())
        }
        fn follow(&self, _room: Room) -> Result<()> {
            Ok(())
        }
        fn detach(&self, _table: &dyn Served) -> Result<()> {
            Ok(())
        }
        fn opens(&self, _is_below: bool) -> u32 {
            0
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
        fn name(&self, _names: Names<'_>, _before: Option<Names<'_>>) -> Result<()> {
            Ok(())
        }
        fn give_back(&self) {}
        fn unname(&self, _names: Names<'_>) {}
    }

    #[test]
    fn a_device_is_found_by_both_its_numbers_and_by_device_mappers_major_number() {
        let registry = Registry::default();
        let add = |name, major, minor| {
            let minor = Arc::new(AtomicU32::new(minor));
            let device = Arc::new(Device::new(Box::new(Numbered(major, minor.clone()))));
            registry.add(name, "", device).map(|_| minor)
        };
        let find = |number: &str| {
            let dev = number.parse().ok();
            registry.find(Called { name: "", uuid: "", dev }).ok().map(|entry| entry.name)
        };
        let disk = add("disk", 259, 9000).unwrap();
        add("loop", 7, 1000).unwrap();
        assert_eq!(add("other", 259, 9000).unwrap_err().errno(), Errno::BUSY);
        disk.store(3, Ordering::Relaxed);
        for (number, name) in [
            ("259:3", Some("disk")),
            ("259:9000", Some("disk")),
            ("253:3", Some("disk")),
            ("7:1000", Some("loop")),
            ("253:1000", Some("loop")),
            // Disks of others.
            ("7:3", None),
            ("259:1000", None),
            ("253:9000", None),
        ] {
            assert_eq!(find(number).as_deref(), name, "{number}");
        }
        assert_eq!(registry.at(DeviceNumber::new(259, 3)).unwrap().name, "disk");
        add("third", 7, 3).unwrap();
        assert_eq!(find("253:3"), None, "either is meant");
        let disk = registry.find(Called { name: "disk", uuid: "", dev: None }).unwrap();
        registry.remove(&disk.device);
        assert_eq!(find("253:3").as_deref(), Some("third"));
    }
}
