//! A load: its devices claimed, and a table server started.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use underseal_dm::records::Line;
use underseal_dm::{DeviceNumber, Error, Family, Host, Result, Room, Table as Loaded};
use underseal_volume::ErrorKind;
use underseal_volume::table::{Table, Target};
use zeroize::Zeroizing;

use super::child::Child;
use super::lowers::{Lowers, number_of};
use super::orders::Order;

/// Starts table servers.
pub(super) struct Tables {
    lowers: Lowers,
    program: PathBuf,
    family: Family,
}

impl Tables {
    /// `program` is this command.
    pub(super) fn new(program: PathBuf, family: Family) -> Self {
        Self { lowers: Lowers::default(), program, family }
    }
}

impl Host for Tables {
    fn load(
        &self,
        number: DeviceNumber,
        lines: Vec<Line>,
        read_only: bool,
        live: Option<&[Line]>,
    ) -> Result<Loaded> {
        let text = text(&lines);
        drop(lines);
        let table = Table::parse(&text).map_err(|e| refused(&e))?;
        table.check().map_err(|e| refused(&e))?;
        for warning in table.warnings() {
            log::warn!("{number}: {warning}");
        }
        let (names, deps) = devices(&table)?;
        if deps.contains(&number) {
            return Err(Error::new(Errno::INVAL, format!("{number}: a table cannot lie on its own device")));
        }
        let claims: Vec<_> =
            deps.iter().map(|dep| self.lowers.claim(*dep, read_only)).collect::<Result<_>>()?;
        let canonical = canonical(&table)?;
        let late = has_layer(&canonical) && live.is_some_and(has_layer);
        let child = Child::start(&self.program, claims.clone(), self.family.clone())?;
        let files: Vec<_> = names
            .iter()
            .filter_map(|(_, number)| deps.iter().position(|dep| dep == number))
            .map(|at| &claims[at].file)
            .collect();
        let devices = names.into_iter().map(|(name, _)| name).collect();
        let files: Vec<_> = files.into_iter().chain(claims.iter().filter_map(|claim| claim.lock())).collect();
        let block = child.open(&Order::Open { devices, read_only, late }, &text, &files)?;
        let room = Room { sectors: table.sectors(), block };
        Ok(Loaded { lines: canonical, deps, room, served: Arc::new(child) })
    }
}

/// A table's text. It may hold keys.
fn text(lines: &[Line]) -> Zeroizing<String> {
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

/// A device as a table names it, with its number.
type Named = (String, DeviceNumber);

/// All devices that a table names, with their numbers; and the numbers, each once.
fn devices(table: &Table) -> Result<(Vec<Named>, Vec<DeviceNumber>)> {
    let metas = (0..table.devices().len()).filter_map(|number| table.layer(number)?.meta_device());
    let names: Vec<&str> = table.devices().into_iter().chain(metas).collect();
    let (mut all, mut deps) = (Vec::new(), Vec::new());
    for name in names {
        let number = number_of(Path::new(name)).ok_or_else(|| {
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
fn canonical(table: &Table) -> Result<Vec<Line>> {
    let line = |line: &underseal_volume::table::Line| {
        let text = Zeroizing::new(line.print(true));
        let mut words = text.splitn(4, ' ');
        let params = words.nth(3).unwrap_or_default();
        let mut params = Zeroizing::new(params.to_owned());
        let meta = match &line.target {
            Target::Integrity(layer) => layer.meta_device(),
            _ => None,
        };
        for name in line.target.device().into_iter().chain(meta) {
            if let Some(number) = number_of(Path::new(name)) {
                params = Zeroizing::new(renamed(&params, name, &number.to_string()));
            }
        }
        Line::new(line.start, line.len, line.target.name(), &params)
    };
    table.lines().iter().map(line).collect()
}

/// Words with another name for a device: the word itself, or what follows `meta_device:`.
fn renamed(params: &str, name: &str, number: &str) -> String {
    let escaped: String = name.chars().fold(String::new(), |escaped, c| {
        let mark = if c == '\\' || c.is_whitespace() { "\\" } else { "" };
        escaped + mark + c.encode_utf8(&mut [0; 4])
    });
    let meta = format!("meta_device:{escaped}");
    let word = |word: &str| match word {
        word if word == escaped => number.to_owned(),
        word if word == meta => format!("meta_device:{number}"),
        word => word.to_owned(),
    };
    params.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn has_layer(lines: &[Line]) -> bool {
    lines.iter().any(|line| line.target == "integrity")
}

/// A refusal in the kernel's words.
fn refused(error: &underseal_volume::Error) -> Error {
    let why = underseal_error::with_causes(error).to_string();
    let errno = match error.kind() {
        ErrorKind::Memory => Errno::NOMEM,
        ErrorKind::WrongKey => Errno::NOKEY,
        // A cipher that the kernel's crypto does not have.
        _ if why.contains("Error allocating crypto tfm") => Errno::NOENT,
        _ => Errno::INVAL,
    };
    Error::new(errno, why)
}
