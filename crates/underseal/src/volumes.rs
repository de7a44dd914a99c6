//! The volumes of a host: `/etc/underseal/volumes`, a line each, as crypttab(5) has them.
//!
//! ```text
//!   # name  device             key               options
//!   disk    /srv/disk.img      /etc/keys/disk    nbd,discard
//!   vm      UUID=6f1c..        none              vhost-user=/run/vm.sock,noauto
//!
//!   volumes/line      the four fields
//!   volumes/device    what crypttab calls a device, as a path
//!   volumes/options   the words of the fourth, in those of `underseal open`
//! ```
//!
//! A line that is wrong keeps no other volume from being served.

mod device;
mod line;
mod options;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use underseal_export::control::{Directory, Name};

use crate::error::{Error, Result};
use options::Options;

/// Where it is unless somebody says otherwise.
pub(crate) const DEFAULT: &str = "/etc/underseal/volumes";

/// No host has a longer one.
const LONGEST: u64 = 1 << 20;

/// What the file says.
#[derive(Debug)]
pub(crate) struct Table {
    path: PathBuf,
    /// In the order of their lines.
    pub(crate) volumes: Vec<Entry>,
    pub(crate) wrong: Vec<Wrong>,
}

/// A volume, and how it is served.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) line: usize,
    pub(crate) name: Name,
    /// An absolute path, or a server's URI.
    pub(crate) device: PathBuf,
    /// The key file; none for a volume whose passphrase is asked for.
    key: Option<PathBuf>,
    options: Options,
}

/// A line that says nothing that can be done.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) line: usize,
    /// The first field.
    pub(crate) name: String,
    pub(crate) what: String,
}

impl Table {
    /// Reads the file. It decides what is opened, so nobody else may have written it.
    ///
    /// # Errors
    /// `Usage` when it belongs to somebody else, others may write to it, or it is no text; `Failed`.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(path, "cannot read", e);
        // A FIFO would be waited for, and a generator must never wait.
        let now = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::options().read(true).custom_flags(now.bits().cast_signed()).open(path);
        let file = file.map_err(|e| failed(e).with_remedy("--config FILE"))?;
        let about = file.metadata().map_err(failed)?;
        let own = rustix::process::geteuid().as_raw();
        let refused = |why: &str, remedy: &str| {
            Err(Error::usage(format!("{}: {why}", path.display())).with_remedy(remedy))
        };
        if !about.is_file() {
            return refused("not a file", "--config FILE");
        }
        if about.uid() != own && about.uid() != 0 {
            return refused("it belongs to another user", "chown");
        }
        if about.mode() & 0o022 != 0 {
            return refused("others may write to it", "chmod go-w");
        }
        let mut text = Vec::new();
        file.take(LONGEST + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > LONGEST {
            return refused("longer than 1 MiB", "--config with a shorter one");
        }
        match String::from_utf8(text) {
            Ok(text) => Ok(Self::parse(path, &text)),
            Err(_) => refused("not in UTF-8", "iconv"),
        }
    }

    fn parse(path: &Path, text: &str) -> Self {
        let mut table = Self { path: path.into(), volumes: Vec::new(), wrong: Vec::new() };
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            let Some(fields) = line::Fields::of(text) else { continue };
            let name = fields.name.to_owned();
            match Entry::of(line, fields) {
                Ok(entry) => match table.find(&entry.name) {
                    Some(first) => {
                        let what = format!("{name} is on line {} already", first.line);
                        table.wrong.push(Wrong { line, name, what });
                    }
                    None => table.volumes.push(entry),
                },
                Err(what) => table.wrong.push(Wrong { line, name, what }),
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
                (Some(entry), _) if chosen.volumes.iter().any(|other| other.line == entry.line) => {}
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

    /// What is wrong with a line, and where that is.
    pub(crate) fn complain(&self, line: usize, what: &str) -> Error {
        Error::usage(format!("{}, line {line}: {what}", self.path.display()))
            .with_remedy("`man underseal-up` lists what a line may say")
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
    fn of(line: usize, fields: line::Fields<'_>) -> std::result::Result<Self, String> {
        let name = fields.name.parse().map_err(|e: underseal_export::Error| e.to_string())?;
        let device = device::path(&line::plain(fields.device))?;
        let key = match fields.key {
            "" | "none" | "-" => None,
            key => Some(absolute("the key", &line::plain(key))?),
        };
        let options = options::parse(fields.options, key.is_some())?;
        Ok(Self { line, name, device, key, options })
    }

    /// Whether it is started where nobody names it.
    pub(crate) fn is_auto(&self) -> bool {
        !self.options.noauto
    }

    /// Whether all is well without it, where nobody names it.
    pub(crate) fn may_fail(&self) -> bool {
        self.options.nofail
    }

    /// The file or folder that it is mounted over.
    pub(crate) fn mount_point(&self) -> Option<&Path> {
        self.value("fuse").map(Path::new)
    }

    /// The files and devices that have to be there before it is opened.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        let device = Some(&*self.device).filter(|device| device.is_absolute());
        let header = self.value("header").map(Path::new);
        device.into_iter().chain(self.key.as_deref()).chain(header)
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
        self.key_file().is_none()
    }

    /// Its key file: what its line says, else what systemd has as the credential `underseal.NAME`.
    fn key_file(&self) -> Option<PathBuf> {
        self.key.clone().or_else(|| {
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
            place.push(Directory::of_user().path().join(format!("{}.nbd", self.name)));
            words.push(option("nbd", &place));
        }
        if let Some(key) = self.key_file() {
            words.push(option("key-file", &key));
        }
        words
    }
}

impl Wrong {
    /// As the command says it.
    pub(crate) fn error(&self, table: &Table) -> Error {
        table.complain(self.line, &self.what)
    }
}

/// A path that means the same wherever the command is started.
fn absolute(what: &str, text: &str) -> std::result::Result<PathBuf, String> {
    if text.starts_with('/') { Ok(text.into()) } else { Err(format!("{what}: {text:?} is no absolute path")) }
}

/// An error of arguments that came from a line: what clap says, without its usage.
pub(crate) fn in_a_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
