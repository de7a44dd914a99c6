//! Sectors that are not as they were written, whichever export meets them.

use crate::control::operator::Operator;
use crate::support::metrics;

/// Asserts that status, metrics and `check` report the one mismatched sector, 4096 bytes from `bad`
/// on, of a served volume. The metrics' address is in `log`. Returns how often the mismatch was
/// met.
#[track_caller]
pub(crate) fn are_told(operator: &Operator, name: &str, log: &str, bad: u64) -> u64 {
    let status = operator.status(name);
    let count = status["mismatches"]["count"].as_u64().unwrap();
    assert_eq!(status["mismatches"]["first"], serde_json::json!([bad]), "{status}");
    let scraped = metrics::get(&metrics::address(log), "GET /metrics HTTP/1.1\r\n\r\n");
    let counter = format!("underseal_mismatches_total{{volume=\"{name}\"}} {count}\n");
    assert!(scraped.contains(&counter), "{counter}{scraped}");
    let checked = operator.run(&format!("check {name}"));
    let first = checked.out.split_whitespace().find_map(|word| word.parse().ok());
    assert_eq!((checked.code, checked.out.lines().count(), first), (Some(1), 1, Some(bad)), "{checked:?}");
    assert!(checked.err.contains("4096 bytes"), "{checked:?}");
    count
}
