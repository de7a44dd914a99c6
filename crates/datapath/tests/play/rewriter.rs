//! Reencrypts the volume again and again, on a thread without a queue, and controls it as an
//! operator does.

use std::num::NonZeroU64;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use underseal_datapath::{Mapping, Pace, Rate};

use super::dice::Dice;
use super::site::Site;

pub(crate) struct Rewriter {
    pub(crate) site: Arc<Site>,
    running: Option<Running>,
}

struct Running {
    pace: Arc<Pace>,
    thread: JoinHandle<()>,
}

impl Rewriter {
    pub(crate) fn new(site: Arc<Site>) -> Self {
        Self { site, running: None }
    }

    /// Begins, resumes, pauses or stops the reencryption, or changes its rate.
    pub(crate) fn direct(&mut self, mapping: &Arc<Mapping>, dice: &mut Dice) {
        if self.running.as_ref().is_some_and(|running| running.thread.is_finished()) {
            self.join();
        }
        let Some(Running { pace, .. }) = &self.running else {
            self.start(mapping, rate(dice));
            return;
        };
        match dice.below(20) {
            0 => pace.pause(),
            1..8 => pace.go_on(),
            8..11 => pace.set_rate(rate(dice)),
            11 => pace.stop(),
            _ => {}
        }
    }

    fn start(&mut self, mapping: &Arc<Mapping>, rate: Rate) {
        let pace = Arc::new(Pace::new(rate));
        let (site, mapping, of) = (self.site.clone(), mapping.clone(), pace.clone());
        let thread = thread::spawn(move || site.work(&mapping, &of));
        self.running = Some(Running { pace, thread });
    }

    /// Waits until the reencryption has stopped between two steps, or has failed.
    pub(crate) fn stop(&mut self) {
        if let Some(running) = &self.running {
            running.pace.stop();
        }
        self.join();
    }

    fn join(&mut self) {
        if let Some(Running { thread, .. }) = self.running.take() {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    }

    /// Finishes the reencryption, without further faults.
    pub(crate) fn finish(&mut self, mapping: &Arc<Mapping>) {
        if let Some(Running { pace, .. }) = &self.running {
            pace.go_on();
            pace.set_rate(Rate::Full);
        }
        self.join();
        while !self.site.is_at_rest() {
            self.start(mapping, Rate::Full);
            self.join();
        }
    }
}

fn rate(dice: &mut Dice) -> Rate {
    let limit = NonZeroU64::new(1 << (20 + dice.below(8))).unwrap();
    dice.pick(&[Rate::Full, Rate::Full, Rate::Full, Rate::Full, Rate::GiveWay, Rate::Limit(limit)])
}
