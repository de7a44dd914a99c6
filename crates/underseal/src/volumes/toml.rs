//! A volume in a file of its own, NAME.toml: the options of `underseal open`, and when the volume
//! is opened.
//!
//! ```text
//!   device = "/srv/disk.img"
//!   nbd = ["/run/disk.sock", "tcp:localhost:10809"]
//!   max-connections = 8
//!   auto = false
//! ```
//!
//! No key is ignored: an unknown key, or one of another type, is an error with its line.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::open_options::{self, Kind, OPTIONS};
use super::options::Options;
use super::{At, Entry, Wrong, absolute, device, of_types};
use crate::output::printable;

/// The keys that are no options of `open`, or mean more here.
pub(super) const OWN: &[(&str, Kind)] = &[
    ("auto", Kind::Flag),
    ("device", Kind::Text),
    ("key-file", Kind::Path),
    ("may-fail", Kind::Flag),
    ("network", Kind::Flag),
];

/// Reads the volume of a file. The error has its line.
pub(super) fn entry(path: &Path, text: &str) -> Result<Entry, Wrong> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let wrong = |(line, what)| Wrong { at: At::new(path, line), name: name.clone().into_owned(), what };
    let parsed_name = name.parse().map_err(|e: underseal_export::Error| wrong((0, e.to_string())))?;
    let line_of = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        let what = e.message().lines().collect::<Vec<_>>().join("; ");
        wrong((line_of(at), printable(&what)))
    })?;
    let mut file = File::default();
    for (key, value) in table.get_ref() {
        let line = line_of(key.span().start);
        file.add(line, key.get_ref(), value.get_ref()).map_err(|what| wrong((line, what)))?;
    }
    let (line, device) = file.device.ok_or_else(|| wrong((0, "device: it says none".into())))?;
    let device = device::path(&device).map_err(|what| wrong((line, format!("device: {what}"))))?;
    let lines = std::mem::take(&mut file.lines);
    if let Some((name, what)) = of_types::misplaced(&file.options) {
        let line = lines.iter().find(|(of, _)| *of == name).map_or(0, |(_, line)| *line);
        return Err(wrong((line, what)));
    }
    let options = file.options.finish(file.key.is_some()).map_err(|what| wrong((0, what)))?;
    Ok(Entry { at: At::new(path, line), lines, name: parsed_name, device, key: file.key, options })
}

#[derive(Default)]
struct File {
    device: Option<(usize, String)>,
    key: Option<std::path::PathBuf>,
    options: Options,
    lines: Vec<(&'static str, usize)>,
}

impl File {
    fn add(&mut self, line: usize, key: &str, value: &DeValue<'_>) -> Result<(), String> {
        let own = OWN.iter().copied().find(|(name, _)| *name == key);
        let (name, kind) = own.or_else(|| open_options::find(key)).ok_or_else(|| unknown(key))?;
        let values = values(name, kind, value)?;
        let yes = matches!(values[..], [None]);
        let only = || values.first().cloned().flatten().unwrap_or_default();
        match name {
            "auto" => self.options.noauto = !yes,
            "may-fail" => self.options.nofail = yes,
            "network" => self.options.netdev = yes,
            "device" => self.device = Some((line, only())),
            "key-file" => self.key = Some(only().into()),
            "nbd" if yes => self.options.own_socket = true,
            _ => {
                self.lines.push((name, line));
                self.options.of_open.extend(values.into_iter().map(|value| (name, value)));
            }
        }
        Ok(())
    }
}

/// Returns the values for `open`: none for a flag that is off, one without text for a flag that is
/// on.
fn values(name: &str, kind: Kind, value: &DeValue<'_>) -> Result<Vec<Option<String>>, String> {
    let other = |want: &str| Err(format!("{name}: want {want}, not {}", article(value)));
    let one = |text: &str| Ok(vec![Some(text.to_owned())]);
    match (kind, value) {
        (Kind::Flag | Kind::OptionalText | Kind::Places, DeValue::Boolean(on)) => {
            Ok(if *on { vec![None] } else { Vec::new() })
        }
        (Kind::Flag, _) => other("true or false"),
        (_, DeValue::String(text)) if text.is_empty() => Err(format!("{name}: says nothing")),
        (_, DeValue::String(text)) if text.contains('\0') => Err(format!("{name}: has a zero byte")),
        (Kind::Text | Kind::OptionalText, DeValue::String(text)) => one(text),
        (Kind::Text, _) => other("a string"),
        (Kind::OptionalText, _) => other("true or a string"),
        (Kind::Path, DeValue::String(text)) => absolute(name, text).and_then(|_| one(text)),
        (Kind::Path, _) => other("an absolute path, in quotes"),
        (Kind::Size, DeValue::String(text)) => one(text),
        (Kind::Number | Kind::Size, DeValue::Integer(number)) => {
            let whole = u64::from_str_radix(number.as_str(), number.radix());
            whole
                .map_err(|_| format!("{name}: {number} is no number that fits"))
                .and_then(|n| one(&n.to_string()))
        }
        (Kind::Number, _) => other("a whole number"),
        (Kind::Size, _) => other("bytes, or a string such as \"64K\""),
        (Kind::Mode, DeValue::String(text)) => one(text),
        // 660 would be 01224.
        (Kind::Mode, DeValue::Integer(number)) if number.radix() == 8 => one(number.as_str()),
        (Kind::Mode, _) => other("\"660\" or 0o660"),
        (Kind::Places, _) => {
            several(name, value, place).unwrap_or_else(|| other("true, a string or a list of strings"))
        }
        (Kind::Paths, _) => {
            let path = |name: &str, text: &str| absolute(name, text).map(|_| text.to_owned());
            several(name, value, path).unwrap_or_else(|| other("an absolute path or a list of them"))
        }
        (Kind::Devices, _) => {
            several(name, value, device::named).unwrap_or_else(|| other("a device or a list of them"))
        }
        (Kind::Texts, _) => several(name, value, |_, text| Ok(text.to_owned()))
            .unwrap_or_else(|| other("a string or a list of strings")),
    }
}

/// Returns the values of a string or of a list of them; `None` for another value.
fn several(
    name: &str,
    value: &DeValue<'_>,
    parse: impl Fn(&str, &str) -> Result<String, String>,
) -> Option<Result<Vec<Option<String>>, String>> {
    match value {
        DeValue::String(text) => Some(parse(name, text).map(|value| vec![Some(value)])),
        DeValue::Array(values) if !values.is_empty() => {
            let each = values.iter().map(|value| match value.get_ref() {
                DeValue::String(text) if text.is_empty() => Err(format!("{name}: says nothing")),
                DeValue::String(text) if text.contains('\0') => Err(format!("{name}: has a zero byte")),
                DeValue::String(text) => parse(name, text).map(Some),
                other => Err(format!("{name}: want a list of strings, not {} in it", article(other))),
            });
            Some(each.collect())
        }
        _ => None,
    }
}

/// Returns an NBD endpoint that is independent of the working directory.
fn place(name: &str, text: &str) -> Result<String, String> {
    match text.strip_prefix("unix:") {
        _ if text.starts_with('/') => Ok(format!("unix:{text}")),
        Some(path) => absolute(name, path).map(|_| text.to_owned()),
        None => Ok(text.to_owned()),
    }
}

fn article(value: &DeValue<'_>) -> String {
    let kind = value.type_str();
    let an = if kind.starts_with(['a', 'i', 'o']) { "an" } else { "a" };
    format!("{an} {kind}")
}

/// Describes an unknown key.
fn unknown(key: &str) -> String {
    let names = OWN.iter().map(|(name, _)| *name).chain(OPTIONS.iter().map(|(name, _)| *name));
    let near = names.map(|name| (strsim::jaro(key, name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    let shown = printable(key);
    match near {
        Some((likeness, name)) if likeness > 0.7 => format!("{shown}: no such key; did you mean {name}?"),
        _ => format!("{shown}: no such key"),
    }
}
