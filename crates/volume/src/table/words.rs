//! A line's words: separated by white space; a backslash takes the next character literally.

use zeroize::Zeroizing;

use super::bad;
use crate::Result;

pub(super) struct Words {
    // In reverse order. A word may be a key, so all words are wiped, and no word is moved in
    // memory.
    left: Vec<Zeroizing<String>>,
}

impl Words {
    pub(super) fn split(line: &str) -> Self {
        let mut words = Vec::new();
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            let mut word = Zeroizing::new(String::with_capacity(end(rest)));
            let mut characters = rest.chars();
            while let Some(c) = characters.next().filter(|c| !c.is_whitespace()) {
                match c {
                    '\\' => word.extend(characters.next()),
                    c => word.push(c),
                }
            }
            words.push(word);
            rest = characters.as_str().trim_start();
        }
        words.reverse();
        Self { left: words }
    }

    pub(super) fn next(&mut self) -> Option<Zeroizing<String>> {
        self.left.pop()
    }

    pub(super) fn len(&self) -> usize {
        self.left.len()
    }

    /// Parses a decimal number of 64 bits. `kernel` are the kernel's words for a bad number.
    pub(super) fn number(&mut self, kernel: &str, what: &str) -> Result<u64> {
        let word = self.next().ok_or_else(|| bad(format!("{kernel}: {what} is missing")))?;
        number(&word).ok_or_else(|| {
            bad(format!("{kernel}: {what} is {}, not a number of 64 bits", crate::text::printable(&word)))
        })
    }

    /// Checks that no word is left.
    pub(super) fn end(&self) -> std::result::Result<(), ()> {
        if self.left.is_empty() { Ok(()) } else { Err(()) }
    }
}

/// Returns a bound of the first word's bytes.
fn end(text: &str) -> usize {
    let mut escaped = false;
    let ends = |c: char| {
        let ends = c.is_whitespace() && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    };
    text.find(ends).unwrap_or(text.len())
}

/// Digits only: `parse` alone would take a sign.
pub(super) fn number(word: &str) -> Option<u64> {
    if !word.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    word.parse().ok()
}

/// Escapes the word, so that splitting gives the same word.
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
