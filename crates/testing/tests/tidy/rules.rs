//! The rules, and where they are broken.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::tree::{Text, Tree};

/// A rule whose violations are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A comment line, or a line of a document outside tables, has more than 100 characters.
    /// rustfmt has its own width for code.
    Length,
    /// A comment begins with a pronoun instead of its subject.
    Subject,
    /// A comment or document has a word that the glossary excludes.
    Words,
    /// An `# Errors` section says nothing, or stands on a private item.
    Errors,
    /// A public or crate-visible type shares its name with another one. `Error`, `ErrorKind` and
    /// `Result` are excepted.
    SharedName,
    /// A public item of a library is named nowhere outside its crate.
    Unnamed,
}

impl Rule {
    pub(crate) const ALL: [Self; 6] =
        [Self::Length, Self::Subject, Self::Words, Self::Errors, Self::SharedName, Self::Unnamed];

    /// The rule's column in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Subject => "subject",
            Self::Words => "words",
            Self::Errors => "errors",
            Self::SharedName => "shared-name",
            Self::Unnamed => "unnamed",
        }
    }
}

/// A place where a rule is broken.
pub(crate) struct Finding {
    pub(crate) rule: Rule,
    pub(crate) of: String,
    pub(crate) file: String,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Finding {
    fn new(rule: Rule, text: &Text, index: usize, what: &str) -> Self {
        Self { rule, of: text.of.clone(), file: text.path.clone(), line: index + 1, text: what.to_owned() }
    }
}

/// Everything that breaks a rule.
pub(crate) fn all(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in &tree.texts {
        lengths(text, &mut findings);
        words(text, &tree.words, &mut findings);
        if text.is_code() {
            subjects(text, &mut findings);
            errors(text, &mut findings);
        }
    }
    shared_names(tree, &mut findings);
    unnamed(tree, &mut findings);
    findings
}

/// The longest comment line.
const COLUMNS: usize = 100;

fn lengths(text: &Text, findings: &mut Vec<Finding>) {
    for (n, line) in text.lines.iter().enumerate() {
        let is_free = match text.is_code() {
            true => comment(line).is_none(),
            false => line.starts_with('|') || line.contains("]("),
        };
        if !is_free && line.chars().count() > COLUMNS {
            findings.push(Finding::new(Rule::Length, text, n, line.trim()));
        }
    }
}

/// First words that stand where a noun is missing.
const PRONOUNS: &[&str] = &[
    "it", "its", "they", "their", "he", "what", "who", "whoever", "whose", "whatever", "somebody", "nobody",
    "such", "those", "these", "that", "others", "one", "ones", "none", "there",
];

/// The text of a comment line, without its slashes.
fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("//")?;
    Some(rest.trim_start_matches(['/', '!']).trim())
}

fn subjects(text: &Text, findings: &mut Vec<Finding>) {
    let mut inside = false;
    for (n, line) in text.lines.iter().enumerate() {
        let words = comment(line);
        if let (Some(words), false) = (words, inside) {
            let first: String = words.chars().take_while(|c| c.is_alphabetic()).collect();
            if PRONOUNS.contains(&&*first.to_lowercase()) {
                findings.push(Finding::new(Rule::Subject, text, n, words));
            }
        }
        inside = words.is_some();
    }
}

/// The prose of a line: the comment of code, without what stands in backticks.
fn prose(text: &Text, line: &str) -> Option<String> {
    let line = if text.is_code() { comment(line)? } else { line };
    let mut prose = String::new();
    line.split('`').step_by(2).for_each(|part| {
        prose += part;
        prose.push('`');
    });
    Some(prose.to_lowercase())
}

fn words(text: &Text, excluded: &[String], findings: &mut Vec<Finding>) {
    if text.path == "docs/glossary.md" {
        return;
    }
    let mut fenced = false;
    for (n, line) in text.lines.iter().enumerate() {
        fenced ^= !text.is_code() && line.starts_with("```");
        let Some(prose) = prose(text, line).filter(|_| !fenced) else { continue };
        for word in excluded {
            for (at, _) in prose.match_indices(&**word) {
                let end = at + word.len();
                let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '-');
                let plural = prose[end..].strip_prefix('s').unwrap_or(&prose[end..]);
                if edge(prose[..at].chars().next_back()) && edge(plural.chars().next()) {
                    findings.push(Finding::new(Rule::Words, text, n, word));
                }
            }
        }
    }
}

/// The item that the comment at `index` belongs to: its line, and whether others may name it.
fn item(text: &Text, index: usize) -> Option<(usize, bool)> {
    let outside = |line: &str| !line.starts_with("//") && !line.starts_with("#[") && !line.starts_with(')');
    let at = (index..text.lines.len()).find(|&n| {
        let line = text.lines[n].trim_start();
        outside(line)
            && (line.contains("fn ") || line.contains("struct ") || line.contains("type ") || line.is_empty())
    })?;
    let line = &text.lines[at];
    if line.trim().is_empty() {
        return None;
    }
    let depth = line.len() - line.trim_start().len();
    // A method of a public trait is as public as that.
    let owner = text.lines[..at]
        .iter()
        .rev()
        .find(|l| !l.trim().is_empty() && l.len() - l.trim_start().len() < depth && l.contains('{'))
        .map_or("", |l| l.trim());
    let is_public = line.trim_start().starts_with("pub ")
        || owner.starts_with("pub trait")
        || owner.starts_with("pub unsafe trait");
    Some((at, is_public))
}

fn errors(text: &Text, findings: &mut Vec<Finding>) {
    for (n, line) in text.lines.iter().enumerate() {
        if comment(line) != Some("# Errors") || line.trim_start().starts_with("//!") {
            continue;
        }
        let body: Vec<_> = text.lines[n + 1..].iter().map_while(|line| comment(line)).collect();
        let section =
            body.iter().take_while(|line| !line.starts_with("# ")).copied().collect::<Vec<_>>().join(" ");
        // An error's name in code type, or a cause.
        let says_something = section.contains('`') || section.split_whitespace().count() >= 5;
        let is_public = item(text, n).is_none_or(|(_, is_public)| is_public);
        if !says_something || !is_public {
            findings.push(Finding::new(Rule::Errors, text, n, section.trim()));
        }
    }
}

/// The name of the type that a line defines, if code outside its module may use it.
fn visible_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => rest,
    };
    let rest = rest.trim_start();
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let rest =
        ["struct ", "enum ", "union ", "trait ", "type "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn shared_names(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut found: BTreeMap<&str, Vec<(&Text, usize)>> = BTreeMap::new();
    for text in tree.texts.iter().filter(|text| text.is_code() && !text.is_test()) {
        for (n, line) in text.lines.iter().enumerate() {
            if let Some(name) = visible_type(line).filter(|n| !["Error", "ErrorKind", "Result"].contains(n)) {
                found.entry(name).or_default().push((text, n));
            }
        }
    }
    for (name, places) in found.iter().filter(|(_, places)| places.len() > 1) {
        findings.extend(places.iter().map(|&(text, n)| Finding::new(Rule::SharedName, text, n, name)));
    }
}

/// The name of an item that a library offers.
fn offered(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let rest = ["unsafe ", "async "].iter().fold(rest, |rest, word| rest.strip_prefix(word).unwrap_or(rest));
    let kinds = ["const fn ", "fn ", "struct ", "enum ", "trait ", "type ", "const ", "static "];
    let rest = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

fn unnamed(tree: &Tree, findings: &mut Vec<Finding>) {
    // Every word of code, with the crates that have it.
    let mut uses: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    for text in tree.texts.iter().filter(|text| text.is_code()) {
        for line in text.lines.iter().filter(|line| comment(line).is_none()) {
            for word in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
                uses.entry(word).or_default().insert(&text.of);
            }
        }
    }
    for text in
        tree.texts.iter().filter(|text| text.is_code() && !text.is_test() && text.path.contains("/src/"))
    {
        for (n, line) in text.lines.iter().enumerate() {
            if let Some(name) = offered(line)
                && uses.get(name).is_none_or(|crates| crates.len() < 2)
            {
                findings.push(Finding::new(Rule::Unnamed, text, n, name));
            }
        }
    }
}
