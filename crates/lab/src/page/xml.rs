//! A writer of XML that closes every element and escapes all text.

use std::fmt::{Display, Write};

/// Attributes: names, which are constants, and values, which are escaped.
pub(super) type XmlAttributes<'a> = &'a [(&'static str, &'a dyn Display)];

/// A growing document.
pub(super) struct Xml(String);

impl Xml {
    pub(super) fn new(prologue: &str) -> Self {
        Self(prologue.into())
    }

    /// An element with the content that `inside` writes.
    pub(super) fn element(
        &mut self,
        tag: &'static str,
        attributes: XmlAttributes<'_>,
        inside: impl FnOnce(&mut Self),
    ) {
        self.open(tag, attributes, ">");
        inside(self);
        self.close(tag);
    }

    /// Writes an element with text.
    pub(super) fn line(&mut self, tag: &'static str, attributes: XmlAttributes<'_>, text: &str) {
        self.element(tag, attributes, |xml| xml.text(text));
    }

    /// Writes an empty element.
    pub(super) fn leaf(&mut self, tag: &'static str, attributes: XmlAttributes<'_>) {
        self.open(tag, attributes, "/>");
    }

    pub(super) fn text(&mut self, text: &str) {
        escape(&mut self.0, text);
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push('\n');
        self.0
    }

    fn open(&mut self, tag: &str, attributes: XmlAttributes<'_>, end: &str) {
        // Each element has its own line, so that two versions of a page can be compared.
        self.0.push_str(if self.0.ends_with('>') { "\n<" } else { "<" });
        self.0.push_str(tag);
        for (name, value) in attributes {
            let _ = write!(self.0, " {name}=\"");
            escape(&mut self.0, &value.to_string());
            self.0.push('"');
        }
        self.0.push_str(end);
    }

    fn close(&mut self, tag: &str) {
        let _ = write!(self.0, "</{tag}>");
    }
}

fn escape(to: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            '\'' => to.push_str("&#39;"),
            '\n' | '\t' => to.push(c),
            // XML cannot represent these characters.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => to.push('?'),
            c => to.push(c),
        }
    }
}

/// A coordinate with a precision of a tenth.
pub(super) struct Coordinate(pub(super) f64);

impl Display for Coordinate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        // Neither "-0" nor "NaN" is a coordinate.
        write!(f, "{}", if tenths == 0.0 || !tenths.is_finite() { 0.0 } else { tenths })
    }
}
