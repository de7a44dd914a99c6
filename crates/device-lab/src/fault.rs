//! A device that fails by rules.
//!
//! ```text
//!   FaultControl (any thread)                  a request:  delay --> save --> transfer --> over
//!     rules, dice with a seed    --- decide --->            timer    bytes    whole, in two,
//!     power_cut, power_on                                            to be    or torn: a prefix,
//!                                                                    lost     then EIO
//!                                                                       |
//!     power_cut restores saved bytes   <--- volatile cache <------------+   a flush empties it
//! ```
//!
//! The volatile cache of a drive is modelled backwards: the device below gets every write at once,
//! and the overwritten bytes are kept until a flush has made the write durable. A power cut
//! restores some of them, block by block. The bytes that a write overwrites are read first, so this
//! device is for tests and experiments on correctness, not on speed.

mod cache;
mod channel;
mod rule;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cache::Cache;
use channel::FaultChannel;
use rule::{Decision, Dice, NowDecision};
pub use rule::{Fault, Rule};
use underseal_device::{Blocking, Channel, Device, Extent, Geometry, IoKind, Result};

/// A device with faults.
pub struct FaultDevice {
    control: Arc<FaultControl>,
}

/// Controls the faults, from any thread, while the device is in use.
pub struct FaultControl {
    inner: Arc<dyn Device>,
    seed: u64,
    state: Mutex<State>,
}

struct State {
    rules: Vec<Rule>,
    dice: Dice,
    /// The number of power changes: odd when the power is off.
    power: u64,
    cache: Option<Cache>,
    injected: u64,
}

impl FaultDevice {
    /// Returns a device that behaves like `inner` until rules are added. The seed decides every
    /// random choice: print it.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        Self::build(inner, seed, None)
    }

    /// The same with a volatile write cache: unflushed writes may be lost when the power is cut,
    /// each block of `block` bytes (the device's own at least, 512 to 4096) independently.
    ///
    /// A lost block returns to its content before the oldest unflushed write: where writes are
    /// smaller than a block, a neighbouring write that was flushed meanwhile is lost with it.
    pub fn with_volatile_cache(inner: Arc<dyn Device>, seed: u64, block: u32) -> Self {
        let geometry = inner.geometry();
        let block = block.clamp(512, 4096).next_power_of_two().max(geometry.block);
        let cache = Cache::new(u64::from(block), geometry.size);
        Self::build(inner, seed, Some(cache))
    }

    fn build(inner: Arc<dyn Device>, seed: u64, cache: Option<Cache>) -> Self {
        let state = State { rules: Vec::new(), dice: Dice::new(seed), power: 0, cache, injected: 0 };
        Self { control: Arc::new(FaultControl { inner, seed, state: Mutex::new(state) }) }
    }

    /// The control of the device.
    pub fn control(&self) -> Arc<FaultControl> {
        self.control.clone()
    }
}

impl Device for FaultDevice {
    fn geometry(&self) -> Geometry {
        self.control.inner.geometry()
    }

    /// The cache ends at the device's end at its creation.
    fn refresh(&self) -> Result<u64> {
        let has_cache = self.control.state().cache.is_some();
        if has_cache { Ok(self.geometry().size) } else { self.control.inner.refresh() }
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let inner = self.control.inner.channel(depth)?;
        Ok(Box::new(FaultChannel::new(inner, self.control.clone(), depth)?))
    }

    fn name(&self) -> &str {
        self.control.inner.name()
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        self.control.inner.extent(offset, len)
    }
}

impl FaultControl {
    /// Returns the seed of the device.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a rule. The first rule that applies to a request decides; delays are added to the
    /// decision of another rule.
    pub fn add(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Returns the number of faults, including delays, without power cuts.
    pub fn injected(&self) -> u64 {
        self.state().injected
    }

    /// Returns the number of blocks that a power cut now could affect.
    pub fn unflushed(&self) -> usize {
        self.state().cache.as_ref().map_or(0, Cache::len)
    }

    /// Cuts the power: requests in flight fail, each block that was written since the last flush
    /// has one of its contents since then, and all requests fail until
    /// [`power_on`](FaultControl::power_on).
    ///
    /// Requests that the device below had in flight may still change it until they complete: let
    /// the queues drain before the power comes back.
    ///
    /// # Errors
    /// Errors of the device below, when old blocks cannot be restored.
    pub fn power_cut(&self) -> Result<()> {
        let lost = {
            let State { dice, power, cache, .. } = &mut *self.state();
            *power |= 1;
            cache.as_mut().map(|cache| cache.lose(dice)).unwrap_or_default()
        };
        if lost.is_empty() {
            return Ok(());
        }
        let mut device = Blocking::new(&*self.inner)?;
        for (offset, before) in lost {
            device.write(offset, &before, false)?;
        }
        device.flush()
    }

    /// Accepts requests again.
    pub fn power_on(&self) {
        let mut state = self.state();
        state.power += state.power & 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_off(&self) -> bool {
        self.power & 1 == 1
    }

    fn decide(&mut self, kind: IoKind, offset: u64, len: u64, unit: u64) -> Decision {
        let decision = rule::decide(&mut self.rules, &mut self.dice, kind, offset, len, unit);
        self.injected += decision.faults;
        decision
    }

    fn decide_now(&mut self, kind: IoKind, offset: u64, len: u64, unit: u64) -> NowDecision {
        let decision = rule::decide_now(&mut self.rules, &mut self.dice, kind, offset, len, unit);
        self.injected += u64::from(matches!(decision, NowDecision::Cut(_)));
        decision
    }
}

#[cfg(test)]
mod tests;
