//! Dependencies are as `deny.toml` allows: their licences, duplicates and sources, and the crates
//! that are denied. `cargo deny check` knows the advisories besides, and wants a network for them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

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
