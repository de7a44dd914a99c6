//! Whether sharing pays here and now: tried, not reckoned.
//!
//! Idle workers do not mean idle processors: the client that sends the requests may need them, or a
//! neighbour. So while there is work to share, short epochs with and without sharing are compared
//! by the bytes that moved in them. The better way is kept, and the other tried again from time to
//! time: the rarer, the longer it has been the worse.

use std::time::{Duration, Instant};

/// Long enough for some dozens of large pieces.
const EPOCH: Duration = Duration::from_millis(2);
/// A client that sends nothing for so long rests, which has nothing to do with either way; what is
/// shorter may be that it is kept from its processor.
const REST: Duration = Duration::from_micros(500);
/// So many times both ways are tried in turn at first; workers that have just been started are
/// slow.
const TURNS: u32 = 6;
/// So many epochs of the better way between two trials of the other, at first and at last.
const FEWEST: u32 = 8;
const MOST: u32 = 128;
/// Sharing has to move so much more, for it takes processor time from others.
const GAIN: f64 = 1.03;

pub(super) struct Trial {
    shares: bool,
    /// Bytes a second without and with sharing, lately; 0: not tried yet.
    rates: [f64; 2],
    began: Option<(Instant, u64)>,
    /// Epochs for which the ways still take turns.
    turns: u32,
    /// Epochs until the other way is tried.
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

    /// There was nothing to do for so long.
    pub(super) fn idle(&mut self, time: Duration) {
        if let Some((began, _)) = self.began.as_mut().filter(|_| time >= REST) {
            *began += time;
        }
    }

    /// Whether work is shared in this epoch.
    pub(super) fn is_sharing(&self) -> bool {
        self.shares
    }

    /// An epoch is over.
    fn epoch(&mut self, rate: f64) {
        let best = self.best();
        let mean = &mut self.rates[usize::from(self.shares)];
        // The very first epochs are the workers' start and the processor's caches filling.
        let first = self.turns > TURNS - 2;
        // One epoch of the other way from time to time is all that is known of it.
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
            // The other way was tried for one epoch.
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

    /// Runs so many epochs in which the ways move so many bytes, and counts those that shared.
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
