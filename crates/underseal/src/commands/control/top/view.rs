//! The picture's contents: the difference between two samples.

use std::time::{Duration, Instant};

use underseal_export::control::Status;
use underseal_export::control::status::Latency;

use super::super::all;
use crate::error::Result;

/// The state of all volumes at one time.
pub(super) struct Sample {
    at: Instant,
    volumes: Vec<Status>,
}

/// The volumes, and the chosen one.
#[derive(Default)]
pub(super) struct View {
    last: Option<Sample>,
    pub(super) rows: Vec<Row>,
    /// The name of the chosen volume: the volume may close and open.
    chosen: Option<String>,
}

/// A volume, and its activity since the previous sample.
pub(super) struct Row {
    pub(super) status: Status,
    pub(super) read: Rate,
    pub(super) write: Rate,
    /// Latency by stage, with the total last.
    pub(super) stages: [(&'static str, Latency); 5],
}

/// Activity per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) requests: u64,
    pub(super) bytes: u64,
}

/// Requests that took less than `below_ns` and at least half of that, in thousandths of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bar {
    pub(super) below_ns: u64,
    pub(super) mille: u64,
}

impl Sample {
    /// Takes a sample. Volumes that do not answer are left out. Fails when the directory of control
    /// sockets cannot be used.
    pub(super) fn take() -> Result<Self> {
        let volumes = all()?.into_iter().filter_map(|(_, status)| status.ok()).collect();
        Ok(Self { at: Instant::now(), volumes })
    }
}

impl View {
    /// Shows the difference to the last sample; for a new volume, the values since it was opened.
    pub(super) fn show(&mut self, sample: Sample) {
        let row = |status: &Status| {
            let same = |old: &&Status| (&old.name, old.pid) == (&status.name, status.pid);
            let before = self.last.as_ref().and_then(|last| Some((last.at, last.volumes.iter().find(same)?)));
            Row::new(status, before.map(|(at, old)| (sample.at.saturating_duration_since(at), old)))
        };
        self.rows = sample.volumes.iter().map(row).collect();
        self.last = Some(sample);
    }

    /// Returns the number of the chosen volume.
    pub(super) fn chosen(&self) -> usize {
        self.rows.iter().position(|row| Some(&row.status.name) == self.chosen.as_ref()).unwrap_or(0)
    }

    /// Moves the choice down by `down` volumes.
    pub(super) fn choose(&mut self, down: isize) {
        let number = self.chosen().saturating_add_signed(down).min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(number).map(|row| row.status.name.clone());
    }
}

impl Row {
    fn new(status: &Status, before: Option<(Duration, &Status)>) -> Self {
        let nothing = Default::default();
        let (elapsed, old_requests, old_latency) = match before {
            Some((elapsed, old)) => (elapsed, old.requests, &old.latency),
            None => (Duration::from_nanos(status.uptime_ns), Default::default(), &nothing),
        };
        let rate = |new: underseal_export::control::status::Count,
                    old: underseal_export::control::status::Count| Rate {
            requests: per_second(new.requests.saturating_sub(old.requests), elapsed),
            bytes: per_second(new.bytes.saturating_sub(old.bytes), elapsed),
        };
        let stages = status.latency.stages();
        let old = old_latency.stages();
        Self {
            read: rate(status.requests.read, old_requests.read),
            write: rate(status.requests.write, old_requests.write),
            stages: std::array::from_fn(|i| (stages[i].0, stages[i].1.since(old[i].1))),
            status: status.clone(),
        }
    }

    /// Returns the total latency.
    pub(super) fn total(&self) -> &Latency {
        &self.stages[4].1
    }
}

/// Returns a histogram in powers of two, from the first bar that is not empty to the last.
pub(super) fn bars(latency: &Latency) -> Vec<Bar> {
    let mut counts = [0_u64; 64];
    for (upper, n) in &latency.buckets {
        counts[upper.checked_ilog2().unwrap_or(0) as usize] += n;
    }
    let all = latency.count.max(1);
    let first = counts.iter().position(|n| *n > 0).unwrap_or(0);
    let last = counts.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
    let bar = |power: usize| {
        let mille = u128::from(counts[power]) * 1000 / u128::from(all);
        Bar {
            below_ns: (u64::MAX >> (63 - power)).saturating_add(1),
            mille: mille.try_into().unwrap_or(1000),
        }
    };
    (first..last).map(bar).collect()
}

fn per_second(n: u64, elapsed: Duration) -> u64 {
    let nanos = elapsed.as_nanos().max(1);
    u64::try_from(u128::from(n) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use underseal_export::control::status::{Count, KeyState};

    use super::*;

    /// A volume with this number of reads.
    pub(crate) fn status(name: &str, reads: u64, buckets: &[(u64, u64)]) -> Status {
        let total = Latency {
            count: buckets.iter().map(|(_, n)| n).sum(),
            buckets: buckets.to_vec(),
            ..Latency::default()
        };
        Status {
            name: name.into(),
            image: "/a".into(),
            addresses: vec![],
            pid: 1,
            uptime_ns: 2_000_000_000,
            size: 1 << 20,
            block: 512,
            read_only: false,
            policy: "inline".into(),
            suspended: false,
            key: KeyState::Set,
            opened: None,
            sandbox: None,
            fuse: None,
            can_reencrypt: false,
            reencryption: None,
            waiting: None,
            queues: 1,
            in_flight: 3,
            requests: underseal_export::control::status::Requests {
                read: Count { requests: reads, bytes: reads * 4096, errors: 0 },
                ..Default::default()
            },
            backlog: Default::default(),
            dispatched: Default::default(),
            latency: underseal_export::control::status::Latencies { total, ..Default::default() },
            mismatches: None,
            cpu_paths: None,
        }
    }

    pub(crate) fn view(samples: Vec<Vec<Status>>) -> View {
        let start = Instant::now();
        let mut view = View::default();
        for (i, volumes) in samples.into_iter().enumerate() {
            view.show(Sample { at: start + Duration::from_secs(10 * i as u64), volumes });
        }
        view
    }

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let view = view(vec![
            vec![status("a", 100, &[(1023, 100)])],
            vec![status("a", 300, &[(1023, 100), (4095, 200)]), status("b", 8, &[])],
        ]);
        assert_eq!(view.rows[0].read, Rate { requests: 20, bytes: 81_920 });
        assert_eq!(view.rows[0].total().buckets, [(4095, 200)]);
        // A new volume: its values count since it was opened.
        assert_eq!(view.rows[1].read.requests, 4);
    }

    #[test]
    fn the_chosen_volume_stays_chosen_when_others_come_and_go() {
        let names = |names: &[&str]| names.iter().map(|name| status(name, 0, &[])).collect::<Vec<_>>();
        let mut view = view(vec![names(&["a", "b", "c"])]);
        view.choose(-1);
        assert_eq!(view.chosen(), 0);
        view.choose(1);
        view.show(Sample { at: Instant::now(), volumes: names(&["0", "a", "b"]) });
        assert_eq!(view.chosen(), 2);
        view.choose(5);
        assert_eq!(view.chosen(), 2);
        view.show(Sample { at: Instant::now(), volumes: vec![] });
        view.choose(1);
        assert_eq!(view.chosen(), 0);
    }

    #[test]
    fn bars_are_powers_of_two_without_the_empty_ends() {
        let latency = Latency {
            count: 1000,
            buckets: vec![(1023, 500), (1087, 250), (4095, 250)],
            ..Latency::default()
        };
        let bars: Vec<_> = bars(&latency).iter().map(|bar| (bar.below_ns, bar.mille)).collect();
        assert_eq!(bars, [(1024, 500), (2048, 250), (4096, 250)]);
        assert!(super::bars(&Latency::default()).is_empty());
        let longest = Latency { count: 1, buckets: vec![(u64::MAX, 1), (0, 0)], ..Latency::default() };
        assert_eq!(super::bars(&longest)[0].below_ns, u64::MAX);
    }
}
