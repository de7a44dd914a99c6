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

use super::options::Options;
use super::{At, Entry, Wrong, absolute, device};
use crate::output::printable;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// true or false: an option of `open` without a value.
    Flag,
    /// Text.
    Text,
    /// A number.
    Number,
    /// A number of bytes, or text with a unit.
    Size,
    /// An absolute path.
    Path,
    /// A mode: text, or an octal number.
    Mode,
    /// NBD endpoints.
    Places,
}

/// The options of `open` that a file may have, by their names in the file.
pub(super) const KEYS: &[(&str, Kind)] = &[
    ("allow-discards", Kind::Flag),
    ("allow-null", Kind::Flag),
    ("allow-plaintext-tcp", Kind::Flag),
    ("allow-public-metrics", Kind::Flag),
    ("backup-header", Kind::Flag),
    ("busy-poll", Kind::Number),
    ("cipher", Kind::Text),
    ("data-offset", Kind::Size),
    ("data-size", Kind::Size),
    ("description", Kind::Text),
    ("direct", Kind::Flag),
    ("export-name", Kind::Text),
    ("fido2-device", Kind::Path),
    ("fuse", Kind::Path),
    ("fuse-allow-root", Kind::Flag),
    ("fuse-no-cache", Kind::Flag),
    ("fuse-no-io-uring", Kind::Flag),
    ("fuse-threads", Kind::Number),
    ("hand-over", Kind::Flag),
    ("hash", Kind::Text),
    ("header", Kind::Path),
    ("header-digest", Kind::Text),
    ("hidden", Kind::Flag),
    ("hidden-key-file", Kind::Places),
    ("hidden-passphrase-file", Kind::Path),
    ("hidden-pim", Kind::Number),
    ("integrity-no-journal", Kind::Flag),
    ("integrity-recovery-mode", Kind::Flag),
    ("iv-large-sectors", Kind::Flag),
    ("key-size", Kind::Number),
    ("key-slot", Kind::Number),
    ("keyfile-offset", Kind::Size),
    ("keyfile-size", Kind::Size),
    ("log-file", Kind::Path),
    ("max-connections", Kind::Number),
    ("max-kdf-memory", Kind::Size),
    ("max-kdf-time", Kind::Number),
    ("metrics", Kind::Text),
    ("nbd", Kind::Places),
    ("no-lock", Kind::Flag),
    ("no-sandbox", Kind::Flag),
    ("no-token", Kind::Flag),
    ("no-veracrypt", Kind::Flag),
    ("offset-bytes", Kind::Size),
    ("other-device", Kind::Places),
    ("partition", Kind::Number),
    ("passphrase-file", Kind::Path),
    ("pim", Kind::Number),
    ("pkcs11-module", Kind::Path),
    ("policy", Kind::Text),
    ("prf", Kind::Places),
    ("protect-hidden", Kind::Flag),
    ("read-only", Kind::Flag),
    ("reencrypt", Kind::Text),
    ("require-cipher", Kind::Text),
    ("require-integrity", Kind::Text),
    ("sector-size", Kind::Number),
    ("simple-replies", Kind::Flag),
    ("skip", Kind::Number),
    ("socket-group", Kind::Text),
    ("socket-mode", Kind::Mode),
    ("system", Kind::Flag),
    ("tag-cache", Kind::Size),
    ("tls-certificates", Kind::Path),
    ("tls-verify-peer", Kind::Flag),
    ("token-id", Kind::Number),
    ("token-only", Kind::Flag),
    ("token-pin-file", Kind::Path),
    ("token-type", Kind::Text),
    ("tokens-first", Kind::Flag),
    ("tpm2-device", Kind::Text),
    ("type", Kind::Text),
    ("ublk", Kind::Flag),
    ("ublk-id", Kind::Number),
    ("ublk-queues", Kind::Number),
    ("vhost-user", Kind::Path),
    ("vhost-user-queues", Kind::Number),
    ("volume-key-file", Kind::Path),
    ("volume-key-size", Kind::Number),
];

/// The keys that are no options of `open`, or mean more here.
pub(super) const OWN: &[(&str, Kind)] = &[
    ("auto", Kind::Flag),
    ("device", Kind::Text),
    ("key-file", Kind::Path),
    ("may-fail", Kind::Flag),
    ("network", Kind::Flag),
];

/// Options of plain volumes only.
const OF_PLAIN: [&str; 8] =
    ["cipher", "data-offset", "data-size", "hash", "iv-large-sectors", "key-size", "sector-size", "skip"];

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
    if !file.options.is_plain()
        && let Some((name, line)) = lines.iter().find(|(name, _)| OF_PLAIN.contains(name))
    {
        return Err(wrong((
            *line,
            format!("{name}: a header says it; of volumes with type = \"plain\" only"),
        )));
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
        let known = OWN.iter().chain(KEYS).find(|(name, _)| *name == key);
        let &(name, kind) = known.ok_or_else(|| unknown(key))?;
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
        (Kind::Flag | Kind::Places, DeValue::Boolean(on)) => Ok(if *on { vec![None] } else { Vec::new() }),
        (Kind::Flag, _) => other("true or false"),
        (_, DeValue::String(text)) if text.is_empty() => Err(format!("{name}: says nothing")),
        (_, DeValue::String(text)) if text.contains('\0') => Err(format!("{name}: has a zero byte")),
        (Kind::Text, DeValue::String(text)) => one(text),
        (Kind::Text, _) => other("a string"),
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
        (Kind::Places, DeValue::String(text)) => place(name, text).map(|place| vec![Some(place)]),
        (Kind::Places, DeValue::Array(places)) if !places.is_empty() => places
            .iter()
            .map(|each| match each.get_ref() {
                DeValue::String(text) => place(name, text).map(Some),
                other => Err(format!("{name}: want a list of strings, not {} in it", article(other))),
            })
            .collect(),
        (Kind::Places, _) => other("true, a string or a list of strings"),
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
    let names = OWN.iter().chain(KEYS).map(|(name, _)| *name);
    let near = names.map(|name| (strsim::jaro(key, name), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    let shown = printable(key);
    match near {
        Some((likeness, name)) if likeness > 0.7 => format!("{shown}: no such key; did you mean {name}?"),
        _ => format!("{shown}: no such key"),
    }
}
