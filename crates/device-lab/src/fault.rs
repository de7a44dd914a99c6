//! A device that fails as it is told to.
//!
//! ```text
//!   FaultControl (any thread)                       a request:  delay --> save --> transfer --> over
//!     rules, dice with a seed    --- decide --->                 timer    what it     whole, in two,
//!     power_cut, power_on                                                 overwrites  or torn: a prefix, then EIO
//!                                                                           |
//!     power_cut puts back what was saved  <--- volatile cache <-------------+   a flush empties it
//! ```
//!
//! The volatile cache of a drive is modelled backwards: the device below gets every write at once,
//! and what it held before is kept until a flush has made the write durable. A power cut puts some
//! of it back, block by block. What a write overwrites is read first, so this device is for tests
//! and experiments on correctness, not on speed.

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

/// Says which faults there are, from any thread, while the device is in use.
pub struct FaultControl {
    inner: Arc<dyn Device>,
    seed: u64,
    state: Mutex<State>,
}

struct State {
    rules: Vec<Rule>,
    dice: Dice,
    /// Counts how often the power came and went: odd when it is off.
    power: u64,
    cache: Option<Cache>,
    injected: u64,
}

impl FaultDevice {
    /// A device that is `inner` until rules are added. The seed decides everything that chance
    /// decides: print it.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        Self::build(inner, seed, None)
    }

    /// The same with a volatile write cache: what was not flushed may be lost when the power is
    /// cut, each block of `block` bytes (the device's own at least, 512 to 4096) by itself.
    ///
    /// What is lost is a whole block as it was before the oldest write that was not flushed: where
    /// writes are smaller than a block, a neighbour that was flushed meanwhile goes with it.
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

    /// What it is controlled with.
    pub fn control(&self) -> Arc<FaultControl> {
        self.control.clone()
    }
}

impl Device for FaultDevice {
    fn geometry(&self) -> Geometry {
        self.control.inner.geometry()
    }

    /// The cache ends where the device ended when it was made.
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
    /// The seed that it was made with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a rule. The first that applies to a request decides; delays are added to what another
    /// decides.
    pub fn add(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Takes all rules away.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// How many faults there were, delays included, power cuts not.
    pub fn injected(&self) -> u64 {
        self.state().injected
    }

    /// How many blocks would be in danger if the power were cut now.
    pub fn unflushed(&self) -> usize {
        self.state().cache.as_ref().map_or(0, Cache::len)
    }

    /// Cuts the power: what is in flight fails, each block that was written since the last flush is
    /// what it was or what it became, and all requests fail until
    /// [`power_on`](FaultControl::power_on).
    ///
    /// Requests that the device below had in flight may still change it until they have come back:
    /// let the queues drain before the power comes back.
    ///
    /// # Errors
    /// The device's below, when old blocks cannot be put back.
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

    /// Lets requests through again.
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
