//! `status`: facts from the server of an open volume and from its header, in cryptsetup's lines.

use std::path::Path;

use underseal_datapath::Policy;
use underseal_export::control::Status as About;
use underseal_volume::info::SegmentInfo;
use underseal_volume::{DispatchFlags, Header};

use super::Words;
use super::args::Args;
use super::failure::{Failure, Result, Status};
use super::loops;
use super::open::about;
use super::place::Place;
use crate::lower::open_header;
use crate::output::{print, printable};
use crate::reencryption::status_of;

/// `status NAME`.
pub(super) fn status(_: &Args, words: &Words<'_>) -> Result<()> {
    let place = Place::of(words.need(0, "name")?)?;
    let shown = printable(&place.shown().to_string_lossy());
    let Some(about) = about(&place)? else {
        place.mend_link(Place::unlink);
        print(&format!("{shown} is inactive.\n"))?;
        return Err(Failure::quiet(Status::NoDevice));
    };
    let place = place.where_served(&about);
    place.mend_link(Place::lead_to_file);
    Ok(print(&format!("{shown} is active.\n{}", lines(&place, &about).concat()))?)
}

fn lines(place: &Place, about: &About) -> Vec<String> {
    let mode = if about.read_only { "readonly" } else { "read/write" };
    let suspended = if about.suspended { " (suspended)" } else { "" };
    let opened = about.opened.as_ref();
    let on = opened.and_then(|opened| opened.header.as_ref()).unwrap_or(&about.image);
    let header = open_header(Path::new(on), true).ok().and_then(|on| Header::read(&*on).ok());
    // The image of a plain volume may contain bytes that look like a header.
    let header = header.filter(|_| opened.is_none_or(|opened| opened.plain.is_none()));
    let under_way = header.as_ref().is_some_and(|header| matches!(status_of(header), Ok(Some(_))));
    let segment = header.and_then(|header| header.info().segments.into_iter().next());
    let layout = Layout::of(about, segment.as_ref());

    let format = opened.map(|opened| format!("{:?}", opened.format).to_uppercase());
    let mut lines = vec![line("type:    ", format.as_deref().unwrap_or("n/a"))];
    lines.extend(layout.cipher.as_deref().map(|cipher| line("cipher:  ", cipher)));
    let key_size = opened.and_then(|opened| opened.key_size);
    lines.extend(key_size.map(|bytes| line("keysize: ", &format!("{} bits", bytes * 8))));
    if layout.cipher.is_some() {
        // The alternative, "keyring", would send scripts to a key that does not exist.
        lines.push(line("key location: ", "dm-crypt"));
    }
    if let Some(integrity) = segment.as_ref().and_then(|segment| segment.integrity.as_deref()) {
        lines.push(line("integrity: ", integrity));
    }
    let integrity_key = segment.as_ref().and_then(|segment| segment.integrity_key_bits);
    lines.extend(integrity_key.map(|bits| line("integrity keysize: ", &format!("{bits} bits"))));
    lines.push(line("device:  ", &about.image));
    let file = loops::file_of(Path::new(&about.image));
    lines.extend(file.map(|file| line("loop:    ", &file.to_string_lossy())));
    lines.push(line("plain:   ", &place.path().to_string_lossy()));
    lines.push(line("policy:  ", &about.policy));
    if let Some(size) = layout.sector_size {
        lines.push(line("sector size:  ", &format!("{size} [bytes]")));
    }
    lines.extend(layout.offset.map(|offset| line("offset:  ", &units(offset))));
    lines.push(line("size:    ", &units(about.size)));
    lines.extend(layout.skip.map(|sectors| line("skipped: ", &units(sectors.saturating_mul(512)))));
    lines.push(line("mode:    ", &format!("{mode}{suspended}")));
    let flags = flags(about);
    if !flags.is_empty() {
        lines.push(line("flags:   ", &flags.join(" ")));
    }
    if under_way {
        lines.push(line("reencryption:  ", "in-progress"));
    }
    lines
}

fn line(name: &str, value: &str) -> String {
    format!("  {name}{}\n", printable(value))
}

/// The layout and cipher of a volume: from its header, or from its open.
#[derive(Default)]
struct Layout {
    cipher: Option<String>,
    sector_size: Option<usize>,
    offset: Option<u64>,
    /// In 512-byte units; `None` for 0.
    skip: Option<u64>,
}

impl Layout {
    fn of(about: &About, segment: Option<&SegmentInfo>) -> Self {
        if let Some(plain) = about.opened.as_ref().and_then(|opened| opened.plain.as_ref()) {
            return Self {
                cipher: Some(plain.cipher.clone()),
                sector_size: usize::try_from(plain.sector_size).ok(),
                offset: Some(plain.offset),
                skip: Some(plain.skip).filter(|skip| *skip > 0),
            };
        }
        let Some(segment) = segment else { return Self::default() };
        Self {
            cipher: segment.cipher.clone(),
            sector_size: Some(segment.sector_size.unwrap_or(512)),
            offset: Some(segment.offset),
            skip: segment.iv_offset.filter(|skip| *skip > 0),
        }
    }
}

/// Returns dm-crypt's flags, as cryptsetup spells them.
fn flags(about: &About) -> Vec<&'static str> {
    let discards = about.opened.as_ref().is_some_and(|opened| opened.discards);
    let dispatch = about.policy.parse().ok().and_then(|policy| flags_of(&policy)).unwrap_or_default();
    let all = [
        (discards, "discards"),
        (dispatch.same_cpu_crypt, "same_cpu_crypt"),
        (dispatch.submit_from_crypt_cpus, "submit_from_crypt_cpus"),
        (dispatch.no_read_workqueue, "no_read_workqueue"),
        (dispatch.no_write_workqueue, "no_write_workqueue"),
        (dispatch.high_priority, "high_priority"),
    ];
    all.into_iter().filter_map(|(is_set, name)| is_set.then_some(name)).collect()
}

/// Returns the smallest set of flags for the policy; `None` where no flags express it, as for
/// `adaptive`.
fn flags_of(policy: &Policy) -> Option<DispatchFlags> {
    let all = (0..32u32).map(|set| DispatchFlags {
        same_cpu_crypt: set & 1 != 0,
        submit_from_crypt_cpus: set & 2 != 0,
        no_read_workqueue: set & 4 != 0,
        no_write_workqueue: set & 8 != 0,
        high_priority: set & 16 != 0,
        ..DispatchFlags::default()
    });
    let count = |flags: &DispatchFlags| {
        let DispatchFlags {
            same_cpu_crypt,
            submit_from_crypt_cpus,
            no_read_workqueue,
            no_write_workqueue,
            high_priority,
            ..
        } = *flags;
        let set =
            [same_cpu_crypt, submit_from_crypt_cpus, no_read_workqueue, no_write_workqueue, high_priority];
        set.map(usize::from)
    };
    // Policies are compared by their texts, which contain exactly what flags can express.
    let means = |flags: &DispatchFlags| Policy::from_flags(*flags).to_string() == policy.to_string();
    all.filter(means).min_by_key(|flags| count(flags).iter().sum::<usize>())
}

/// Formats a size as cryptsetup does since 2.8.
fn units(bytes: u64) -> String {
    format!("{} [512-byte units] ({bytes} [bytes])", bytes / 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_of_flags_is_told_by_them() {
        for set in 0..32u32 {
            let flags = DispatchFlags {
                same_cpu_crypt: set & 1 != 0,
                submit_from_crypt_cpus: set & 2 != 0,
                no_read_workqueue: set & 4 != 0,
                no_write_workqueue: set & 8 != 0,
                high_priority: set & 16 != 0,
                ..DispatchFlags::default()
            };
            let policy = Policy::from_flags(flags);
            let found = flags_of(&policy).unwrap();
            assert_eq!(Policy::from_flags(found).to_string(), policy.to_string());
            // With both kinds of requests inline no processor is chosen.
            if !(flags.no_read_workqueue && flags.no_write_workqueue) {
                assert_eq!(found, flags);
            }
        }
        assert_eq!(flags_of(&"adaptive".parse().unwrap()), None);
    }
}
