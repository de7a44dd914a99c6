//! Devices that keep tags and make none: integrity lines without a hash, under crypt lines that
//! make the tags.
//!
//! In the kernel such a device passes tags up with each request. Here tags do not leave a process:
//! a crypt line on this kind of device opens the layer itself, in its own table server, and the
//! device's own server does not.

use rustix::io::Errno;
use underseal_dm::records::Line;
use underseal_dm::{DeviceNumber, Error, Result};
use underseal_volume::table::{Base, IntegrityLine, Table, Target};
use zeroize::Zeroizing;

use super::host::text;
use super::lowers::Lookups;

/// Returns true when a line keeps tags that the line above makes.
pub(in crate::dm) fn makes_no_tags(line: &IntegrityLine) -> bool {
    line.option("internal_hash").is_none()
}

/// Returns the lines of another device, if it keeps tags and makes none.
fn layer_at(
    name: &str,
    below: &dyn Fn(DeviceNumber) -> Option<Vec<Line>>,
    lookups: &Lookups<'_>,
) -> Result<Option<(DeviceNumber, Vec<Line>)>> {
    let Some(number) = lookups.find(name)? else { return Ok(None) };
    let Some(lines) = below(number) else { return Ok(None) };
    let Ok(table) = Table::parse(&text(&lines)) else { return Ok(None) };
    Ok(match table.lines() {
        [line] => match &line.target {
            Target::Integrity(layer) if makes_no_tags(layer) => Some((number, lines)),
            _ => None,
        },
        _ => None,
    })
}

/// Whether lines lie on a device that keeps tags and makes none.
pub(super) fn are_under(
    lines: &[Line],
    below: &dyn Fn(DeviceNumber) -> Option<Vec<Line>>,
    lookups: &Lookups<'_>,
) -> Result<bool> {
    let Ok(table) = Table::parse(&text(lines)) else { return Ok(false) };
    for base in table.bases() {
        if let Base::Device(name) = base
            && layer_at(name, below, lookups)?.is_some()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the table's text with the lines of the devices that keep its tags; `None` without such
/// devices.
pub(super) fn stack(
    table: &Table,
    below: &dyn Fn(DeviceNumber) -> Option<Vec<Line>>,
    lookups: &Lookups<'_>,
) -> Result<Option<Zeroizing<String>>> {
    let mut stack = Zeroizing::new(String::new());
    for base in table.bases() {
        let Base::Device(name) = base else { continue };
        let Some((number, lines)) = layer_at(name, below, lookups)? else { continue };
        let layer = text(&lines);
        stack.push_str(&format!("{number}: {}\n", layer.trim_end()));
    }
    if stack.is_empty() {
        return Ok(None);
    }
    for line in table.lines() {
        let Some(name) = line.target.device() else {
            stack.push_str(&format!("volume: {}\n", *Zeroizing::new(line.print(true))));
            continue;
        };
        let has_tags = matches!(&line.target, Target::Crypt(crypt) if crypt.options.integrity.is_some());
        let printed = Zeroizing::new(line.print(true));
        match layer_at(name, below, lookups)? {
            Some(_) if !has_tags => {
                let why = format!("{name}: the device keeps tags, and the line has none");
                return Err(Error::new(Errno::INVAL, why));
            }
            Some((number, _)) => {
                let printed = super::host::renamed(&printed, name, &number.to_string());
                let printed = Zeroizing::new(printed);
                stack.push_str(&format!("volume: {}\n", *printed));
            }
            None => stack.push_str(&format!("volume: {}\n", *printed)),
        }
    }
    Ok(Some(stack))
}
