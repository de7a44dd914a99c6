//! Repair of a header, as far as possible without a key.

use crate::{Error, ErrorKind, Header, Result, Target, luks1, luks2};

/// Repairs a header. Returns the changes as messages; the list is empty when the header was sound.
///
/// A bad or old copy of a LUKS2 header is rewritten from the other copy, and superfluous members of
/// a key derivation are removed from its metadata. In a LUKS1 header, names and unused keyslots are
/// corrected. Keyslots in use are never touched. `over` allows to overwrite bytes in the bad copy's
/// place that are no LUKS header, and may belong to another program.
///
/// # Errors
/// The kinds of [`Header::read`] for headers that cannot be repaired; `Ambiguous` when other bytes
/// would be overwritten; `Busy` when another process changed the header meanwhile, or keeps its
/// lock; `Io`.
pub fn repair(on: &(impl Target + ?Sized), over: bool) -> Result<Vec<String>> {
    let header = match Header::read(on) {
        Ok(header) => header,
        Err(e) if e.kind() == ErrorKind::Ambiguous && over => {
            let header = luks2::Header::read_over(on)?.ok_or(e)?;
            Header::Luks2(Box::new(header))
        }
        Err(e) if matches!(e.kind(), ErrorKind::BadHeader | ErrorKind::Unsupported) => {
            let done = luks1::repair(on);
            return done.map_err(|why| if why.kind() == ErrorKind::NoHeader { e } else { why });
        }
        Err(e) => return Err(e),
    };
    match header {
        Header::Luks1(_) => luks1::repair(on),
        Header::Luks2(header) => {
            let done = luks2_repair(*header, on, over)?;
            // An earlier repair may be in memory only.
            Header::read(on)?.secure(on)?;
            Ok(done)
        }
    }
}

fn luks2_repair(mut header: luks2::Header, on: &(impl Target + ?Sized), over: bool) -> Result<Vec<String>> {
    let mut done = Vec::new();
    if let Some(damage) = header.damage().map(str::to_owned) {
        if over { header.repair_over(on) } else { header.repair(on) }?;
        done.push(format!("one copy was written again from the other ({damage})"));
    } else if header.copies_differ(on)? {
        header.tidy(on)?;
        done.push("the second copy was written again from the first, which it differed from".into());
    }
    let leftovers = header.leftovers();
    if !leftovers.is_empty() {
        header.tidy(on)?;
        let removed =
            leftovers.iter().map(|place| format!("{place}: members of another key derivation were removed"));
        done.extend(removed);
    }
    if header.wipe_unwiped(on)? {
        done.push("old areas of a reencryption among the keyslots were wiped".into());
    }
    match header.damage() {
        Some(damage) => Err(Error::new(ErrorKind::BadHeader, damage)),
        None => Ok(done),
    }
}
