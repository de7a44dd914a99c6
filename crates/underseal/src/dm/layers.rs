//! Devices that keep tags and make none: integrity lines without a hash, under crypt lines that
//! make the tags.
//!
//! In the kernel such a device passes tags up with each request. Here tags do not leave a process:
//! a crypt line on this kind of device opens the layer itself, in its own table server, and the
//! device's own server does not.

use std::iter;

use rustix::io::Errno;
use underseal_dm::records::Line;
use underseal_dm::{DeviceNumber, Error, Result};
use underseal_volume::table::{Base, IntegrityLine, KeyText, Table, Target};
use zeroize::Zeroizing;

use super::host::text;
use super::lowers::Lookups;
use super::orders::LayerWords;

/// Returns true when a line keeps tags that the line above makes.
pub(in crate::dm) fn makes_no_tags(line: &IntegrityLine) -> bool {
    line.option("internal_hash").is_none()
}

/// The options of an integrity line that may have a key, in the order in which the kernel prints
/// them.
const KEYED: [&str; 3] = ["internal_hash", "journal_crypt", "journal_mac"];

/// Returns the lines, those of layers in the kernel's form: with the values of the superblock and
/// the kernel's defaults.
pub(super) fn printed(lines: Vec<Line>, layers: Vec<Option<LayerWords>>) -> Result<Vec<Line>> {
    let of_layers = layers.into_iter().chain(iter::repeat(None));
    let print = |(line, layer): (Line, Option<LayerWords>)| match layer {
        Some(layer) if line.target == "integrity" => {
            Line::new(line.start, line.len, "integrity", &with_words(line.params(), &layer))
        }
        _ => Ok(line),
    };
    lines.into_iter().zip(of_layers).map(print).collect()
}

fn with_words(params: &str, layer: &LayerWords) -> Zeroizing<String> {
    let words: Vec<_> = params.split(' ').collect();
    let [device, start, _, mode, _, options @ ..] = &words[..] else {
        return Zeroizing::new(params.to_owned());
    };
    // The last of repeated options counts.
    let option = |name: &str| {
        let is_it = |word: &&&str| word.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
        options.iter().rev().find(is_it).copied()
    };
    let meta = option("meta_device").into_iter();
    let words = meta.chain(layer.words.iter().map(String::as_str));
    let words: Vec<_> = words.chain(KEYED.into_iter().filter_map(option)).collect();
    // Reserved at once: what is left behind by a growing text is not wiped.
    let len: usize = params.len() + words.iter().map(|word| word.len() + 1).sum::<usize>() + 32;
    let mut text = Zeroizing::new(String::with_capacity(len));
    text.push_str(&format!("{device} {start} {} {mode} {}", layer.tag_size, words.len()));
    for word in words {
        text.push(' ');
        text.push_str(word);
    }
    text
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
) -> Result<Option<KeyText>> {
    let mut stack = KeyText::default();
    for base in table.bases() {
        let Base::Device(name) = base else { continue };
        let Some((number, lines)) = layer_at(name, below, lookups)? else { continue };
        let layer = text(&lines);
        stack.extend([&*number.to_string(), ": ", layer.trim_end(), "\n"]);
    }
    if stack.is_empty() {
        return Ok(None);
    }
    for line in table.lines() {
        let Some(name) = line.target.device() else {
            stack.extend(["volume: ", &line.print(true), "\n"]);
            continue;
        };
        let has_tags = matches!(&line.target, Target::Crypt(crypt) if crypt.options.integrity.is_some());
        let mut printed = line.print(true);
        match layer_at(name, below, lookups)? {
            Some(_) if !has_tags => {
                let why = format!("{name}: the device keeps tags, and the line has none");
                return Err(Error::new(Errno::INVAL, why));
            }
            Some((number, _)) => {
                printed = super::host::renamed(&printed, name, &number.to_string());
            }
            None => {}
        }
        stack.extend(["volume: ", &printed, "\n"]);
    }
    Ok(Some(stack))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layers_line_has_the_kernels_words_in_its_order() {
        let layer =
            LayerWords { tag_size: 4, words: ["block_size:4096", "fix_hmac"].map(str::to_owned).into() };
        let line = Line::new(
            0,
            8,
            "integrity",
            "7:0 0 - J 5 journal_mac:sha256:00 fix_hmac internal_hash:a internal_hash:crc32c meta_device:7:1",
        );
        let lines = vec![line.unwrap(), Line::new(8, 8, "zero", "").unwrap()];
        let printed = printed(lines, vec![Some(layer)]).unwrap();
        let expected =
            "7:0 0 4 J 5 meta_device:7:1 block_size:4096 fix_hmac internal_hash:crc32c journal_mac:sha256:00";
        assert_eq!(printed[0].params(), expected);
        assert_eq!((printed[0].start, printed[0].len, printed[1].params()), (0, 8, ""));
    }
}
