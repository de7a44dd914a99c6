//! The options that volumes of some types only have.

use super::options::Options;

/// The volumes without a header that says the cipher.
const HEADERLESS: &[&str] = &["plain", "tcrypt", "loopaes"];
const PLAIN: &[&str] = &["plain"];
const TCRYPT: &[&str] = &["tcrypt"];

/// The options, and the types that have each.
const OF_TYPES: [(&str, &[&str]); 18] = [
    ("cipher", HEADERLESS),
    ("hash", HEADERLESS),
    ("key-size", HEADERLESS),
    ("data-offset", HEADERLESS),
    ("skip", HEADERLESS),
    ("sector-size", HEADERLESS),
    ("data-size", PLAIN),
    ("iv-large-sectors", PLAIN),
    ("hidden", TCRYPT),
    ("backup-header", TCRYPT),
    ("system", TCRYPT),
    ("pim", TCRYPT),
    ("prf", TCRYPT),
    ("no-veracrypt", TCRYPT),
    ("protect-hidden", TCRYPT),
    ("hidden-passphrase-file", TCRYPT),
    ("hidden-pim", TCRYPT),
    ("hidden-key-file", TCRYPT),
];

/// Drops the options that lines of crypttab may have for volumes with a header, too: the header
/// prevails.
pub(super) fn drop_those_of_crypttab(options: &mut Options) {
    if !HEADERLESS.iter().any(|kind| options.is_of(kind)) {
        let prevails = |name: &str| OF_TYPES.iter().any(|(of, types)| *of == name && *types == HEADERLESS);
        options.of_open.retain(|(name, _)| !prevails(name));
    }
}

/// Returns the first option that volumes of this type do not have, and why.
pub(super) fn misplaced(options: &Options) -> Option<(&'static str, String)> {
    let types_of = |name| OF_TYPES.iter().find(|(of, _)| *of == name).map(|(_, types)| *types);
    let lacks = |types: &[&str]| !types.iter().any(|kind| options.is_of(kind));
    options.of_open.iter().find_map(|(name, _)| {
        let types = types_of(*name).filter(|types| lacks(types))?;
        let header = if types == TCRYPT { "" } else { "a header says it; " };
        Some((*name, format!("{name}: {header}of volumes of type {} only", types.join(" or "))))
    })
}
