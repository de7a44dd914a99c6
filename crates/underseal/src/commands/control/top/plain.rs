//! The difference of two samples as text.

use std::fmt::Write;

use super::super::show;
use super::view::{Row, View};
use crate::output::printable;

/// The columns of a volume's line, on the screen as well.
pub(super) const COLUMNS: [&str; 10] =
    ["NAME", "POLICY", "READ/s", "WRITE/s", "MB/s", "FLIGHT", "BACKLOG", "p50", "p99", "p99.9"];

/// Formats a line for each volume, then the stages of each.
pub(super) fn text(view: &View) -> String {
    if view.rows.is_empty() {
        return "no volume is open\n".into();
    }
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(view.rows.iter().map(cells));
    let mut text = show::table(&rows);
    for row in &view.rows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "\n{}", printable(&row.status.name));
        let mut stages = vec![["", "count", "p50", "p90", "p99", "p99.9"].map(str::to_owned)];
        for (stage, latency) in &row.stages {
            let [p50, p90, p99, p999] =
                [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns].map(show::duration);
            stages.push([(*stage).into(), latency.count.to_string(), p50, p90, p99, p999]);
        }
        text += &show::numbers(&stages);
    }
    text
}

/// Formats a volume's line.
pub(super) fn cells(row: &Row) -> [String; 10] {
    let status = &row.status;
    let policy = if status.suspended { show::state(status) } else { status.policy.clone() };
    let bytes = row.read.bytes.saturating_add(row.write.bytes);
    let total = row.total();
    [
        status.name.clone(),
        policy,
        row.read.requests.to_string(),
        row.write.requests.to_string(),
        format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10),
        status.in_flight.to_string(),
        status.backlog.requests.to_string(),
        show::duration(total.p50_ns),
        show::duration(total.p99_ns),
        show::duration(total.p999_ns),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{status, view};
    use super::*;

    #[test]
    fn every_volume_and_stage_is_there() {
        let text =
            text(&view(vec![vec![status("first", 0, &[])], vec![status("first", 5000, &[(1023, 5000)])]]));
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("NAME "), "{text}");
        let words: Vec<_> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(words[..7], ["first", "inline", "500", "0", "2.0", "3", "0"], "{text}");
        for stage in ["queued", "crypto", "lower", "reply", "total"] {
            assert!(text.lines().any(|line| line.trim().starts_with(stage)), "{text}");
        }
        assert_eq!(super::text(&view(vec![vec![]])), "no volume is open\n");
    }
}
