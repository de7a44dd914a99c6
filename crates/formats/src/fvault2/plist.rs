//! CoreStorage's property lists: XML without a prolog, whose elements may be references to other
//! elements.
//!
//! The lists need not be well-formed XML, so they are searched, not parsed: `<key>NAME</key>`, the
//! element behind it, its text. An element `<reference IDREF="7"/>` stands for the element with
//! `ID="7"`. Nothing is copied, so that secrets stay in locked memory. Only 128 elements of one
//! name are examined: a reference is searched for in the whole list.

/// The elements behind one name that are looked at; real lists have a few for each user.
const MOST_VALUES: usize = 128;

/// The text of a list.
#[derive(Clone, Copy)]
pub(super) struct Plist<'a>(pub(super) &'a str);

/// An element: its name, and everything from its text on.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    name: &'a str,
    rest: &'a str,
}

impl<'a> Plist<'a> {
    /// The elements behind the first keys of this name, in order.
    pub(super) fn values(self, key: &'a str) -> impl Iterator<Item = Element<'a>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            loop {
                let (_, behind) = rest.split_once("<key>")?;
                let (name, behind) = behind.split_once("</key>")?;
                rest = behind;
                if name == key {
                    return Some(behind);
                }
            }
        })
        .take(MOST_VALUES)
        .filter_map(move |behind| self.element(behind))
    }

    /// The first element behind a key of this name.
    pub(super) fn value(self, key: &'a str) -> Option<Element<'a>> {
        self.values(key).next()
    }

    /// The element that a text begins with.
    fn element(self, text: &'a str) -> Option<Element<'a>> {
        let (tag, rest) = text.trim_start().strip_prefix('<')?.split_once('>')?;
        let name = tag.split([' ', '/']).next()?;
        if name != "reference" {
            return Some(Element { name, rest: if tag.ends_with('/') { "" } else { rest } });
        }
        let id = attribute(tag, "IDREF")?;
        self.0.split('<').skip(1).find_map(|tag| {
            let (tag, _) = tag.split_once('>')?;
            if attribute(tag, "ID") != Some(id) || tag.starts_with("reference") {
                return None;
            }
            // The tag is a part of the list, so the bytes behind it are found by its address.
            let at = tag.as_ptr().addr().checked_sub(self.0.as_ptr().addr())?;
            let rest = self.0.get(at + tag.len() + 1..)?;
            let name = tag.split([' ', '/']).next()?;
            Some(Element { name, rest: if tag.ends_with('/') { "" } else { rest } })
        })
    }
}

/// The value of an attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = tag;
    loop {
        let (before, behind) = rest.split_once(name)?;
        if let Some(value) = behind.strip_prefix("=\"")
            && before.ends_with(' ')
        {
            return Some(value.split_once('"')?.0);
        }
        rest = behind;
    }
}

impl<'a> Element<'a> {
    /// The text of an element of this name; none of another one.
    pub(super) fn text(self, name: &str) -> Option<&'a str> {
        if self.name != name {
            return None;
        }
        Some(self.rest.split_once('<').map_or(self.rest, |(text, _)| text).trim())
    }

    /// The number of an `integer`: decimal, or hexadecimal after `0x`.
    pub(super) fn integer(self) -> Option<u64> {
        let text = self.text("integer")?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The strings of an `array`.
    pub(super) fn strings(self) -> impl Iterator<Item = &'a str> {
        let within = if self.name == "array" { self.rest } else { "" };
        let within = within.split_once("</array>").map_or(within, |(within, _)| within);
        within.split("<string").skip(1).filter_map(|behind| {
            let (_, text) = behind.split_once('>')?;
            Some(text.split_once('<').map_or(text, |(text, _)| text).trim())
        })
    }
}

/// A string without XML's escapes, for people.
pub(super) fn unescaped(text: &str) -> String {
    let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"<dict ID="0"><key>a</key><string ID="1">one &amp; only</string><key>n</key>
        <integer size="64" ID="2">0x1000</integer><key>m</key><integer>12</integer><key>b</key><reference IDREF="1"/>
        <key>c</key><data ID="3"></data><key>c</key><data ID="14">QUJD</data><key>d</key><reference IDREF="4"/>
        <key>e</key><array ID="5"><string>x</string><string ID="6">y</string></array><string>z</string></dict>"#;

    #[test]
    fn values_are_found_also_through_references() {
        let list = Plist(LIST);
        assert_eq!(list.value("a").unwrap().text("string").map(unescaped).as_deref(), Some("one & only"));
        assert_eq!(list.value("b").unwrap().text("string"), Some("one &amp; only"));
        assert_eq!(list.value("n").unwrap().integer(), Some(4096));
        assert_eq!(list.value("m").unwrap().integer(), Some(12));
        let data: Vec<_> = list.values("c").map(|data| data.text("data").unwrap()).collect();
        assert_eq!(data, ["", "QUJD"]);
        assert!(list.value("d").is_none() && list.value("f").is_none());
        assert_eq!(list.value("e").unwrap().strings().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(list.value("a").unwrap().text("data"), None);
    }

    #[test]
    fn a_list_that_is_cut_anywhere_is_searched_to_its_end() {
        for (end, _) in LIST.char_indices() {
            let list = Plist(&LIST[..end]);
            for key in ["a", "b", "c", "d", "e", "n"] {
                for element in list.values(key) {
                    element.strings().for_each(drop);
                    element.integer();
                    element.text("data");
                }
            }
        }
    }
}
