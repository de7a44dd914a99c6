//! The sources of all crates, and the documents.

use std::fs;
use std::path::Path;

/// A text file of the tree.
pub(crate) struct Text {
    /// The path in the workspace, with slashes.
    pub(crate) path: String,
    /// The crate, or `docs`.
    pub(crate) of: String,
    pub(crate) lines: Vec<String>,
}

impl Text {
    /// True for Rust code.
    pub(crate) fn is_code(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True for code that only tests run.
    pub(crate) fn is_test(&self) -> bool {
        ["/tests/", "/examples/", "/benches/"].iter().any(|part| self.path.contains(part))
            || self.path.ends_with("/tests.rs")
    }
}

/// All text that the rules are for.
pub(crate) struct Tree {
    pub(crate) texts: Vec<Text>,
    /// The words of the glossary's last column, in lower case.
    pub(crate) words: Vec<String>,
}

impl Tree {
    /// Reads the crates' `.rs` files and the documents below `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        for folder in ["crates", "docs", "fuzz"] {
            collect(root, &root.join(folder), &mut files);
        }
        for name in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"] {
            files.push((name.to_owned(), fs::read_to_string(root.join(name)).unwrap()));
        }
        files.sort();
        let glossary = files.iter().find(|(path, _)| path == "docs/glossary.md").expect("the glossary");
        let words = quoted(&glossary.1);
        let texts = files.iter().map(|(path, text)| Text::new(path, text)).collect();
        Self { texts, words }
    }

    /// A tree for the tests of the rules.
    pub(crate) fn of(files: &[(&str, &str)], words: &[&str]) -> Self {
        let texts = files.iter().map(|(path, text)| Text::new(path, text)).collect();
        Self { texts, words: words.iter().map(|&word| word.to_owned()).collect() }
    }

    /// The crates and `docs`, each once.
    pub(crate) fn crates(&self) -> Vec<String> {
        let mut names: Vec<_> = self.texts.iter().map(|text| text.of.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Text {
    fn new(path: &str, text: &str) -> Self {
        let of = match path.split('/').collect::<Vec<_>>()[..] {
            ["crates", name, ..] => name,
            ["fuzz", ..] => "fuzz",
            _ => "docs",
        };
        Self { path: path.to_owned(), of: of.to_owned(), lines: text.lines().map(str::to_owned).collect() }
    }
}

/// Adds the text files below `folder`, without those that cargo makes.
fn collect(root: &Path, folder: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !["target", "corpus", "artifacts"].contains(&&*name) && !name.starts_with('.') {
                collect(root, &path, files);
            }
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            let inside = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            files.push((inside, fs::read_to_string(&path).unwrap()));
        }
    }
}

/// The words in quotation marks in the last column of the glossary's tables.
fn quoted(glossary: &str) -> Vec<String> {
    let rows = glossary.lines().filter(|line| line.starts_with("| "));
    let last = rows.filter_map(|row| row.trim_end_matches([' ', '|']).rsplit(" | ").next());
    let mut words = Vec::new();
    for cell in last {
        words.extend(cell.split('"').skip(1).step_by(2).map(str::to_lowercase));
    }
    words
}
