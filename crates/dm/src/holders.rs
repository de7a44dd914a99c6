//! The devices that lie on others, in a folder in the form of sysfs.
//!
//! ```text
//!   holders/MAJOR:MINOR/dm-N/dm/name     device N lies on MAJOR:MINOR
//!                              /uuid
//! ```
//!
//! The kernel has these files in /sys/dev/block/MAJOR:MINOR/holders, but not for the devices of
//! this server. cryptsetup looks there for the open volume on a device before its reencryption.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::DeviceNumber;
use crate::host::Names;

/// The folder's name, in the server's folder.
pub(crate) const FOLDER: &str = "holders";

/// The folder and its contents.
pub(crate) struct Holders {
    folder: PathBuf,
    shown: Mutex<BTreeMap<DeviceNumber, BTreeSet<DeviceNumber>>>,
}

impl Holders {
    /// Returns an empty folder. Old contents belong to an earlier server.
    pub(crate) fn new(folder: PathBuf) -> Self {
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                log::warn!("{}: cannot be removed: {e}", folder.display());
            }
            _ => {}
        }
        Self { folder, shown: Mutex::default() }
    }

    /// Shows that a device of these names lies on these devices, and on no others.
    pub(crate) fn show(&self, device: DeviceNumber, names: Names<'_>, on: &BTreeSet<DeviceNumber>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for lower in shown.remove(&device).unwrap_or_default().difference(on) {
            let _ = fs::remove_dir_all(self.place(*lower, device));
            // If other devices lie on it, too, its folder stays.
            let _ = fs::remove_dir(self.folder.join(lower.to_string()));
        }
        for lower in on {
            let place = self.place(*lower, device).join("dm");
            let write = |file: &str, text: &str| fs::write(place.join(file), format!("{text}\n"));
            let written = fs::create_dir_all(&place)
                .and_then(|()| write("name", names.name))
                .and_then(|()| write("uuid", names.uuid));
            if let Err(e) = written {
                log::warn!("{}: cannot be written: {e}", place.display());
            }
        }
        if !on.is_empty() {
            shown.insert(device, on.clone());
        }
    }

    fn place(&self, lower: DeviceNumber, device: DeviceNumber) -> PathBuf {
        self.folder.join(lower.to_string()).join(format!("dm-{}", device.minor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_shown_below_what_it_lies_on_now() {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join(FOLDER);
        fs::create_dir_all(top.join("7:9")).unwrap();
        let holders = Holders::new(top.clone());
        assert!(!top.exists());
        let number = |text: &str| text.parse::<DeviceNumber>().unwrap();
        let show = |name, on: &[&str]| {
            let on = on.iter().map(|text| number(text)).collect();
            holders.show(number("7:1000"), Names { name, uuid: "U" }, &on);
        };
        let read = |path: &str| fs::read_to_string(top.join(path)).ok();
        show("a", &["7:0", "7:1"]);
        assert_eq!(read("7:0/dm-1000/dm/name").as_deref(), Some("a\n"));
        assert_eq!(read("7:1/dm-1000/dm/uuid").as_deref(), Some("U\n"));
        holders.show(number("7:1001"), Names { name: "other", uuid: "" }, &[number("7:1")].into());
        show("b", &["7:0"]);
        assert_eq!(read("7:0/dm-1000/dm/name").as_deref(), Some("b\n"));
        assert_eq!(read("7:1/dm-1000/dm/name"), None);
        assert_eq!(read("7:1/dm-1001/dm/uuid").as_deref(), Some("\n"));
        show("b", &[]);
        assert!(!top.join("7:0").exists());
    }
}
