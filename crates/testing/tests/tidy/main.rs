//! The rules of the text hold: length of lines, names of types, `# Errors` sections, words.
//!
//! ```text
//!   tree      the crates' sources and the documents, line by line
//!   rules     what is counted in them
//!   ceilings  `ceilings.txt`: how many of each a crate has at most
//! ```
//!
//! A crate that does not hold a rule yet has a ceiling, which may only fall.
//! `UNDERSEAL_WRITE_CEILINGS=1` writes the present counts into the table; a reviewer sees in its
//! diff that none rose.

mod ceilings;
mod rules;
mod tree;

use std::path::{Path, PathBuf};

use self::rules::{Finding, Rule};
use self::tree::Tree;

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn no_crate_breaks_a_rule_more_often_than_its_ceiling() {
    let tree = Tree::read(&root());
    let findings = rules::all(&tree);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tidy/ceilings.txt");
    if std::env::var_os("UNDERSEAL_WRITE_CEILINGS").is_some() {
        std::fs::write(&path, ceilings::write(&findings, &tree.crates())).unwrap();
    }
    let ceilings = ceilings::read(&std::fs::read_to_string(&path).unwrap());
    let mut broken = String::new();
    for of in tree.crates() {
        for rule in Rule::ALL {
            let found: Vec<_> = findings.iter().filter(|f| f.of == of && f.rule == rule).collect();
            let most = ceilings.get(&(of.clone(), rule)).copied().unwrap_or(0);
            if found.len() > most {
                broken += &format!("{of}: {} times {}, at most {most}:\n", found.len(), rule.name());
                found.iter().for_each(|f| broken += &format!("  {}:{}: {}\n", f.file, f.line, f.text));
            }
        }
    }
    assert!(broken.is_empty(), "{broken}(ceilings: {})", path.display());
}

#[test]
fn each_rule_finds_what_it_looks_for() {
    let source = "/// What there is.\n///\n/// # Errors\n/// Its.\npub fn one() {}\n\n\
                  /// Somebody rings the door.\n///\n/// # Errors\n/// `Io` when the file cannot be read.\nfn two() {}\n\n\
                  /// A place.\npub struct Place;\n";
    let long = format!("// {}\n", "x".repeat(98));
    let tree = Tree::of(
        &[
            ("crates/a/src/lib.rs", source),
            ("crates/b/src/lib.rs", "/// Places.\npub struct Place;\n"),
            ("crates/b/src/long.rs", &long),
            ("docs/a.md", "The `door` is quoted, the door is not.\n"),
        ],
        &["door", "somebody"],
    );
    let findings = rules::all(&tree);
    let count = |of: &str, rule| findings.iter().filter(|f: &&Finding| f.of == of && f.rule == rule).count();
    assert_eq!(count("a", Rule::Errors), 2, "one without content, one on a private item");
    assert_eq!(count("a", Rule::Subject), 2, "comments that begin with What and Somebody");
    assert_eq!(count("a", Rule::Words), 2, "somebody, door");
    assert_eq!(count("docs", Rule::Words), 1, "not the one in backticks");
    assert_eq!((count("a", Rule::SharedName), count("b", Rule::SharedName)), (1, 1), "Place is there twice");
    assert_eq!((count("a", Rule::Length), count("b", Rule::Length)), (0, 1), "101 characters");
    assert_eq!(count("a", Rule::Unnamed), 1, "nobody calls one()");
}

#[test]
fn the_glossary_lists_its_words() {
    let words = Tree::read(&root()).words;
    for word in ["door", "letter", "bell", "giver", "taker", "somebody"] {
        assert!(words.iter().any(|w| w == word), "{word} in the last column of docs/glossary.md: {words:?}");
    }
}
