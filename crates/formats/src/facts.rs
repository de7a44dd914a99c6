//! Facts of a header, as text for people and JSON for programs.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::Format;

/// An ordered list of names and values that describe one header, none of them secret.
///
/// `info` prints one line per fact; `info --json` prints an object whose keys are the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    format: Format,
    facts: Vec<(&'static str, String)>,
}

impl Facts {
    /// A list of no facts yet.
    pub fn new(format: Format) -> Self {
        Self { format, facts: Vec::new() }
    }

    /// Adds a fact. Names are words in lower case with spaces; control characters of a value are
    /// replaced.
    pub fn add(&mut self, name: &'static str, value: impl fmt::Display) -> &mut Self {
        let clean = |c: char| if c.is_control() { '?' } else { c };
        self.facts.push((name, value.to_string().chars().map(clean).collect()));
        self
    }

    /// The format that the facts are of.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The value of the first fact of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.facts.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// The facts in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.facts.iter().map(|(name, value)| (*name, value.as_str()))
    }
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<16}{}", "Format:", self.format.title())?;
        for (name, value) in &self.facts {
            let mut title = format!("{name}:");
            if let Some(first) = title.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            write!(f, "\n{title:<16}{value}")?;
        }
        Ok(())
    }
}

/// An object of strings, the format first; a name that occurs several times has an array of its
/// values.
impl Serialize for Facts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("format", self.format.name())?;
        for (at, (name, value)) in self.facts.iter().enumerate() {
            if self.facts[..at].iter().any(|(before, _)| before == name) {
                continue;
            }
            let key = name.replace(' ', "_");
            let all: Vec<_> =
                self.iter().filter(|(other, _)| other == name).map(|(_, value)| value).collect();
            match all.as_slice() {
                [_] => map.serialize_entry(&key, value)?,
                _ => map.serialize_entry(&key, &all)?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_header_never_reach_a_terminal() {
        let mut facts = Facts::new(Format::Bitlk);
        facts.add("description", "a\u{1b}[2Jb\nc");
        assert_eq!(facts.get("description"), Some("a?[2Jb?c"));
        assert_eq!(facts.to_string(), "Format:         BitLocker\nDescription:    a?[2Jb?c");
    }
}
