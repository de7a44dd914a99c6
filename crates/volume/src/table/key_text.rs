//! Text that may have keys in it.

use std::fmt;
use std::ops::Deref;

use zeroize::Zeroizing;

/// Text that may have keys in it: wiped when it is dropped, and wherever it lay before it grew,
/// which a `String` is not.
#[derive(Default, Clone, PartialEq, Eq)]
pub struct KeyText(Zeroizing<String>);

impl KeyText {
    /// Appends a part.
    pub fn push(&mut self, part: &str) {
        let len = self.0.len() + part.len();
        if len > self.0.capacity() {
            let mut larger = Zeroizing::new(String::with_capacity(2 * len));
            larger.push_str(&self.0);
            self.0 = larger;
        }
        self.0.push_str(part);
    }
}

impl<'t> Extend<&'t str> for KeyText {
    fn extend<T: IntoIterator<Item = &'t str>>(&mut self, parts: T) {
        parts.into_iter().for_each(|part| self.push(part));
    }
}

impl Deref for KeyText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Write for KeyText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.push(part);
        Ok(())
    }
}

/// The length alone.
impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyText({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    #[test]
    fn the_parts_follow_each_other() {
        let mut text = KeyText::default();
        let parts = ["aes-xts-plain64 ", "", "00112233", " 0 /dev/sda 0"];
        text.extend(parts);
        write!(text, " {}", 7).unwrap();
        assert_eq!(&*text, parts.concat() + " 7");
        assert!(!format!("{text:?}").contains("0011"));
    }
}
