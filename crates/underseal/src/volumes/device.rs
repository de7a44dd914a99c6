//! The device that the second field names.

use std::fmt::Write;
use std::path::PathBuf;

use crate::lower::is_remote;

/// Converts an absolute path, a server's URI, an image on Ceph, or `UUID=`, `LABEL=`, `PARTUUID=`,
/// `PARTLABEL=` (by udev's links) to a path. The error says what is wrong with the text.
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    const LINKS: [(&str, &str); 4] = [
        ("UUID=", "by-uuid"),
        ("LABEL=", "by-label"),
        ("PARTUUID=", "by-partuuid"),
        ("PARTLABEL=", "by-partlabel"),
    ];
    if text.is_empty() {
        return Err("the second field, the device, is missing".into());
    }
    for (tag, folder) in LINKS {
        if let Some(value) = text.strip_prefix(tag) {
            let value = value.trim_matches('"');
            return if value.is_empty() {
                Err(format!("{tag} of what?"))
            } else {
                Ok(format!("/dev/disk/{folder}/{}", encode(value)).into())
            };
        }
    }
    let path = PathBuf::from(text);
    if path.is_absolute() || is_remote(&path) {
        return Ok(path);
    }
    Err(format!(
        "{text:?} is neither an absolute path nor a URI, rbd:POOL/IMAGE, UUID=, LABEL=, PARTUUID= or PARTLABEL="
    ))
}

/// Returns the device of an option as an argument of `open`. The error begins with the option's
/// name.
pub(super) fn named(name: &str, text: &str) -> Result<String, String> {
    let path = path(text).map_err(|what| format!("{name}: {what}"))?;
    path.into_os_string().into_string().map_err(|_| format!("{name}: {text:?} is no text"))
}

/// Encodes a value as udev does in a link's name: no value leads out of the folder.
fn encode(value: &str) -> String {
    let mut out = String::new();
    for character in value.chars() {
        if character.is_ascii_alphanumeric() || "#+-.:=@_".contains(character) || !character.is_ascii() {
            out.push(character);
        } else {
            // Writing to a string does not fail.
            let _ = write!(out, "\\x{:02x}", u32::from(character));
        }
    }
    // The names `.` and `..` cannot be links.
    if out.bytes().all(|byte| byte == b'.') { out.replace('.', "\\x2e") } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_udevs_links_and_lead_nowhere_else() {
        for (text, meant) in [
            ("/dev/sda1", "/dev/sda1"),
            ("UUID=6f1c-22", "/dev/disk/by-uuid/6f1c-22"),
            ("UUID=\"6f1c\"", "/dev/disk/by-uuid/6f1c"),
            ("LABEL=my disk/1", "/dev/disk/by-label/my\\x20disk\\x2f1"),
            ("PARTLABEL=größe", "/dev/disk/by-partlabel/größe"),
            ("PARTUUID=../../sda", "/dev/disk/by-partuuid/..\\x2f..\\x2fsda"),
            ("LABEL=..", "/dev/disk/by-label/\\x2e\\x2e"),
            ("nbd://host/export", "nbd://host/export"),
            ("rbd:pool/image", "rbd:pool/image"),
        ] {
            assert_eq!(path(text).unwrap(), PathBuf::from(meant), "{text}");
        }
        for text in ["", "disk.img", "UUID=", "LABEL=\"\"", "ID=x"] {
            path(text).unwrap_err();
        }
    }
}
