//! The address of an image of a cluster, in QEMU's syntax, so that addresses from its command lines
//! and libvirt's work.
//!
//! ```text
//!   rbd:POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][:OPTION=VALUE]...        a \ escapes a character
//! ```

use std::ffi::{CStr, CString};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// The longest address.
const LONGEST: usize = 4096;

/// Options of the cluster's library that an address may set. All others belong into its
/// configuration file.
const SETTINGS: [&str; 8] = [
    "mon_host",
    "keyring",
    "auth_client_required",
    "auth_supported",
    "client_mount_timeout",
    "rados_mon_op_timeout",
    "rados_osd_op_timeout",
    "ms_client_mode",
];

/// An image of a cluster, or a snapshot of one, with the options for the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RbdAddress {
    pub(super) pool: CString,
    pub(super) namespace: Option<CString>,
    pub(super) image: CString,
    pub(super) snapshot: Option<CString>,
    /// The user, without `client.`; `None`: the library's default, `admin`.
    pub(super) id: Option<CString>,
    /// The configuration file; `None`: the library's default places.
    pub(super) conf: Option<CString>,
    /// Options for the library.
    pub(super) settings: Vec<(CString, CString)>,
    text: String,
}

impl RbdAddress {
    /// True when the text is an image's address and not a path.
    pub fn is_one(text: &str) -> bool {
        text.starts_with("rbd:")
    }

    /// The image's name.
    pub fn image(&self) -> &str {
        self.image.to_str().unwrap_or_default()
    }

    /// True for a snapshot, which never changes.
    pub(crate) fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// True when the address sets this option of the library.
    pub(super) fn sets(&self, option: &CStr) -> bool {
        self.settings.iter().any(|(name, _)| name.as_c_str() == option)
    }
}

impl fmt::Display for RbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for RbdAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        // An error shows no key, not even one in a wrong place.
        let bad = |why: &str| Error::new(ErrorKind::Open, format!("{}: {why}", without_key(text)));
        let rest = text.strip_prefix("rbd:").ok_or_else(|| bad("an RBD image's address begins with rbd:"))?;
        if text.len() > LONGEST {
            return Err(Error::new(ErrorKind::Open, "an RBD image's address has at most 4096 bytes"));
        }
        let mut words = AddressReader(rest);
        let mut names = Vec::new();
        let (mut snapshot, mut more) = (None, false);
        loop {
            let (name, end) = words.next("/@:").map_err(bad)?;
            names.push(cstring(name, "an empty name, or one with a zero byte").map_err(bad)?);
            match end {
                Some('/') if names.len() < 3 => {}
                Some('/') => return Err(bad("write rbd:POOL/IMAGE or rbd:POOL/NAMESPACE/IMAGE")),
                Some('@') => {
                    let (name, end) = words.next(":").map_err(bad)?;
                    snapshot = Some(cstring(name, "the snapshot's name is missing").map_err(bad)?);
                    more = end.is_some();
                    break;
                }
                end => {
                    more |= end.is_some();
                    break;
                }
            }
        }
        let mut names = names.into_iter();
        let (pool, namespace, image) = match (names.next(), names.next(), names.next()) {
            (Some(pool), Some(namespace), Some(image)) => (pool, Some(namespace), image),
            (Some(pool), Some(image), None) => (pool, None, image),
            _ => return Err(bad("the image is missing; write rbd:POOL/IMAGE")),
        };
        let mut this = Self {
            pool,
            namespace,
            image,
            snapshot,
            id: None,
            conf: None,
            settings: Vec::new(),
            text: text.into(),
        };
        while more {
            let (option, end) = words.next("=:").map_err(bad)?;
            if end != Some('=') {
                return Err(bad("each option is written OPTION=VALUE"));
            }
            let (value, end) = words.next(":").map_err(bad)?;
            more = end.is_some();
            this.set(&option, value).map_err(bad)?;
        }
        Ok(this)
    }
}

impl RbdAddress {
    fn set(&mut self, option: &str, value: String) -> std::result::Result<(), &'static str> {
        // Files are opened later, from another working directory.
        let file = |value: String| {
            let path = std::path::absolute(Path::new(&value)).map_err(|_| "an option names no file")?;
            let path = path.into_os_string().into_string().map_err(|_| "a file's name is not UTF-8")?;
            cstring(path, "an option has no value")
        };
        let text = |value| cstring(value, "an option has no value");
        match option {
            "id" => self.id = Some(text(value)?),
            "conf" => self.conf = Some(file(value)?),
            "key" => {
                return Err(
                    "a key in an address is seen by everybody who lists processes; put it into a keyring and \
                            name that with keyring=FILE, or in the configuration",
                );
            }
            _ if !SETTINGS.contains(&option) => {
                return Err(
                    "the options are id, conf, mon_host, keyring, auth_client_required, auth_supported, \
                            client_mount_timeout, rados_mon_op_timeout, rados_osd_op_timeout and ms_client_mode; others go \
                            into the cluster's configuration file",
                );
            }
            _ => {
                let value = if option == "keyring" { file(value)? } else { text(value)? };
                self.settings.push((text(option.into())?, value));
            }
        }
        Ok(())
    }
}

fn cstring(text: String, why: &'static str) -> std::result::Result<CString, &'static str> {
    CString::new(text).ok().filter(|text| !text.is_empty()).ok_or(why)
}

/// The text before a key, in any spelling of its option.
fn without_key(text: &str) -> &str {
    let is_key = |after: &str| {
        let word = after.chars().filter(|c| *c != '\\').take_while(|c| !"=:".contains(*c)).take(4);
        word.collect::<String>().eq_ignore_ascii_case("key")
    };
    let key = text.match_indices(':').find(|(at, _)| is_key(&text[at + 1..]));
    key.map_or(text, |(at, _)| &text[..at])
}

/// The rest of the text.
struct AddressReader<'t>(&'t str);

impl AddressReader<'_> {
    /// Returns the word before the first of these characters that is not escaped, and that
    /// character.
    fn next(&mut self, ends: &str) -> std::result::Result<(String, Option<char>), &'static str> {
        let mut word = String::new();
        let mut chars = self.0.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' => word.push(chars.next().ok_or("a backslash stands before a character")?),
                c if ends.contains(c) => {
                    self.0 = chars.as_str();
                    return Ok((word, Some(c)));
                }
                c => word.push(c),
            }
        }
        self.0 = "";
        Ok((word, None))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> RbdAddress {
        text.parse().unwrap()
    }

    fn text(part: &CStr) -> &str {
        part.to_str().unwrap()
    }

    #[test]
    fn addresses_are_read_as_qemu_reads_them() {
        let table = [
            ("rbd:pool/image", ["pool", "", "image", ""]),
            ("rbd:pool/image@snap", ["pool", "", "image", "snap"]),
            ("rbd:pool/space/image", ["pool", "space", "image", ""]),
            ("rbd:pool/space/image@snap:id=me", ["pool", "space", "image", "snap"]),
            (r"rbd:po\/ol/im\@age\:1@s\:nap", ["po/ol", "", "im@age:1", "s:nap"]),
            (r"rbd:p/a\\b", ["p", "", r"a\b", ""]),
            (r"rbd:p/\n", ["p", "", "n", ""]),
            ("rbd:p/a@b@c/d", ["p", "", "a", "b@c/d"]),
            ("rbd:p/i:id=a@b/c", ["p", "", "i", ""]),
        ];
        for (address, parts) in table {
            let it = read(address);
            let part = |part: &Option<CString>| part.as_deref().map_or("", text).to_owned();
            let found =
                [text(&it.pool).into(), part(&it.namespace), text(&it.image).into(), part(&it.snapshot)];
            assert_eq!(found, parts, "{address}");
            assert_eq!(it.to_string(), address);
        }
    }

    #[test]
    fn options_reach_the_library() {
        let it = read(
            r"rbd:p/i:mon_host=10.0.0.1\:6789\;10.0.0.2:id=me:conf=/etc/c.conf:keyring=/k:rados_osd_op_timeout=30",
        );
        assert_eq!((it.id.as_deref(), it.conf.as_deref()), (Some(c"me"), Some(c"/etc/c.conf")));
        let settings: Vec<_> = it.settings.iter().map(|(name, value)| (text(name), text(value))).collect();
        let wanted =
            [("mon_host", "10.0.0.1:6789;10.0.0.2"), ("keyring", "/k"), ("rados_osd_op_timeout", "30")];
        assert_eq!(settings, wanted);
        assert!(it.sets(c"keyring") && !it.sets(c"id"));
        let here = std::env::current_dir().unwrap().join("c.conf");
        assert_eq!(text(read("rbd:p/i:conf=c.conf").conf.as_deref().unwrap()), here.to_str().unwrap());
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_remedy() {
        let table = [
            ("disk.img", "begins with rbd:"),
            ("rbd:", "an empty name"),
            ("rbd:pool", "the image is missing"),
            ("rbd:pool@snap", "the image is missing"),
            ("rbd:/image", "an empty name"),
            ("rbd:pool/", "an empty name"),
            ("rbd:pool//image", "an empty name"),
            ("rbd:a/b/c/d", "POOL/NAMESPACE/IMAGE"),
            ("rbd:a/b/c/", "POOL/NAMESPACE/IMAGE"),
            ("rbd:p/i@", "snapshot's name is missing"),
            ("rbd:p/i@:id=x", "snapshot's name is missing"),
            ("rbd:p/i\\", "backslash"),
            ("rbd:p/i:", "OPTION=VALUE"),
            ("rbd:p/i:id", "OPTION=VALUE"),
            ("rbd:p/i:id:conf=x", "OPTION=VALUE"),
            ("rbd:p/i:id=", "no value"),
            ("rbd:p/i:conf=", "names no file"),
            ("rbd:p/i\0", "zero byte"),
            ("rbd:p/i:rbd_cache=true", "configuration file"),
        ];
        for (text, part) in table {
            let error = text.parse::<RbdAddress>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(format!("rbd:p/{}", "i".repeat(LONGEST)).parse::<RbdAddress>().is_err());
    }

    #[test]
    fn a_key_is_refused_and_not_repeated() {
        let error = "rbd:p/i:id=me:key=AQDsecret==".parse::<RbdAddress>().unwrap_err().to_string();
        assert!(error.contains("keyring=FILE") && !error.contains("AQDsecret"), "{error}");
        for word in ["KEY", "k\\ey", "\\kE\\y"] {
            let error =
                format!("rbd:p/i:id=me:{word}=AQDsecret==").parse::<RbdAddress>().unwrap_err().to_string();
            assert!(!error.contains("AQDsecret"), "{error}");
        }
    }

    #[test]
    fn paths_are_not_addresses() {
        for path in ["disk.img", "./rbd:p/i", "/dev/rbd0", "rbd", "nbd://x"] {
            assert!(!RbdAddress::is_one(path), "{path}");
        }
        assert!(RbdAddress::is_one("rbd:pool/image"));
    }

    /// A name in an address's syntax.
    fn escaped(name: &str) -> String {
        name.chars().fold(String::new(), |mut text, c| {
            if r"\/@:=;".contains(c) {
                text.push('\\');
            }
            text.push(c);
            text
        })
    }

    proptest! {
        #[test]
        fn any_name_can_be_written(names in prop::array::uniform5("[^\0]{1,20}"), with in prop::array::uniform3(any::<bool>())) {
            let [pool, namespace, image, snapshot, id] = &names;
            let mut address = format!("rbd:{}", escaped(pool));
            if with[0] { address += &format!("/{}", escaped(namespace)); }
            address += &format!("/{}", escaped(image));
            if with[1] { address += &format!("@{}", escaped(snapshot)); }
            if with[2] { address += &format!(":id={}", escaped(id)); }
            let it = read(&address);
            prop_assert_eq!((text(&it.pool), text(&it.image)), (&**pool, &**image));
            prop_assert_eq!(it.namespace.as_deref().map(text), with[0].then_some(&**namespace));
            prop_assert_eq!(it.snapshot.as_deref().map(text), with[1].then_some(&**snapshot));
            prop_assert_eq!(it.id.as_deref().map(text), with[2].then_some(&**id));
        }

        #[test]
        fn nothing_that_is_read_panics(text in r"(rbd:)?([a-z/@:=\\]|\PC){0,60}") {
            if let Ok(address) = text.parse::<RbdAddress>() {
                prop_assert!(!address.pool.is_empty() && !address.image.is_empty());
                prop_assert!(RbdAddress::is_one(&text) && address.to_string() == text);
            }
        }
    }
}
