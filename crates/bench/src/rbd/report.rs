//! Medians and ratios, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use super::clients::{self, RbdClient};
use super::first::FirstRead;
use super::{Did, Workload};
use crate::rounds::BenchWorkload;
use crate::{Machine, Range};

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct RbdReport {
    /// The machine.
    pub machine: Machine,
    rows: Vec<Row>,
    first: FirstRead,
}

/// A client under a workload, over all rounds.
#[derive(Debug, Clone, Serialize)]
struct Row {
    workload: String,
    client: &'static str,
    requests_per_s: Range,
    /// 10^6 bytes.
    mb_per_s: Range,
    /// The client's processor time for a request, of all its threads together.
    cpu_us: Range,
    /// The quotient of our requests a second and this client's, round by round.
    ours_over_this: Range,
    /// The same quotient of the processor time.
    our_cpu_over_this: Range,
    goal: Option<Goal>,
    /// True when the medians reach the goal.
    met: Option<bool>,
}

/// The project's goal: either value is enough.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Goal {
    throughput_at_least: f64,
    cpu_at_most: Option<f64>,
}

impl Goal {
    fn of(client: &str, workload: &Workload) -> Option<Self> {
        let goal = |throughput_at_least, cpu_at_most| Some(Self { throughput_at_least, cpu_at_most });
        match (client, workload.block) {
            (clients::OURS_NULL, 4096) => goal(0.95, None),
            (clients::OURS_NULL, _) => goal(0.93, None),
            (clients::LUKS2, 4096) => goal(1.0, None),
            (clients::LUKS2, _) => goal(1.4, Some(0.65)),
            _ => None,
        }
    }

    fn is_met(self, throughput: f64, cpu: f64) -> bool {
        throughput >= self.throughput_at_least || self.cpu_at_most.is_some_and(|most| cpu <= most)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "goal {}", self.throughput_at_least)?;
        self.cpu_at_most.map_or(Ok(()), |most| write!(f, " or cpu {most}"))
    }
}

pub(super) fn report(
    machine: &Machine,
    workloads: &[Workload],
    clients: &[RbdClient],
    seen: &[Vec<Vec<Did>>],
    first: &FirstRead,
) -> RbdReport {
    let mut rows = Vec::new();
    for (workload, seen) in workloads.iter().zip(seen) {
        let [rates, costs] = [rate as fn(&Did) -> f64, cost].map(|of| {
            seen.iter().map(|rounds| rounds.iter().map(of).collect::<Vec<_>>()).collect::<Vec<_>>()
        });
        for (client, (rate, cost)) in clients.iter().zip(rates.iter().zip(&costs)) {
            let ours_over_this = Range::of_ratios(&rates[0], rate);
            let our_cpu_over_this = Range::of_ratios(&costs[0], cost);
            let goal = Goal::of(client.name, workload);
            rows.push(Row {
                workload: workload.name(),
                client: client.name,
                requests_per_s: Range::of(rate.iter().copied()),
                mb_per_s: Range::of(rate.iter().copied()).times(workload.block as f64 / 1e6),
                cpu_us: Range::of(cost.iter().copied()),
                ours_over_this,
                our_cpu_over_this,
                goal,
                met: goal.map(|goal| goal.is_met(ours_over_this.median, our_cpu_over_this.median)),
            });
        }
    }
    RbdReport { machine: machine.clone(), rows, first: first.clone() }
}

fn rate(did: &Did) -> f64 {
    did.requests as f64 / did.seconds
}

fn cost(did: &Did) -> f64 {
    did.cpu_seconds * 1e6 / did.requests as f64
}

impl fmt::Display for RbdReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        writeln!(
            f,
            "{cpu}, {processors} processors; AES kernel {chosen}; each client a process with one thread that asks"
        )?;
        writeln!(
            f,
            "aes-xts-plain64, 512-bit keys; an image each, underseal and cipher_null the same one; librbd's cache off; ratios: \
             underseal with 4 KiB sectors over this one"
        )?;
        writeln!(f, "{}", self.first)?;
        let mut workload = "";
        for row in &self.rows {
            if workload != row.workload {
                workload = &row.workload;
                writeln!(
                    f,
                    "\n{workload:<30}{:>9}{:>9}{:>9}   {:<22}{:<22}",
                    "IOPS", "MB/s", "cpu us", "ratio (least..most)", "cpu ratio"
                )?;
            }
            let ratio = |Range { median, least, most }| format!("{median:.2} ({least:.2}..{most:.2})");
            write!(
                f,
                "  {:<28}{:>9.0}{:>9.0}{:>9.1}   {:<22}{:<22}",
                row.client,
                row.requests_per_s.median,
                row.mb_per_s.median,
                row.cpu_us.median,
                ratio(row.ours_over_this),
                ratio(row.our_cpu_over_this)
            )?;
            match (row.goal, row.met) {
                (Some(goal), Some(met)) => writeln!(f, "{goal}: {}", if met { "met" } else { "missed" })?,
                _ => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbd::workload;

    #[test]
    fn a_goal_is_met_by_throughput_or_by_processor_time() {
        let large = Goal::of(clients::LUKS2, &workload(false, 1024, 8)).unwrap();
        assert_eq!(
            [(1.4, 1.0), (1.0, 0.65), (1.39, 0.66)].map(|(t, c)| large.is_met(t, c)),
            [true, true, false]
        );
        let small = Goal::of(clients::OURS_NULL, &workload(true, 4, 32)).unwrap();
        assert_eq!([(0.95, 9.0), (0.94, 0.1)].map(|(t, c)| small.is_met(t, c)), [true, false]);
        assert_eq!(Goal::of(clients::PLAIN, &workload(true, 4, 32)), None);
        assert_eq!(large.to_string(), "goal 1.4 or cpu 0.65");
    }

    #[test]
    fn figures_are_of_a_request() {
        let did = Did { requests: 1000, seconds: 2.0, cpu_seconds: 0.5 };
        assert_eq!((rate(&did), cost(&did)), (500.0, 500.0));
        assert_eq!(workload(true, 1024, 8).name(), "1M randwrite depth 8");
    }
}
