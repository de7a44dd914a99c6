//! The links that udev makes to a device of device mapper, by its name and its UUID.
//!
//! libcryptsetup looks there for an open volume of which it knows only the UUID.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Names that lead to a node, in one folder.
pub(crate) struct Links<'l> {
    pub(crate) folder: &'l Path,
    /// The node's path, as the target of a link in that folder.
    pub(crate) to: PathBuf,
}

impl Links<'_> {
    /// Creates the links of a device. The device can be used without them.
    pub(crate) fn make(&self, name: &str, uuid: &str) {
        for link in names(name, uuid) {
            let path = self.folder.join(link);
            let made = fs::create_dir_all(self.folder).and_then(|()| {
                let _ = fs::remove_file(&path);
                symlink(&self.to, &path)
            });
            if let Err(e) = made {
                log::warn!("{}: cannot be made: {e}", path.display());
            }
        }
    }

    /// Removes a device's links, if they lead to this node.
    pub(crate) fn remove(&self, name: &str, uuid: &str) {
        for link in names(name, uuid) {
            let path = self.folder.join(link);
            if fs::read_link(&path).is_ok_and(|to| to == self.to)
                && let Err(e) = fs::remove_file(&path)
                && e.kind() != io::ErrorKind::NotFound
            {
                log::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
    }

    /// Removes all other links to this node than those of this name and UUID.
    pub(crate) fn remove_others(&self, name: &str, uuid: &str) {
        let kept: Vec<_> = names(name, uuid).collect();
        let is_other = |link: &str| {
            ["dm-name-", "dm-uuid-"].iter().any(|kind| link.starts_with(kind))
                && !kept.iter().any(|kept| kept == link)
        };
        for link in fs::read_dir(self.folder).into_iter().flatten().flatten() {
            let path = link.path();
            if link.file_name().to_str().is_some_and(is_other)
                && fs::read_link(&path).is_ok_and(|to| to == self.to)
                && let Err(e) = fs::remove_file(&path)
            {
                log::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
    }
}

fn names(name: &str, uuid: &str) -> impl Iterator<Item = String> {
    let of = |kind: &str, text: &str| (!text.is_empty()).then(|| format!("dm-{kind}-{}", encoded(text)));
    [of("name", name), of("uuid", uuid)].into_iter().flatten()
}

/// Returns a device's names as properties for udev's `IMPORT{file}`. Names with characters that
/// udev would replace are left out: no link of udev's leads to such a device.
pub(crate) fn properties(name: &str, uuid: &str) -> String {
    let is_plain = |text: &&str| {
        let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_\\".contains(&byte);
        !text.is_empty() && text.bytes().all(is_safe)
    };
    let of = |key: &str, text: &str| {
        Some(text).filter(is_plain).map_or_else(String::new, |text| format!("{key}={text}\n"))
    };
    of("DM_NAME", name) + &of("DM_UUID", uuid)
}

/// Encodes the text as udev does in names: other characters than the safe ones become `\xNN`.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match char::from(byte) {
            c if c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) => encoded.push(c),
            _ => encoded += &format!("\\x{byte:02x}"),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udev_reads_names_that_it_would_not_change() {
        assert_eq!(properties("a\\x20b", "CRYPT-LUKS2-00-a"), "DM_NAME=a\\x20b\nDM_UUID=CRYPT-LUKS2-00-a\n");
        for (name, uuid) in
            [("", ""), ("a b", ""), ("a\nDEVNAME=sda", "\"U"), ("../sda", "$env{A}"), ("é", "%k")]
        {
            assert_eq!(properties(name, uuid), "", "{name:?}");
        }
    }

    #[test]
    fn links_lead_to_their_node_and_go_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let of = |node: &str| Links { folder: folder.path(), to: format!("../../{node}").into() };
        of("loop1").make("a", "../b c");
        let all = || {
            let entries = fs::read_dir(folder.path()).unwrap();
            let mut all: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            all.sort();
            all
        };
        assert_eq!(all(), ["dm-name-a", "dm-uuid-..\\x2fb\\x20c"]);
        // Another device has the name by now.
        of("loop2").make("a", "");
        of("loop1").remove("a", "../b c");
        assert_eq!(all(), ["dm-name-a"]);
        of("loop2").make("b", "U");
        of("loop2").remove_others("a", "U");
        assert_eq!(all(), ["dm-name-a", "dm-uuid-U"]);
        of("loop1").remove_others("", "");
        of("loop2").remove("", "U");
        assert_eq!(all(), ["dm-name-a"]);
        assert_eq!(fs::read_link(folder.path().join("dm-name-a")).unwrap(), Path::new("../../loop2"));
    }
}
