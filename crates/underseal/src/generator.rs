//! The systemd generator `underseal-generator`, which systemd calls at boot and at each
//! daemon-reload: the volumes of the list become services, as those of crypttab do. It reads only
//! the list, so that it never waits.
//!
//! ```text
//!   NORMAL/multi-user.target.wants/underseal.target
//!   NORMAL/underseal.target.wants/underseal@NAME.service       unless noauto is set
//!   NORMAL/underseal.target.wants/underseal@NAME.socket        instead, with nbd=systemd
//!   NORMAL/underseal@NAME.service.d/50-volume.conf             the requirements of the service
//! ```

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::logging;
use crate::volumes::{self, Below, Entry, Layers, Table, plain};

const UNITS: &str = "/usr/lib/systemd/system";

/// The settings for a volume on other machines: the package's drop-in, for units without one.
const NETWORK: &str = include_str!("../../../packaging/network.conf");

/// Returns true when this program is started as the generator.
pub(crate) fn is_called() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name).file_name() == Some(OsStr::new("underseal-generator"))
}

/// Writes into the first of the folders that systemd names. An invalid line is reported, and does
/// not affect the others.
pub(crate) fn run() -> ExitCode {
    logging::start(log::LevelFilter::Warn);
    let Some(folder) = std::env::args_os().nth(1) else {
        return Error::usage("underseal-generator: no folder to write to").report();
    };
    // The variable corresponds to SYSTEMD_CRYPTTAB for the list of cryptsetup's volumes.
    let list = std::env::var_os("UNDERSEAL_VOLUMES").unwrap_or_else(|| volumes::DEFAULT.into());
    match generate(Path::new(&list), Path::new(&folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => e.report(),
    }
}

fn generate(list: &Path, folder: &Path) -> Result<()> {
    if !list.exists() && !volumes::folder_of(list).exists() {
        return Ok(());
    }
    let table = Table::read(list)?;
    for wrong in &table.wrong {
        log::error!("{}", wrong.error().what());
    }
    let failed = |e: io::Error| Error::io(folder, "cannot write", e);
    let volumes: Vec<&Entry> = table.volumes.iter().collect();
    let layers = Layers::of(&volumes);
    let mut any = false;
    for (number, entry) in volumes.iter().enumerate() {
        match unfit(entry) {
            Some(why) => log::warn!("{}", entry.complain(&why).what()),
            None => {
                let below = layers.below(number).iter().map(|below| (volumes[below.lower], *below));
                let below: Vec<_> = below.filter(|(lower, _)| unfit(lower).is_none()).collect();
                write(entry, &below, folder).map_err(failed)?;
                any |= entry.is_auto();
            }
        }
    }
    if any {
        want(folder, "multi-user.target", "underseal.target", "underseal.target").map_err(failed)?;
    }
    Ok(())
}

/// Returns why a volume cannot be a service.
fn unfit(entry: &Entry) -> Option<String> {
    let name = entry.name.as_str();
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte)) {
        // A credential's name ends at a colon: the service would get another volume's credential.
        return Some(format!("{name}: the name of a service has letters, digits and -_.@"));
    }
    let mounted = entry.mount_point().is_some();
    mounted.then(|| format!("{name}: a service's mount nobody sees; `underseal up` opens it"))
}

fn write(entry: &Entry, below: &[(&Entry, Below)], folder: &Path) -> io::Result<()> {
    let unit = service(entry);
    if entry.is_auto() {
        let (unit, file) = match entry.waits_for_clients() {
            true => (socket(entry), "underseal@.socket"),
            false => (unit.clone(), "underseal@.service"),
        };
        want(folder, "underseal.target", &unit, file)?;
    }
    let drop_in = folder.join(format!("{unit}.d"));
    fs::create_dir_all(&drop_in)?;
    fs::write(drop_in.join("50-volume.conf"), conf(entry, below))
}

/// Returns the name of the unit that serves a volume.
fn service(entry: &Entry) -> String {
    format!("underseal@{}.service", entry.name)
}

/// Returns the name of the unit that listens for a volume's clients.
fn socket(entry: &Entry) -> String {
    format!("underseal@{}.socket", entry.name)
}

/// Makes one unit want another.
fn want(folder: &Path, who: &str, what: &str, file: &str) -> io::Result<()> {
    let wants = folder.join(format!("{who}.wants"));
    fs::create_dir_all(&wants)?;
    match symlink(Path::new(UNITS).join(file), wants.join(what)) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

/// Returns the drop-in of a volume, which lies on others.
fn conf(entry: &Entry, below: &[(&Entry, Below)]) -> String {
    let mut text = String::from("# Made by underseal-generator of the list of volumes.\n[Unit]\n");
    let mut line = |name: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}={value}");
    };
    if let Some(source) = printable(&entry.at.file) {
        line("SourcePath", &source);
    }
    if entry.waits_for_clients() {
        // Stopping the socket leaves the volume open.
        line("Wants", &socket(entry));
        line("After", &socket(entry));
    } else if entry.is_auto() && !entry.may_fail() {
        // Services after the target find the volume served, as those after crypttab's target find
        // its volumes.
        line("Before", "underseal.target");
    }
    // Services stop in the reverse order: a volume writes to those below it until it is closed.
    // They are wanted and not required: a required service that is started again after a crash
    // would stop this one first, which cannot write what it has without that one.
    for (lower, below) in below {
        if below.by_systemd {
            // The first client of a socket starts the service.
            line("Wants", &socket(lower));
            line("After", &socket(lower));
        } else {
            line("Wants", &service(lower));
        }
        line("After", &service(lower));
    }
    // systemd ignores a path with `..` here.
    for path in entry.files().map(plain) {
        if let Some(unit) = device_unit(&path).filter(|_| may_be_disk(&path)) {
            line("Requires", &unit);
            line("After", &unit);
        } else if let Some(path) = word(&path) {
            line("RequiresMountsFor", &path);
        }
    }
    for place in entry.places().map(plain).filter_map(|place| word(&place)) {
        line("RequiresMountsFor", &place);
    }
    let mut service = String::new();
    if entry.asks() {
        // Typing a passphrase has no time limit.
        service += "TimeoutStartSec=infinity\n";
    }
    if entry.needs_network() {
        text += &section(NETWORK, "Unit");
        service += &section(NETWORK, "Service");
    }
    if !service.is_empty() {
        text += "[Service]\n";
        text += &service;
    }
    text
}

/// Returns the settings of a unit file's section, a line each.
fn section(unit: &str, name: &str) -> String {
    let lines = unit.lines().skip_while(|line| *line != format!("[{name}]")).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.filter(|line| line.contains('=') && !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect()
}

/// Returns a path as a whole value of a unit's line; `None` where a line cannot hold it.
fn printable(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let strange = |c: char| c.is_control() || c == '\\';
    (!text.contains(strange) && text.trim() == text).then(|| text.replace('%', "%%"))
}

/// Returns a path as one word of a unit's line, in quotes where needed; `None` where quotes do not
/// suffice.
fn word(path: &Path) -> Option<String> {
    // A tab in quotes stands for itself.
    let breaks_line = |c: char| c.is_control() && c != '\t';
    let text = path.to_str().filter(|text| !text.contains(breaks_line))?.replace('%', "%%");
    let strange = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\');
    match text.contains(strange) {
        true => Some(format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))),
        false => Some(text),
    }
}

/// Returns true when a node below /dev is a disk, or may become one: other nodes have no units to
/// wait for.
fn may_be_disk(path: &Path) -> bool {
    let is_disk = fs::metadata(path).map(|about| about.file_type().is_block_device());
    is_disk.unwrap_or(true) && !["/dev/shm", "/dev/fd"].iter().any(|folder| path.starts_with(folder))
}

/// Returns the unit of a device node, by the rules of systemd-escape --path.
fn device_unit(path: &Path) -> Option<String> {
    let below: PathBuf = path.components().collect();
    let below = below.strip_prefix("/dev").ok().filter(|below| !below.as_os_str().is_empty())?;
    if below.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return None;
    }
    let mut unit = String::from("dev-");
    for &byte in below.as_os_str().as_bytes() {
        match byte {
            b'/' => unit.push('-'),
            b':' | b'_' | b'.' => unit.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => unit.push(char::from(byte)),
            byte => drop(write!(unit, "\\x{byte:02x}")),
        }
    }
    Some(unit + ".device")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_units_are_those_of_systemd_escape() {
        for (path, unit) in [
            ("/dev/sda2", Some("dev-sda2.device")),
            ("/dev//vg0/my-data", Some("dev-vg0-my\\x2ddata.device")),
            ("/dev/disk/by-label/a\\x20b", Some("dev-disk-by\\x2dlabel-a\\x5cx20b.device")),
            ("/dev/größe", Some("dev-gr\\xc3\\xb6\\xc3\\x9fe.device")),
            ("/dev", None),
            ("/dev/../etc", None),
            ("/srv/disk.img", None),
        ] {
            assert_eq!(device_unit(Path::new(path)).as_deref(), unit, "{path}");
        }
    }

    #[test]
    fn the_network_is_had_as_the_package_s_drop_in_gives_it() {
        // `a_service_may_do_little` checks the drop-in's limits; this test checks that every
        // setting is copied.
        let settings = NETWORK.lines().filter(|line| line.contains('=') && !line.starts_with('#')).count();
        let sections = section(NETWORK, "Unit") + &section(NETWORK, "Service");
        assert_eq!(sections.lines().count(), settings, "a section that nobody reads: {sections}");
        assert!(sections.contains("PrivateNetwork=no\n") && !sections.contains('#'), "{sections}");
    }

    #[test]
    fn what_is_no_disk_has_no_unit_to_wait_for() {
        for path in ["/dev/urandom", "/dev/null", "/dev/shm/disk.img", "/dev/fd/3"] {
            assert!(!may_be_disk(Path::new(path)), "{path}");
        }
        assert!(may_be_disk(Path::new("/dev/disk/by-label/one-that-comes-later")));
    }

    #[test]
    fn no_path_writes_a_line_of_its_own() {
        for (path, as_word) in [
            ("/srv/100%", "/srv/100%%"),
            ("/a b", "\"/a b\""),
            ("/a\"b", "\"/a\\\"b\""),
            ("/it's", "\"/it's\""),
            ("/a\\", "\"/a\\\\\""),
            ("/a\tb", "\"/a\tb\""),
        ] {
            assert_eq!(word(Path::new(path)).as_deref(), Some(as_word));
        }
        for path in ["/a\nExecStart=/bin/sh", "/a\u{85}b"] {
            assert_eq!((word(Path::new(path)), printable(Path::new(path))), (None, None), "{path:?}");
        }
        assert_eq!(printable(Path::new("/a b%")).as_deref(), Some("/a b%%"));
        // The next line would be joined to this one.
        assert_eq!(printable(Path::new("/a\\")), None);
    }
}
