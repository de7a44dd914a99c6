//! A load: its devices claimed, and a table server started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use underseal_dm::records::Line;
use underseal_dm::{DeviceNumber, Error, Family, Host, Result, Room, Table as Loaded, TableLoad};
use underseal_volume::ErrorKind;
use underseal_volume::table::{KeyText, Line as TableLine, Table, TableKey, Target};
use zeroize::Zeroizing;

use super::child::Child;
use super::known::RememberedTable;
use super::layers;
use super::lowers::{Lookups, Lowers, beneath};
use super::orders::Order;
use super::syscall_helper::SyscallHelpers;

/// The means to start table servers.
pub(super) struct Tables {
    lowers: Lowers,
    program: PathBuf,
    /// The log file of table servers.
    log: PathBuf,
    family: Family,
}

impl Tables {
    /// `program` is this command, `log` the back end's log.
    pub(super) fn new(program: PathBuf, log: PathBuf, family: Family, apart: SyscallHelpers) -> Self {
        Self { lowers: Lowers::new(apart), program, log, family }
    }
}

impl Tables {
    /// Returns the table of a server whose back end is gone, whether it is read-only, and whether
    /// it is suspended.
    pub(super) fn adopt(&self, file: &Path, disk: Option<(u32, u64)>) -> Result<(Loaded, bool, bool)> {
        let (child, suspended) = Child::adopt(file, disk, &self.lowers, self.family.clone())?;
        let (table, read_only) = Arc::new(child).table()?;
        Ok((table, read_only, suspended))
    }
}

impl Host for Tables {
    fn load(&self, load: TableLoad<'_>) -> Result<Loaded> {
        let TableLoad { number, lines, read_only, live, below, keys } = load;
        let text = text(&lines);
        drop(lines);
        let mut table = Table::parse(&text).map_err(|e| refused(&e))?;
        let lookups = self.lowers.lookups();
        let canonical = canonical(&table, &lookups)?;
        table.resolve_keys(|kind, name| Ok(keys.find(kind, name))).map_err(|e| {
            let why = underseal_error::with_causes(&e).to_string();
            Error::new(Errno::INVAL, why)
        })?;
        let is_named = |line: &TableLine| matches!(&line.target, Target::Crypt(crypt) if matches!(crypt.key, TableKey::Keyring { .. }));
        let lacks_key = table.lines().iter().any(is_named);
        table.check().map_err(|e| {
            let error = refused(&e);
            if lacks_key { Error::new(Errno::NOKEY, error.to_string()) } else { error }
        })?;
        let stack = layers::stack(&table, below, &lookups)?;
        let stacked = stack.is_some();
        // From here on the text contains the keys.
        let text = match stack {
            Some(stack) => stack,
            None => table.print(true),
        };
        if !read_only && table.lines().iter().any(|line| matches!(line.target, Target::Verity(_))) {
            return Err(Error::new(Errno::INVAL, "Device must be readonly"));
        }
        for warning in table.warnings() {
            log::warn!("{number}: {warning}");
        }
        let (mut names, deps) = devices(&table, &lookups)?;
        if deps.contains(&number) {
            return Err(Error::new(Errno::INVAL, format!("{number}: a table cannot lie on its own device")));
        }
        let claims: Vec<_> =
            deps.iter().map(|dep| self.lowers.claim(*dep, read_only)).collect::<Result<_>>()?;
        let mut claimed = deps.clone();
        let mut claims = claims;
        if stacked {
            let stack = Table::parse(&text).map_err(|e| refused(&e))?;
            (names, claimed) = devices(&stack, &lookups)?;
            claims.extend(
                claimed.iter().map(|dep| self.lowers.claim(*dep, read_only)).collect::<Result<Vec<_>>>()?,
            );
            claimed = [deps.as_slice(), &claimed].concat();
        }
        let has_layer = |lines: &[Line]| -> Result<bool> {
            Ok(has_layer(lines) || layers::are_under(lines, below, &lookups)?)
        };
        let late = match live {
            Some(live) => has_layer(&canonical)? && has_layer(live)?,
            None => false,
        };
        let child = Child::start(&self.program, &self.log, claims.clone(), self.family.clone())?;
        let files: Vec<_> = names
            .iter()
            .filter_map(|(_, number)| claimed.iter().position(|dep| dep == number))
            .map(|at| claims[at].file())
            .collect();
        let devices = names.into_iter().map(|(name, _)| name).collect();
        let files: Vec<_> = files.into_iter().chain(claims.iter().filter_map(|claim| claim.lock())).collect();
        let (block, layers) = child.open(&Order::Open { devices, read_only, late }, &text, &files)?;
        let room = Room { sectors: table.sectors(), block };
        let canonical = layers::printed(canonical, layers)?;
        let lines = canonical.iter().map(Line::copy).collect::<Result<_>>()?;
        child.remember(RememberedTable { lines, deps: deps.clone(), room, read_only })?;
        let beneath = beneath(&claims);
        Ok(Loaded { lines: canonical, deps, beneath, room, served: Arc::new(child) })
    }
}

/// Returns a table's text, which may contain keys.
pub(super) fn text(lines: &[Line]) -> Zeroizing<String> {
    let len = lines.iter().map(|line| line.params().len() + line.target.len() + 48).sum();
    let mut text = Zeroizing::new(String::with_capacity(len));
    for line in lines {
        let head = format!("{} {} {} ", line.start, line.len, line.target);
        text.push_str(&head);
        text.push_str(line.params());
        text.push('\n');
    }
    text
}

/// A device's name in a table, with its number.
type Named = (String, DeviceNumber);

/// All devices that a table names, with their numbers; and the numbers, each once.
fn devices(table: &Table, lookups: &Lookups<'_>) -> Result<(Vec<Named>, Vec<DeviceNumber>)> {
    let (mut all, mut deps) = (Vec::new(), Vec::new());
    for name in table.devices() {
        let number = lookups.find(name)?.ok_or_else(|| {
            Error::new(Errno::NODEV, format!("Device lookup failed: {name} is no block device"))
        })?;
        all.push((name.to_owned(), number));
        if !deps.contains(&number) {
            deps.push(number);
        }
    }
    Ok((all, deps))
}

/// The lines as the kernel prints them: devices by their numbers.
fn canonical(table: &Table, lookups: &Lookups<'_>) -> Result<Vec<Line>> {
    let line = |line: &TableLine| {
        let text = line.print(true);
        let mut params = KeyText::default();
        params.push(text.splitn(4, ' ').nth(3).unwrap_or_default());
        for name in line.target.devices() {
            if let Some(number) = lookups.find(name)? {
                params = renamed(&params, name, &number.to_string());
            }
        }
        Line::new(line.start, line.len, line.target.name(), &params)
    };
    table.lines().iter().map(line).collect()
}

/// Replaces a device's name in the words: a word itself, or the rest of `meta_device:`.
pub(super) fn renamed(params: &str, name: &str, number: &str) -> KeyText {
    let escaped: String = name.chars().fold(String::new(), |escaped, c| {
        let mark = if c == '\\' || c.is_whitespace() { "\\" } else { "" };
        escaped + mark + c.encode_utf8(&mut [0; 4])
    });
    let meta = format!("meta_device:{escaped}");
    let mut text = KeyText::default();
    for (at, word) in params.split(' ').enumerate() {
        text.push(if at == 0 { "" } else { " " });
        match word {
            word if word == escaped => text.push(number),
            word if word == meta => text.push(&format!("meta_device:{number}")),
            word => text.push(word),
        }
    }
    text
}

fn has_layer(lines: &[Line]) -> bool {
    lines.iter().any(|line| line.target == "integrity")
}

/// Converts an error to a refusal in the kernel's words.
fn refused(error: &underseal_volume::Error) -> Error {
    let why = underseal_error::with_causes(error).to_string();
    let errno = match error.kind() {
        ErrorKind::Memory => Errno::NOMEM,
        ErrorKind::WrongKey => Errno::NOKEY,
        // The kernel's crypto lacks the cipher.
        _ if why.contains("Error allocating crypto tfm") => Errno::NOENT,
        _ => Errno::INVAL,
    };
    Error::new(errno, why)
}
