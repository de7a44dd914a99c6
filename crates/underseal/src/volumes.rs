//! The volumes of a host: `/etc/underseal/volumes`, a line each, as crypttab(5) has them, and
//! `/etc/underseal/volumes.d`, a file each.
//!
//! ```text
//!   # name  device             key               options
//!   disk    /srv/disk.img      /etc/keys/disk    nbd,discard
//!   vm      UUID=6f1c..        none              vhost-user=/run/vm.sock,noauto
//!
//!   volumes/line      the four fields
//!   volumes/device    crypttab's device names, as paths
//!   volumes/options   the words of the fourth field, as options of `underseal open`
//!   volumes/open_options   the options of `underseal open`, from the command line's definition
//!   volumes/toml      a volume in a file of its own
//!   volumes/layers    the order of volumes that lie over each other
//!   volumes/file      reading, and the check of the files' owners
//! ```
//!
//! An invalid line or file does not keep other volumes from being served.

mod device;
mod file;
mod layers;
mod line;
mod of_types;
mod open_options;
mod options;
#[cfg(test)]
mod schema;
#[cfg(test)]
mod tests;
mod toml;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use underseal_export::control::{Directory, Name};

use crate::error::{Error, Result};
pub(crate) use layers::{Below, Layers, plain};
use options::Options;

/// The default path of the list.
pub(crate) const DEFAULT: &str = "/etc/underseal/volumes";

/// The contents of list and folder.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    /// The volumes, in the order of their lines, then of their files.
    pub(crate) volumes: Vec<Entry>,
    pub(crate) wrong: Vec<Wrong>,
}

/// A volume, and how it is served.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) at: At,
    /// The line numbers of options that have a line of their own.
    lines: Vec<(&'static str, usize)>,
    pub(crate) name: Name,
    /// An absolute path, or a server's URI.
    pub(crate) device: PathBuf,
    /// The key file; `None` for a volume whose passphrase is asked for.
    key: Option<PathBuf>,
    options: Options,
}

/// A position in a list or file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) file: PathBuf,
    /// The line number; 0 stands for the whole file.
    pub(crate) line: usize,
}

impl At {
    fn new(file: &Path, line: usize) -> Self {
        Self { file: file.into(), line }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}, line {line}", self.file.display()),
        }
    }
}

/// An invalid line or file.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) at: At,
    /// The first field, or the file's name.
    pub(crate) name: String,
    pub(crate) what: String,
}

impl Table {
    /// Reads the list, and the folder with the list's name and `.d` behind it. One of the two may
    /// be missing. They decide which images are opened, so only their owner and root may write to
    /// them. Fails with `Usage` when list or folder belong to another user, other users may write
    /// to them, or the list is not UTF-8; with `Failed`.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let folder = folder_of(path);
        let files = file::folder(&folder, ".toml")?;
        let text = match file::text(path) {
            Err(_) if !path.exists() && folder.is_dir() => String::new(),
            text => text?,
        };
        let mut table = Self::parse(path, &text);
        for path in files {
            table.add_file(&path);
        }
        Ok(table)
    }

    fn add_file(&mut self, path: &Path) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = match file::text(path) {
            Ok(text) => text,
            // The message begins with the path, which is added again below.
            Err(e) => {
                let at = At::new(path, 0);
                let what = e.what();
                let what = what.strip_prefix(&format!("{at}: ")).unwrap_or(&what).to_owned();
                return self.wrong.push(Wrong { at, name, what });
            }
        };
        match toml::entry(path, &text) {
            Ok(entry) => self.add(entry),
            Err(wrong) => self.wrong.push(wrong),
        }
    }

    fn add(&mut self, entry: Entry) {
        let what = self.find(&entry.name).map(|first| format!("{} is in {} already", entry.name, first.at));
        match what {
            Some(what) => self.wrong.push(Wrong { at: entry.at, name: entry.name.as_str().to_owned(), what }),
            None => self.volumes.push(entry),
        }
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut table = Self { path: path.into(), volumes: Vec::new(), wrong: Vec::new() };
        for (index, text) in text.lines().enumerate() {
            let at = At::new(path, index + 1);
            let Some(fields) = line::Fields::of(text) else { continue };
            match Entry::of(&at, fields) {
                Ok(entry) => table.add(entry),
                Err(what) => table.wrong.push(Wrong { at, name: fields.name.to_owned(), what }),
            }
        }
        table
    }

    /// Finds the volume of that name.
    pub(crate) fn find(&self, name: &Name) -> Option<&Entry> {
        self.volumes.iter().find(|entry| entry.name == *name)
    }

    /// Returns the volumes of these names, each once; all volumes without any name. Fails with
    /// `Usage` when a name is unknown.
    pub(crate) fn choose(&self, names: &[Name]) -> Result<Chosen<'_>> {
        if names.is_empty() {
            return Ok(Chosen { volumes: self.volumes.iter().collect(), wrong: self.wrong.iter().collect() });
        }
        let mut chosen = Chosen { volumes: Vec::new(), wrong: Vec::new() };
        for name in names {
            match (self.find(name), self.wrong.iter().find(|wrong| wrong.name == name.as_str())) {
                (Some(entry), _) if chosen.volumes.iter().any(|other| other.name == entry.name) => {}
                (Some(entry), _) => chosen.volumes.push(entry),
                (None, Some(wrong)) => chosen.wrong.push(wrong),
                (None, None) => {
                    let what = format!("{}: no volume is named {name}", self.path.display());
                    return Err(Error::usage(what).with_remedy("`underseal ps` lists the volumes"));
                }
            }
        }
        Ok(chosen)
    }

    /// Returns the list's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A selection of the entries.
#[derive(Debug)]
pub(crate) struct Chosen<'t> {
    pub(crate) volumes: Vec<&'t Entry>,
    pub(crate) wrong: Vec<&'t Wrong>,
}

impl Entry {
    fn of(at: &At, fields: line::Fields<'_>) -> std::result::Result<Self, String> {
        let name = fields.name.parse().map_err(|e: underseal_export::Error| e.to_string())?;
        let device = device::path(&line::plain(fields.device))?;
        let key = match fields.key {
            "" | "none" | "-" => None,
            key => Some(absolute("the key", &line::plain(key))?),
        };
        let options = options::parse(fields.options, key.is_some())?;
        Ok(Self { at: at.clone(), lines: Vec::new(), name, device, key, options })
    }

    /// Makes an error about this entry.
    pub(crate) fn complain(&self, what: &str) -> Error {
        complain(&self.at, what)
    }

    /// Makes an error of the command's parser, on the line of the option that the error names.
    pub(crate) fn complain_of_option(&self, error: &clap::Error) -> Error {
        let what = in_a_line(error);
        let names = |option: &str| {
            let option = format!("--{option}");
            let mut behind = what.split(option.as_str()).skip(1);
            behind.any(|rest| !rest.starts_with(|c: char| c == '-' || c.is_ascii_alphanumeric()))
        };
        let line =
            self.lines.iter().find(|(option, _)| names(option)).map_or(self.at.line, |(_, line)| *line);
        complain(&At { line, ..self.at.clone() }, &what)
    }

    /// Returns true when the volume is started without being named.
    pub(crate) fn is_auto(&self) -> bool {
        !self.options.noauto
    }

    /// Returns true when a failure of this volume is ignored, unless it was named.
    pub(crate) fn may_fail(&self) -> bool {
        self.options.nofail
    }

    /// Returns true when systemd listens for the volume's clients, and the first client opens it.
    pub(crate) fn waits_for_clients(&self) -> bool {
        self.options.of_open.iter().any(|(name, value)| *name == "nbd" && value.as_deref() == Some("systemd"))
    }

    /// Returns the file or folder that the volume is mounted on.
    pub(crate) fn mount_point(&self) -> Option<&Path> {
        self.value("fuse").map(Path::new)
    }

    /// Returns the devices that the volume lies on, and its detached header: paths and URIs.
    fn images(&self) -> impl Iterator<Item = &Path> {
        let named = self.options.of_open.iter().filter(|(name, _)| ["header", "other-device"].contains(name));
        let others = named.filter_map(|(_, place)| place.as_deref()).map(Path::new);
        std::iter::once(&*self.device).chain(others)
    }

    /// Returns the files and devices that must exist before the volume is opened.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        const OPTIONS: &[&str] = &[
            "header",
            "hidden-key-file",
            "hidden-passphrase-file",
            "other-device",
            "passphrase-file",
            "token-pin-file",
            "volume-key-file",
        ];
        let named = self.options.of_open.iter().filter(|(option, _)| OPTIONS.contains(option));
        let others = named.filter_map(|(_, path)| path.as_deref()).map(Path::new);
        let own = [Some(&*self.device), self.key.as_deref()].into_iter().flatten();
        own.chain(others).filter(|path| path.is_absolute())
    }

    /// Returns the further paths that the volume writes to, listens on, or reads from.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Path> {
        const OPTIONS: [&str; 4] = ["log-file", "tls-certificates", "nbd", "vhost-user"];
        let named = self.options.of_open.iter().filter(|(option, _)| OPTIONS.contains(option));
        let places = named.filter_map(|(_, place)| place.as_deref());
        places
            .map(|place| place.strip_prefix("unix:").unwrap_or(place))
            .map(Path::new)
            .filter(|p| p.is_absolute())
    }

    /// Returns true when the volume needs other machines, or sockets with network addresses.
    pub(crate) fn needs_network(&self) -> bool {
        let is_away = |image: &Path| {
            let image = image.to_string_lossy();
            !image.starts_with('/') && !image.contains("+unix:")
        };
        let is_remote = self.images().any(is_away);
        let mut places = self.options.of_open.iter().filter(|(option, _)| *option == "nbd");
        let tcp = places.any(|(_, place)| place.as_ref().is_some_and(|place| place.starts_with("tcp:")));
        self.options.netdev || is_remote || tcp || self.value("metrics").is_some()
    }

    fn value(&self, option: &str) -> Option<&str> {
        self.options.of_open.iter().find(|(name, _)| *name == option)?.1.as_deref()
    }

    /// Returns true when the passphrase is asked for, unless a token has it.
    pub(crate) fn asks(&self) -> bool {
        self.key_file().is_none() && !self.has_secret()
    }

    /// Returns true when an option names the secret that opens the volume.
    fn has_secret(&self) -> bool {
        let secret = |name: &str| ["passphrase-file", "volume-key-file", "token-only"].contains(&name);
        self.options.of_open.iter().any(|(name, _)| secret(name))
    }

    /// Returns the key file: the line's, else systemd's credential `underseal.NAME`.
    fn key_file(&self) -> Option<PathBuf> {
        self.key.clone().or_else(|| {
            if self.has_secret() {
                return None;
            }
            let credentials = PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?);
            Some(credentials.join(format!("underseal.{}", self.name))).filter(|path| path.is_file())
        })
    }

    /// Returns the arguments of `underseal open` that serve the volume.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let option = |name: &str, value: &dyn AsRef<OsStr>| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(value.as_ref());
            word
        };
        let mut words: Vec<OsString> = vec!["open".into(), self.device.clone().into()];
        words.push(option("name", &self.name.as_str()));
        for (name, value) in &self.options.of_open {
            words
                .push(value.as_ref().map_or_else(|| format!("--{name}").into(), |value| option(name, value)));
        }
        if self.options.own_socket {
            let mut place = OsString::from("unix:");
            place.push(Directory::of_user().socket_for_clients(&self.name));
            words.push(option("nbd", &place));
        }
        if let Some(key) = self.key_file() {
            // For TrueCrypt and VeraCrypt the field names the passphrase's file, as in systemd; key
            // files have an option of their own.
            let name = if self.options.is_of("tcrypt") { "passphrase-file" } else { "key-file" };
            words.push(option(name, &key));
        }
        words
    }
}

impl Wrong {
    /// Returns the problem as the command's error.
    pub(crate) fn error(&self) -> Error {
        complain(&self.at, &self.what)
    }
}

/// Returns the folder of a list: its name with `.d` behind it.
pub(crate) fn folder_of(list: &Path) -> PathBuf {
    let mut folder = list.to_owned().into_os_string();
    folder.push(".d");
    folder.into()
}

/// Makes an error about a position.
fn complain(at: &At, what: &str) -> Error {
    Error::usage(format!("{at}: {what}")).with_remedy("`man underseal-up` lists what a line or file may say")
}

/// Checks for an absolute path, which is independent of the command's working directory.
fn absolute(what: &str, text: &str) -> std::result::Result<PathBuf, String> {
    if text.starts_with('/') { Ok(text.into()) } else { Err(format!("{what}: {text:?} is no absolute path")) }
}

/// Returns clap's error about arguments from a line, without its usage text.
fn in_a_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
