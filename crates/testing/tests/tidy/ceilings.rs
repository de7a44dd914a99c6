//! The table of ceilings: a crate a line, a rule a column.

use std::collections::BTreeMap;

use crate::rules::{Finding, Rule};

/// How often each crate may break each rule.
pub(crate) type Ceilings = BTreeMap<(String, Rule), usize>;

/// Reads the table.
pub(crate) fn read(text: &str) -> Ceilings {
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let head: Vec<_> = lines.next().expect("a line of rules").split_whitespace().skip(1).collect();
    assert_eq!(head, Rule::ALL.map(Rule::name), "the table's columns");
    let mut ceilings = Ceilings::new();
    for line in lines {
        let mut cells = line.split_whitespace();
        let of = cells.next().expect("a crate").to_owned();
        for (rule, cell) in Rule::ALL.into_iter().zip(cells) {
            ceilings.insert((of.clone(), rule), cell.parse().expect("a count"));
        }
    }
    ceilings
}

/// The table with the present counts.
pub(crate) fn write(findings: &[Finding], crates: &[String]) -> String {
    let mut text = String::from("# How often a crate may break a rule (rules.rs). A number may only fall.\n");
    text += &format!("{:<14}", "crate");
    Rule::ALL.iter().for_each(|rule| text += &format!(" {:>12}", rule.name()));
    text += "\n";
    for of in crates {
        text += &format!("{of:<14}");
        for rule in Rule::ALL {
            let count = findings.iter().filter(|f| f.of == *of && f.rule == rule).count();
            text += &format!(" {count:>12}");
        }
        text += "\n";
    }
    text
}
