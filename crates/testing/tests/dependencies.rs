//! Dependencies are as `deny.toml` allows: their licences, duplicates and sources, the crates that
//! are denied, and RustSec's advisories. `scripts/advisories` prints those about crates of
//! `Cargo.lock`; `UNDERSEAL_ADVISORIES` names a newer print than the one beside this file.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use semver::{Version, VersionReq};
use serde_json::Value;
use toml::de::{DeTable, DeValue};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// `deny.toml`, as JSON.
struct Rules(Value);

impl Rules {
    fn read() -> Self {
        let text = std::fs::read_to_string(format!("{ROOT}/deny.toml")).unwrap();
        Self(json(&DeValue::Table(DeTable::parse(&text).unwrap().into_inner())))
    }

    fn list(&self, section: &str, name: &str) -> &[Value] {
        self.0[section][name].as_array().unwrap()
    }

    fn targets(&self) -> impl Iterator<Item = &str> {
        self.list("graph", "targets").iter().map(|target| target.as_str().unwrap())
    }

    fn licences(&self) -> BTreeSet<&str> {
        self.list("licenses", "allow").iter().map(|licence| licence.as_str().unwrap()).collect()
    }

    /// Whether an older version of a crate may stay beside a newer one.
    fn may_be_older(&self, name: &str, version: &str) -> bool {
        self.list("bans", "skip").iter().any(|entry| {
            let (skipped, of) = entry["crate"].as_str().unwrap().split_once('@').unwrap();
            skipped == name && (version == of || version.starts_with(&format!("{of}.")))
        })
    }

    /// Each crate that is denied, with those that may use it all the same.
    fn denied(&self) -> impl Iterator<Item = (&str, Vec<&str>)> {
        self.list("bans", "deny").iter().map(|entry| {
            let wrappers = entry["wrappers"].as_array();
            let wrappers = wrappers.into_iter().flatten().map(|name| name.as_str().unwrap()).collect();
            (entry["crate"].as_str().unwrap(), wrappers)
        })
    }
}

/// Texts, lists and tables; the rules have nothing else that matters.
fn json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Array(values) => values.iter().map(|value| json(value.get_ref())).collect(),
        DeValue::Table(table) => {
            let entries = table.iter();
            entries.map(|(key, value)| (key.get_ref().to_string(), json(value.get_ref()))).collect()
        }
        _ => Value::Null,
    }
}

/// The packages and the graph that cargo resolves for one target, with every feature.
fn resolved(target: &str) -> (Vec<Value>, Vec<Value>) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--offline", "--all-features", "--format-version", "1"]);
    let output = cargo.args(["--filter-platform", target]).current_dir(ROOT).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut take = |at: &str| metadata.pointer_mut(at).unwrap().as_array_mut().unwrap().split_off(0);
    let nodes = take("/resolve/nodes");
    let ids: BTreeSet<_> = nodes.iter().map(|node| node["id"].as_str().unwrap()).collect();
    let packages =
        take("/packages").into_iter().filter(|package| ids.contains(text(package, "id"))).collect();
    (packages, nodes)
}

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_default()
}

/// Whether an SPDX expression is met by these licences alone. Old crates write `/` for OR.
fn is_met(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any(&mut words, allowed);
    assert_eq!(words.next(), None, "{expression}");
    met
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut met = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed);
    }
    met
}

fn all(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let mut met = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed);
    }
    met
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<&str>) -> bool {
    let Some(first) = words.next() else { return false };
    if first == "(" {
        let met = any(words, allowed);
        return words.next() == Some(")") && met;
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(&*format!("{first} WITH {exception}")),
        None => allowed.contains(first),
    }
}

#[test]
fn an_expression_is_met_by_what_is_allowed() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"]);
    for (expression, met) in [
        ("MIT", true),
        ("GPL-2.0-only", false),
        ("GPL-2.0-only OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("MIT AND GPL-2.0-only", false),
        ("ISC AND (GPL-2.0-only OR MIT)", true),
        ("(ISC OR MIT) AND GPL-2.0-only", false),
        ("Apache-2.0", false),
        ("Apache-2.0 WITH LLVM-exception AND MIT", true),
        ("", false),
    ] {
        assert_eq!(is_met(expression, &allowed), met, "{expression}");
    }
}

#[test]
fn dependencies_are_as_deny_toml_allows() {
    let rules = Rules::read();
    let mut wrong = BTreeSet::new();
    for target in rules.targets() {
        let (packages, nodes) = resolved(target);
        assert!(packages.len() > 100, "{target}: {} packages", packages.len());
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for package in &packages {
            let (name, version) = (text(package, "name"), text(package, "version"));
            versions.entry(name).or_default().push(version);
            if !is_met(text(package, "license"), &rules.licences()) {
                wrong.insert(format!("{name} {version}: licence {:?}", text(package, "license")));
            }
            if !package["source"].is_null() && package["source"] != CRATES_IO {
                wrong.insert(format!("{name} {version}: from {}", package["source"]));
            }
        }
        for (name, versions) in versions {
            let newer = versions.iter().filter(|version| !rules.may_be_older(name, version)).count();
            if newer > 1 {
                wrong.insert(format!("{name}: versions {versions:?}"));
            }
        }
        let names: BTreeMap<_, _> =
            packages.iter().map(|package| (text(package, "id"), text(package, "name"))).collect();
        for (denied, wrappers) in rules.denied() {
            for node in &nodes {
                let user = names[text(node, "id")];
                let uses =
                    node["deps"].as_array().unwrap().iter().any(|dep| names[text(dep, "pkg")] == denied);
                if uses && !wrappers.contains(&user) {
                    wrong.insert(format!("{denied}: used by {user}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// An advisory, as far as it is about versions.
struct Advisory {
    id: String,
    package: String,
    /// Versions that have it no more, or never had it.
    sound: Vec<VersionReq>,
}

impl Advisory {
    /// Reads an entry of the database, as TOML; nothing where it was withdrawn.
    fn read(entry: &str) -> Option<Self> {
        let entry = json(&DeValue::Table(DeTable::parse(entry).unwrap().into_inner()));
        let (about, versions) = (&entry["advisory"], &entry["versions"]);
        let lists = ["patched", "unaffected"].map(|name| versions[name].as_array());
        let sound = lists.into_iter().flatten().flatten();
        let sound = sound.map(|versions| versions.as_str().unwrap().parse().unwrap()).collect();
        let advisory = Self { id: text(about, "id").into(), package: text(about, "package").into(), sound };
        assert!(!advisory.id.is_empty() && !advisory.package.is_empty(), "{entry}");
        about["withdrawn"].is_null().then_some(advisory)
    }

    fn all(printed: &str) -> Vec<Self> {
        let mut entries = vec![String::new()];
        for line in printed.lines() {
            match line.starts_with("# crates/") {
                true => entries.push(String::new()),
                false => *entries.last_mut().unwrap() += &format!("{line}\n"),
            }
        }
        // The first has the line that says where they are from.
        entries[1..].iter().filter_map(|entry| Self::read(entry)).collect()
    }

    fn is_about(&self, name: &str, version: &str) -> bool {
        let version: Version = version.parse().unwrap();
        self.package == name && !self.sound.iter().any(|sound| sound.matches(&version))
    }
}

#[test]
fn no_dependency_has_an_advisory() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/advisories.txt");
    let path = std::env::var("UNDERSEAL_ADVISORIES").unwrap_or_else(|_| beside.into());
    let advisories = Advisory::all(&std::fs::read_to_string(path).unwrap());
    assert!(advisories.len() > 50, "{}", advisories.len());
    let rules = Rules::read();
    let let_be: Vec<_> =
        rules.list("advisories", "ignore").iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    let mut wrong = BTreeSet::new();
    for target in rules.targets() {
        for package in resolved(target).0 {
            let (name, version) = (text(&package, "name"), text(&package, "version"));
            let of = advisories.iter().filter(|advisory| advisory.is_about(name, version));
            wrong.extend(
                of.filter(|advisory| !let_be.contains(&&*advisory.id)).map(|advisory| {
                    format!("{name} {version}: https://rustsec.org/advisories/{}", advisory.id)
                }),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_advisory_is_about_versions_that_have_it() {
    let printed = "# From somewhere.\n# crates/a/1.md\n[advisory]\nid = \"1\"\npackage = \"a\"\n\
                   [versions]\npatched = [\">= 1.2.3\", \"^1.1.9\"]\nunaffected = [\"< 1.0.0\"]\n\
                   # crates/a/2.md\n[advisory]\nid = \"2\"\npackage = \"a\"\nwithdrawn = \"2026-01-01\"\n\
                   [versions]\npatched = []\n";
    let advisories = Advisory::all(printed);
    let [advisory] = &advisories[..] else { panic!("the withdrawn one is there still") };
    for (version, is_about) in [("0.9.0", false), ("1.0.0", true), ("1.1.9", false), ("1.3.0", false)] {
        assert_eq!(advisory.is_about("a", version), is_about, "{version}");
    }
    assert!(!advisory.is_about("b", "1.0.0"));
}
