//! Rules: which request fails, and how.

use std::ops::Range;
use std::time::Duration;

use rustix::io::Errno;
use underseal_device::IoKind;

/// The effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request fails with this error number and does nothing.
    Error(i32),
    /// The transfer is cut short and has to be started again. In the end the request is done.
    Short,
    /// A write stops in the middle: a prefix in whole sectors is done, and the request fails with
    /// EIO.
    Torn,
    /// The request begins later by this time.
    Delay(Duration),
}

impl Fault {
    /// An input/output error.
    pub const EIO: Self = Self::Error(Errno::IO.raw_os_error());
}

/// A fault, and the requests that it affects.
#[derive(Debug, Clone)]
pub struct Rule {
    fault: Fault,
    kind: Option<IoKind>,
    range: Range<u64>,
    chance: f64,
    after: u32,
    times: u32,
}

impl Rule {
    /// A fault of every request; later calls narrow it down.
    pub fn new(fault: Fault) -> Self {
        Self { fault, kind: None, range: 0..u64::MAX, chance: 1.0, after: 0, times: u32::MAX }
    }

    /// Limits the rule to this kind of requests.
    #[must_use]
    pub fn on(self, kind: IoKind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    /// Limits the rule to requests that touch these bytes. A flush touches byte 0.
    #[must_use]
    pub fn within(self, range: Range<u64>) -> Self {
        Self { range, ..self }
    }

    /// Limits the rule by chance: 0 is never, 1 always.
    #[must_use]
    pub fn chance(self, chance: f64) -> Self {
        Self { chance, ..self }
    }

    /// Only after `requests` requests to which the rule would have applied.
    #[must_use]
    pub fn after(self, requests: u32) -> Self {
        Self { after: requests, ..self }
    }

    /// Limits the number of faults.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times, ..self }
    }

    fn concerns(&self, kind: IoKind, offset: u64, len: u64) -> bool {
        self.times > 0
            && self.kind.is_none_or(|k| k == kind)
            && (self.fault != Fault::Torn || kind.changes())
            && offset < self.range.end
            && self.range.start < offset.saturating_add(len.max(1))
    }

    fn strikes(&mut self, dice: &mut Dice) -> bool {
        if !dice.falls(self.chance) {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        if self.times != u32::MAX {
            self.times -= 1;
        }
        true
    }
}

/// The combined effect of all rules on a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) delay: Duration,
    /// The transfer is interrupted after this number of bytes.
    pub(super) cut: Option<u64>,
    /// The request fails with this error number after this number of bytes.
    pub(super) fails: Option<(u64, i32)>,
    /// The number of rules that applied.
    pub(super) faults: u64,
}

/// The effect of the rules on a request that may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NowDecision {
    Pass,
    /// This number of bytes is done at once, the rest would block.
    Cut(u64),
    /// The decision comes later, when the request may wait.
    Wait,
}

/// Decides by `rules`; a transfer can be cut at multiples of `unit`.
pub(super) fn decide(
    rules: &mut [Rule],
    dice: &mut Dice,
    kind: IoKind,
    offset: u64,
    len: u64,
    unit: u64,
) -> Decision {
    let mut decision = Decision::default();
    for rule in rules {
        if !rule.concerns(kind, offset, len) || !rule.strikes(dice) {
            continue;
        }
        decision.faults += 1;
        match rule.fault {
            Fault::Delay(delay) => {
                decision.delay = decision.delay.saturating_add(delay);
                continue;
            }
            Fault::Error(errno) => decision.fails = Some((0, errno)),
            Fault::Torn => {
                decision.fails = Some((dice.below(len.div_ceil(unit)) * unit, Errno::IO.raw_os_error()))
            }
            Fault::Short => decision.cut = cut(dice, len, unit),
        }
        break;
    }
    decision
}

pub(super) fn decide_now(
    rules: &mut [Rule],
    dice: &mut Dice,
    kind: IoKind,
    offset: u64,
    len: u64,
    unit: u64,
) -> NowDecision {
    let Some(rule) = rules.iter_mut().find(|rule| rule.concerns(kind, offset, len)) else {
        return NowDecision::Pass;
    };
    if rule.fault == Fault::Short && rule.strikes(dice) {
        return cut(dice, len, unit).map_or(NowDecision::Wait, NowDecision::Cut);
    }
    NowDecision::Wait
}

/// Returns a random place within the transfer, if it can be cut at all.
fn cut(dice: &mut Dice, len: u64, unit: u64) -> Option<u64> {
    let places = len.div_ceil(unit).saturating_sub(1);
    (places > 0).then(|| (1 + dice.below(places)) * unit)
}

/// Random numbers from a seed: the splitmix64 generator (Steele, Lea and Flood, 2014).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        let high = (u128::from(self.next()) * u128::from(bound)) >> 64;
        u64::try_from(high).unwrap_or(0)
    }

    fn falls(&mut self, chance: f64) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are chance enough")]
        let roll = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        roll < chance
    }
}
