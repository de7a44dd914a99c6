//! The volumes of a host: `/etc/underseal/volumes`, a line each, as crypttab(5) has them, and
//! `/etc/underseal/volumes.d`, a file each.
//!
//! ```text
//!   # name  device             key               options
//!   disk    /srv/disk.img      /etc/keys/disk    nbd,discard
//!   vm      UUID=6f1c..        none              vhost-user=/run/vm.sock,noauto
//!
//!   volumes/line      the four fields
//!   volumes/device    what crypttab calls a device, as a path
//!   volumes/options   the words of the fourth, in those of `underseal open`
//!   volumes/toml      a volume in a file of its own
//!   volumes/file      what is read, and whose it has to be
//! ```
//!
//! A line or file that is wrong keeps no other volume from being served.

mod device;
mod file;
mod line;
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
use options::Options;

/// Where it is unless somebody says otherwise.
pub(crate) const DEFAULT: &str = "/etc/underseal/volumes";

/// What list and folder say.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    /// In the order of their lines, then of their files.
    pub(crate) volumes: Vec<Entry>,
    pub(crate) wrong: Vec<Wrong>,
}

/// A volume, and how it is served.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) at: At,
    /// Where options stand that have a line of their own.
    lines: Vec<(&'static str, usize)>,
    pub(crate) name: Name,
    /// An absolute path, or a server's URI.
    pub(crate) device: PathBuf,
    /// The key file; none for a volume whose passphrase is asked for.
    key: Option<PathBuf>,
    options: Options,
}

/// Where something is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) file: PathBuf,
    /// 0 is all of the file.
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

/// A line or file that says nothing that can be done.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) at: At,
    /// The first field, or the file's name.
    pub(crate) name: String,
    pub(crate) what: String,
}

impl Table {
    /// Reads the list, and the folder that has its name with `.d` behind it. One of the two may be
    /// missing. They decide what is opened, so nobody else may have written them.
    ///
    /// # Errors
    /// `Usage` when list or folder belong to somebody else, others may write to them, or the list
    /// is no text; `Failed`.
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
            // What is said of it begins with its path.
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

    /// The volume of that name.
    pub(crate) fn find(&self, name: &Name) -> Option<&Entry> {
        self.volumes.iter().find(|entry| entry.name == *name)
    }

    /// The volumes of these names, each once; all of them without any.
    ///
    /// # Errors
    /// `Usage` when there is none of a name.
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
                    let what = format!("{}: there is no volume {name}", self.path.display());
                    return Err(Error::usage(what).with_remedy("`underseal ps` lists those that there are"));
                }
            }
        }
        Ok(chosen)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Some of the lines.
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

    /// What is wrong with what it says.
    pub(crate) fn complain(&self, what: &str) -> Error {
        complain(&self.at, what)
    }

    /// The same of what the command's own parser says: on the line of the option that it names.
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

    /// Whether it is started where nobody names it.
    pub(crate) fn is_auto(&self) -> bool {
        !self.options.noauto
    }

    /// Whether all is well without it, where nobody names it.
    pub(crate) fn may_fail(&self) -> bool {
        self.options.nofail
    }

    /// Whether systemd listens for its clients, the first of which opens it.
    pub(crate) fn waits_for_clients(&self) -> bool {
        self.options.of_open.iter().any(|(name, value)| *name == "nbd" && value.as_deref() == Some("systemd"))
    }

    /// The file or folder that it is mounted over.
    pub(crate) fn mount_point(&self) -> Option<&Path> {
        self.value("fuse").map(Path::new)
    }

    /// The files and devices that have to be there before it is opened.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        const OPTIONS: &[&str] = &["header", "passphrase-file", "volume-key-file", "token-pin-file"];
        let device = Some(&*self.device).filter(|device| device.is_absolute());
        let others = OPTIONS.iter().filter_map(move |option| self.value(option)).map(Path::new);
        device.into_iter().chain(self.key.as_deref()).chain(others)
    }

    /// Where it writes or listens besides, and what it reads there.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Path> {
        const OPTIONS: [&str; 4] = ["log-file", "tls-certificates", "nbd", "vhost-user"];
        let named = self.options.of_open.iter().filter(|(option, _)| OPTIONS.contains(option));
        let places = named.filter_map(|(_, place)| place.as_deref());
        places
            .map(|place| place.strip_prefix("unix:").unwrap_or(place))
            .map(Path::new)
            .filter(|p| p.is_absolute())
    }

    /// Whether it has to do with other machines, or with sockets that are addressed as theirs are.
    pub(crate) fn needs_network(&self) -> bool {
        let device = self.device.to_string_lossy();
        let is_remote = !device.starts_with('/') && !device.contains("+unix:");
        let mut places = self.options.of_open.iter().filter(|(option, _)| *option == "nbd");
        let tcp = places.any(|(_, place)| place.as_ref().is_some_and(|place| place.starts_with("tcp:")));
        self.options.netdev || is_remote || tcp || self.value("metrics").is_some()
    }

    fn value(&self, option: &str) -> Option<&str> {
        self.options.of_open.iter().find(|(name, _)| *name == option)?.1.as_deref()
    }

    /// Whether somebody is asked for its passphrase, unless a token does.
    pub(crate) fn asks(&self) -> bool {
        self.key_file().is_none() && !self.has_secret()
    }

    /// Whether an option says what opens it.
    fn has_secret(&self) -> bool {
        let secret = |name: &str| ["passphrase-file", "volume-key-file", "token-only"].contains(&name);
        self.options.of_open.iter().any(|(name, _)| secret(name))
    }

    /// Its key file: what its line says, else what systemd has as the credential `underseal.NAME`.
    fn key_file(&self) -> Option<PathBuf> {
        self.key.clone().or_else(|| {
            if self.has_secret() {
                return None;
            }
            let credentials = PathBuf::from(std::env::var_os("CREDENTIALS_DIRECTORY")?);
            Some(credentials.join(format!("underseal.{}", self.name))).filter(|path| path.is_file())
        })
    }

    /// The arguments of `underseal open` that serve it.
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
            // Of TrueCrypt and VeraCrypt the field names the passphrase's file, as for systemd; key
            // files are words of their own.
            let name = if self.options.is_of("tcrypt") { "passphrase-file" } else { "key-file" };
            words.push(option(name, &key));
        }
        words
    }
}

impl Wrong {
    /// As the command says it.
    pub(crate) fn error(&self) -> Error {
        complain(&self.at, &self.what)
    }
}

/// The folder of a list: its name with `.d` behind it.
pub(crate) fn folder_of(list: &Path) -> PathBuf {
    let mut folder = list.to_owned().into_os_string();
    folder.push(".d");
    folder.into()
}

/// What is wrong, and where that is.
fn complain(at: &At, what: &str) -> Error {
    Error::usage(format!("{at}: {what}")).with_remedy("`man underseal-up` lists what a line or file may say")
}

/// A path that means the same wherever the command is started.
fn absolute(what: &str, text: &str) -> std::result::Result<PathBuf, String> {
    if text.starts_with('/') { Ok(text.into()) } else { Err(format!("{what}: {text:?} is no absolute path")) }
}

/// An error of arguments that came from a line: what clap says, without its usage.
fn in_a_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
