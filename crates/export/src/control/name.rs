//! Names of open volumes.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// A volume's name: printable ASCII without `/` (device mapper's names), and alphabetic characters
/// of any script. The name is part of a file's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Device mapper's limit in bytes.
const LONGEST: usize = 127;
/// The longest name that is derived from a file's name.
const LONGEST_BY_ITSELF: usize = 64;

impl Name {
    /// Derives a volume's name from its file's name; other characters become `_`.
    pub fn of_file(path: &Path) -> Self {
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let mut name: String = file.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        if name.starts_with(['.', '-']) || name.is_empty() {
            name.insert(0, '_');
        }
        // Five bytes are left for a number.
        while name.len() > LONGEST_BY_ITSELF - 5 {
            name.pop();
        }
        Self(name)
    }

    /// Returns the name with a number: `NAME-2`, `NAME-3`, ... These are tried where a name is in
    /// use.
    pub(super) fn numbered(&self, number: u32) -> Self {
        if number <= 1 { self.clone() } else { Self(format!("{}-{number}", self.0)) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            let shown = crate::net::Printable(text.as_bytes());
            Err(Error::new(ErrorKind::BadName, format!("{shown} is no name for a volume: {why}")))
        };
        if text.is_empty() || text.len() > LONGEST {
            return bad(&format!("it has 1 to {LONGEST} bytes"));
        }
        if text.starts_with(['.', '-']) {
            return bad("it does not begin with . or -");
        }
        if !text.chars().all(is_taken) {
            return bad("it is made of letters of any script and printable ASCII without /");
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_taken(c: char) -> bool {
    c.is_alphanumeric() || (' '..='~').contains(&c) && c != '/'
}

/// True for characters that need no escape in `/dev/mapper` and in a shell's word.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "#+-.:=@_".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_name_becomes_a_volumes_name() {
        for (path, name) in [
            ("/srv/disk.img", "disk.img"),
            ("my disk\n.img", "my_disk_.img"),
            ("/a/.hidden", "_.hidden"),
            ("-v", "_-v"),
            ("/", "_"),
            ("/dev/sda1", "sda1"),
            ("größe.img", "größe.img"),
        ] {
            let found = Name::of_file(Path::new(path));
            assert_eq!(found.as_str(), name, "{path}");
            assert_eq!(name.parse::<Name>().unwrap(), found, "{path}");
        }
        let long = Name::of_file(Path::new(&"ä".repeat(200)));
        assert_eq!(long.numbered(9999).as_str().parse::<Name>().unwrap(), long.numbered(9999));
    }

    #[test]
    fn a_name_has_what_device_mapper_takes() {
        let all: String = (' '..='~').filter(|&c| c != '/').collect();
        let longest = "x".repeat(127);
        for text in [&format!("v{all}"), &longest, "tomb 1,2%~{}!'", "größe"] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
    }

    #[test]
    fn what_is_no_part_of_a_path_is_refused() {
        let control = ["a\0", "a\n", "a\x1b[2J", "a\x7f", "a\u{85}", "a\u{202e}"];
        let long = "x".repeat(128);
        for text in ["", ".", "..", ".x", "a/b", "-x", &long].into_iter().chain(control) {
            assert_eq!(text.parse::<Name>().unwrap_err().kind(), ErrorKind::BadName, "{text}");
        }
    }
}
