//! Underseal compared with other servers: a row for each server under each workload, for programs
//! (serde) and for users.

use std::fmt;

use serde::Serialize;

use crate::Range;
use crate::fio::{FioResult, medians};

/// A server under a workload, over all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct ServerRow {
    /// The requests.
    pub workload: String,
    /// The server's name.
    pub server: &'static str,
    /// Medians over the rounds.
    pub median: FioResult,
    /// The quotient of our requests a second and this server's, round by round.
    pub ours_over_this: Range,
    /// The quotient of our p99 latency and this server's: the median of the rounds.
    pub our_p99_over_this: f64,
    /// The project's goal.
    pub goal: Option<f64>,
    /// The results of every round.
    pub rounds: Vec<FioResult>,
}

/// Rows of the results by workload and server. The first server is underseal. Servers with the same
/// name have one row: the rounds of the first of them, then those of the next.
pub(crate) fn rows(
    workloads: &[String],
    servers: &[&'static str],
    seen: &[Vec<Vec<FioResult>>],
    goal: impl Fn(&'static str, &str) -> Option<f64>,
) -> Vec<ServerRow> {
    let mut rows = Vec::new();
    for (workload, seen) in workloads.iter().zip(seen) {
        let mut by_name: Vec<(&'static str, Vec<FioResult>)> = Vec::new();
        for (&server, rounds) in servers.iter().zip(seen) {
            match by_name.iter_mut().find(|(name, _)| *name == server) {
                Some((_, earlier)) => earlier.extend_from_slice(rounds),
                None => by_name.push((server, rounds.clone())),
            }
        }
        for (server, rounds) in &by_name {
            let ratios = |of: fn(&FioResult) -> f64| {
                Range::of(by_name[0].1.iter().zip(rounds).map(|(a, b)| of(a) / of(b)))
            };
            rows.push(ServerRow {
                workload: workload.clone(),
                server,
                median: medians(rounds),
                ours_over_this: ratios(|s| s.iops),
                our_p99_over_this: ratios(|s| s.p99_us).median,
                goal: goal(server, workload),
                rounds: rounds.clone(),
            });
        }
    }
    rows
}

/// Writes a table for each workload.
pub(crate) fn table(f: &mut fmt::Formatter<'_>, rows: &[ServerRow]) -> fmt::Result {
    for rows in rows.chunk_by(|row, next| row.workload == next.workload) {
        heading(f, &rows[0].workload, "   p99 ratio")?;
        for row in rows {
            line(f, row.server, &row.median, &row.ours_over_this)?;
            write!(f, "   {:.2}", row.our_p99_over_this)?;
            end_with_goal(f, row.goal, row.ours_over_this.median)?;
        }
    }
    Ok(())
}

/// Writes the title of a table's first column, and those of the others.
pub(crate) fn heading(f: &mut fmt::Formatter<'_>, workload: &str, more: &str) -> fmt::Result {
    writeln!(
        f,
        "\n{workload:<30}{:>9}{:>9}{:>8}{:>8}{:>8}{:>9}   ratio (least..most){more}",
        "IOPS", "MB/s", "p50 us", "p99 us", "p99.9", "cpu us"
    )
}

/// Writes a row's medians and the quotient of its requests a second, without the line's end.
pub(crate) fn line(f: &mut fmt::Formatter<'_>, name: &str, median: &FioResult, ratio: &Range) -> fmt::Result {
    let FioResult { iops, mb_per_s, p50_us, p99_us, p999_us, server_cpu_us } = median;
    let Range { least, median, most } = ratio;
    write!(
        f,
        "  {name:<28}{iops:>9.0}{mb_per_s:>9.0}{p50_us:>8.0}{p99_us:>8.0}{p999_us:>8.0}{server_cpu_us:>9.2}   \
         {median:.2} ({least:.2}..{most:.2})"
    )
}

/// Ends a row with its goal, if it has one, and whether the quotient misses it.
pub(crate) fn end_with_goal(f: &mut fmt::Formatter<'_>, goal: Option<f64>, ratio: f64) -> fmt::Result {
    match goal {
        Some(goal) if ratio < goal => writeln!(f, "   goal {goal} missed"),
        Some(goal) => writeln!(f, "   goal {goal}"),
        None => writeln!(f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_with_the_same_name_have_one_row() {
        let result = |iops| FioResult {
            iops,
            mb_per_s: 0.0,
            p50_us: 0.0,
            p99_us: 1.0 / iops,
            p999_us: 0.0,
            server_cpu_us: 0.0,
        };
        let runs = |iops: [f64; 2]| iops.map(result).to_vec();
        // The image of the first server and that of the last are as slow as they are early.
        let seen = [vec![runs([8.0, 9.0]), runs([10.0, 10.0]), runs([20.0, 20.0]), runs([25.0, 24.0])]];
        let names = ["ours", "before", "before", "ours"];
        let rows = rows(&["4k".to_owned()], &names, &seen, |_, _| None);
        assert_eq!(rows.iter().map(|row| row.server).collect::<Vec<_>>(), ["ours", "before"]);
        assert_eq!(rows[1].rounds.iter().map(|run| run.iops).collect::<Vec<_>>(), [10.0, 10.0, 20.0, 20.0]);
        let ratio = rows[1].ours_over_this;
        assert_eq!((ratio.least, ratio.median, ratio.most), (0.8, 1.05, 1.25));
        assert!((rows[1].our_p99_over_this - 0.972).abs() < 0.001, "{}", rows[1].our_p99_over_this);
    }
}
