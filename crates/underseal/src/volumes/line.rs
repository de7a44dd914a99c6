//! A line and its fields.

/// The fields as written; missing ones are empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'l> {
    pub(super) name: &'l str,
    pub(super) device: &'l str,
    pub(super) key: &'l str,
    pub(super) options: Result<&'l str, usize>,
}

impl<'l> Fields<'l> {
    /// Splits a line; `None` for an empty line and for a comment.
    pub(super) fn of(line: &'l str) -> Option<Self> {
        let line = line.trim_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let mut fields = line.split([' ', '\t']).filter(|field| !field.is_empty());
        let mut next = || fields.next().unwrap_or_default();
        let (name, device, key, options) = (next(), next(), next(), next());
        let more = fields.count();
        Some(Self { name, device, key, options: if more == 0 { Ok(options) } else { Err(4 + more) } })
    }
}

/// Replaces fstab's escapes: a backslash and three octal digits stand for an ASCII character, as
/// `\040` for a space and `\054` for a comma. Any other backslash stands for itself.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        match escape.get(1..4).and_then(character) {
            Some(character) => {
                out.push(character);
                rest = &escape[4..];
            }
            None => {
                out.push('\\');
                rest = &escape[1..];
            }
        }
    }
    out + rest
}

fn character(digits: &str) -> Option<char> {
    let octal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let code = octal.then(|| u8::from_str_radix(digits, 8).ok())??;
    (code.is_ascii() && code != 0).then_some(char::from(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_fstab() {
        for (text, meant) in [
            (r"/srv/my\040disk", "/srv/my disk"),
            (r"a\054b\134\011", "a,b\\\t"),
            (r"\04", r"\04"),
            (r"\", r"\"),
            (r"\\040", r"\ "),
            (r"\000\200\400\999", r"\000\200\400\999"),
            (r"\04ü", r"\04ü"),
            (r"\+40", r"\+40"),
            ("größe", "größe"),
        ] {
            assert_eq!(plain(text), meant, "{text}");
        }
    }

    #[test]
    fn fields_are_parted_by_any_blanks() {
        let fields = Fields::of("  disk\t/a \t none  ublk,discard ").unwrap();
        assert_eq!(
            (fields.name, fields.device, fields.key, fields.options),
            ("disk", "/a", "none", Ok("ublk,discard"))
        );
        assert_eq!(Fields::of("a b c d e f").unwrap().options, Err(6));
        assert_eq!(Fields::of("a").unwrap().device, "");
        assert!(["", " \t", "# a b", "  #"].iter().all(|line| Fields::of(line).is_none()));
    }
}
