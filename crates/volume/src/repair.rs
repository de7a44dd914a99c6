//! Making a header good again, as far as that goes without a key.

use crate::{Error, ErrorKind, Header, Result, Target, luks1, luks2};

/// What a repair did, in words; nothing where nothing was to be done.
///
/// A copy of LUKS2's that is bad or out of date is written again from the other; members that a key
/// derivation does not have go from its metadata. Of LUKS1 names are set right, and keyslots that
/// are not in use. Keyslots in use are never touched. `over` allows to overwrite what may be
/// somebody else's: what stands in the bad copy's place and is no LUKS header.
///
/// # Errors
/// Those of [`Header::read`] for what cannot be repaired; `Ambiguous` when something else would be
/// overwritten; `Busy` when somebody changed the header meanwhile, or keeps its lock; `Io`.
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
        Header::Luks2(header) => luks2_repair(*header, on, over),
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
        done.push("what a reencryption left among the keyslots was wiped".into());
    }
    match header.damage() {
        Some(damage) => Err(Error::new(ErrorKind::BadHeader, damage)),
        None => Ok(done),
    }
}
