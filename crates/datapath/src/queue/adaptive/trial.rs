//! Measures whether sharing work with workers pays.
//!
//! Idle workers do not mean idle processors: the client that sends the requests may need them, or
//! another program. So while there is work to share, short epochs with and without sharing are
//! compared by the bytes that moved in them. The better alternative is kept, and the worse one is
//! tried from time to time: the longer it has been the worse, the more rarely.

use std::time::{Duration, Instant};

/// An epoch: long enough for some dozens of large pieces.
const EPOCH: Duration = Duration::from_millis(2);
/// A client that sends nothing for this long rests, independently of sharing; in a shorter gap the
/// client may be waiting for its processor.
const REST: Duration = Duration::from_micros(500);
/// The number of epochs in which the alternatives take turns at first; workers that have just been
/// started are slow.
const TURNS: u32 = 6;
/// The number of epochs of the better alternative between two trials of the other, at first and at
/// most.
const FEWEST: u32 = 8;
const MOST: u32 = 128;
/// The gain that sharing must bring, because it takes processor time from other programs.
const GAIN: f64 = 1.03;

pub(super) struct Trial {
    shares: bool,
    /// Recent bytes a second without and with sharing; 0: not measured yet.
    rates: [f64; 2],
    began: Option<(Instant, u64)>,
    /// Epochs for which the alternatives still take turns.
    turns: u32,
    /// Epochs until the worse alternative is tried.
    left: u32,
    patience: u32,
}

impl Trial {
    pub(super) fn new() -> Self {
        Self { shares: true, rates: [0.0; 2], began: None, turns: TURNS, left: 0, patience: FEWEST }
    }

    /// Whether to share now. Called while there is work to share; `moved`: bytes so far.
    pub(super) fn shares(&mut self, now: Instant, moved: u64) -> bool {
        let Some((began, from)) = self.began else {
            self.began = Some((now, moved));
            return self.shares;
        };
        let took = now.saturating_duration_since(began);
        if took >= EPOCH {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            self.epoch((moved - from) as f64 / took.as_secs_f64());
            self.began = Some((now, moved));
        }
        self.shares
    }

    /// Notes idle time, which is not part of an epoch.
    pub(super) fn idle(&mut self, time: Duration) {
        if let Some((began, _)) = self.began.as_mut().filter(|_| time >= REST) {
            *began += time;
        }
    }

    /// True when work is shared in this epoch.
    pub(super) fn is_sharing(&self) -> bool {
        self.shares
    }

    /// Ends an epoch.
    fn epoch(&mut self, rate: f64) {
        let best = self.best();
        let mean = &mut self.rates[usize::from(self.shares)];
        // The very first epochs measure the workers' start and cold caches.
        let first = self.turns > TURNS - 2;
        // The worse alternative is known only from one epoch now and then.
        let known = *mean != 0.0 && !first && (self.turns > 0 || self.shares == best);
        *mean = if known { (*mean + rate) / 2.0 } else { rate };
        if self.turns > 0 {
            self.turns -= 1;
            if first {
                self.rates = [0.0; 2];
            }
            self.shares = if self.turns > 0 { !self.shares } else { self.best() };
            self.left = self.patience;
            return;
        }
        if self.shares != best {
            // This was the one epoch of a trial.
            let better = self.best();
            self.patience = if better == best { (self.patience * 2).min(MOST) } else { FEWEST };
            (self.shares, self.left) = (better, self.patience);
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.shares = !self.shares;
        }
    }

    fn best(&self) -> bool {
        let [alone, shared] = self.rates;
        alone == 0.0 || (shared > 0.0 && shared > alone * GAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `epochs` epochs at the given rates, and counts those that shared.
    fn run(trial: &mut Trial, clock: &mut (Instant, u64), epochs: u32, rate: impl Fn(bool) -> u64) -> u32 {
        let mut shared = 0;
        for _ in 0..epochs {
            let shares = trial.shares(clock.0, clock.1);
            shared += u32::from(shares);
            clock.0 += EPOCH;
            clock.1 += rate(shares);
        }
        shared
    }

    #[test]
    fn the_better_way_is_kept_and_the_other_is_tried_rarely() {
        for (alone, shared, few) in [(100, 180, false), (100, 60, true), (100, 100, true)] {
            let (mut trial, mut clock) = (Trial::new(), (Instant::now(), 0));
            let rate = |shares| if shares { shared } else { alone };
            run(&mut trial, &mut clock, 100, rate);
            let sharing = run(&mut trial, &mut clock, 1000, rate);
            let wrong = if few { sharing } else { 1000 - sharing };
            assert!(wrong <= 20, "{alone} {shared}: {wrong} of 1000 epochs went the worse way");
        }
    }

    #[test]
    fn a_change_of_the_load_is_noticed() {
        let (mut trial, mut clock) = (Trial::new(), (Instant::now(), 0));
        run(&mut trial, &mut clock, 1000, |shares| if shares { 180 } else { 100 });
        let after = |shares| if shares { 50 } else { 90 };
        run(&mut trial, &mut clock, 30, after);
        let sharing = run(&mut trial, &mut clock, 100, after);
        assert!(sharing <= 10, "{sharing} of 100 epochs shared");
    }
}
