//! A line's words: separated by white space, a backslash takes the next character as it is.

use super::bad;
use crate::Result;

pub(super) struct Words {
    // Reversed.
    left: Vec<String>,
}

impl Words {
    pub(super) fn split(line: &str) -> Self {
        let mut words = Vec::new();
        let mut word: Option<String> = None;
        let mut characters = line.chars();
        while let Some(c) = characters.next() {
            match c {
                '\\' => word.get_or_insert_default().extend(characters.next()),
                c if c.is_whitespace() => words.extend(word.take()),
                c => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words.reverse();
        Self { left: words }
    }

    pub(super) fn next(&mut self) -> Option<String> {
        self.left.pop()
    }

    pub(super) fn len(&self) -> usize {
        self.left.len()
    }

    /// A decimal number of 64 bits; `kernel` are the kernel's words where it is none.
    pub(super) fn number(&mut self, kernel: &str, what: &str) -> Result<u64> {
        let word = self.next().ok_or_else(|| bad(format!("{kernel}: {what} is missing")))?;
        number(&word).ok_or_else(|| {
            bad(format!("{kernel}: {what} is {}, not a number of 64 bits", crate::text::printable(&word)))
        })
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> std::result::Result<(), ()> {
        if self.left.is_empty() { Ok(()) } else { Err(()) }
    }
}

/// Digits only: `parse` alone would take a sign.
pub(super) fn number(word: &str) -> Option<u64> {
    if !word.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    word.parse().ok()
}

/// The word, so that splitting gives it back.
pub(super) fn escape(word: &str) -> String {
    let mut escaped = String::with_capacity(word.len());
    for c in word.chars() {
        if c == '\\' || c.is_whitespace() {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
