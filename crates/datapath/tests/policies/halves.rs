//! A device that transfers in two halves, the second on demand.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use underseal_device::{
    Buffer, Channel, Device, Finished, Geometry, Immediate, Io, IoKind, RamDevice, Result, Ring, RingToken,
    Started, monotonic,
};

/// Memory behind a gate.
pub(crate) struct Halves {
    ram: RamDevice,
    gate: Arc<Gate>,
}

/// Holds the second halves of transfers of one kind back. Released transfers end in the reverse
/// order of their beginning.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    /// Transfers of any kind that have begun.
    pub(crate) begun: AtomicU64,
}

#[derive(Default)]
struct State {
    holds: Option<IoKind>,
    halfway: Vec<u64>,
    number: u64,
}

impl Halves {
    pub(crate) fn new(size: u64) -> (Arc<Self>, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        (Arc::new(Self { ram: RamDevice::new(size), gate: gate.clone() }), gate)
    }
}

impl Gate {
    pub(crate) fn hold(&self, kind: IoKind) {
        self.state().holds = Some(kind);
    }

    pub(crate) fn open(&self) {
        self.state().holds = None;
    }

    /// The number of transfers that are halfway.
    pub(crate) fn halfway(&self) -> usize {
        self.state().halfway.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn goes_in_halves(&self, kind: IoKind) -> bool {
        self.begun.fetch_add(1, SeqCst);
        self.state().holds == Some(kind)
    }

    /// Returns the transfer's number in the order of arrival.
    fn enter(&self) -> u64 {
        let mut state = self.state();
        state.number += 1;
        let number = state.number;
        state.halfway.push(number);
        number
    }

    fn lets_go(&self, number: u64) -> bool {
        let mut state = self.state();
        let goes = state.holds.is_none() && state.halfway.last() == Some(&number);
        if goes {
            state.halfway.pop();
        }
        goes
    }
}

impl Device for Halves {
    fn geometry(&self) -> Geometry {
        self.ram.geometry()
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let inner = self.ram.channel(depth)?;
        let flights = (0..depth).map(|_| None).collect();
        Ok(Box::new(HalvesChannel { inner, gate: self.gate.clone(), flights }))
    }

    fn name(&self) -> &'static str {
        "halves"
    }
}

struct HalvesChannel {
    inner: Box<dyn Channel>,
    gate: Arc<Gate>,
    flights: Vec<Option<Flight>>,
}

struct Flight {
    number: u64,
    kind: IoKind,
    offset: u64,
    buffer: Buffer,
    range: Range<usize>,
}

impl HalvesChannel {
    fn transfer(&mut self, kind: IoKind, offset: u64, bytes: &mut [u8]) {
        let now = match kind {
            IoKind::Write => self.inner.write_now(offset, bytes),
            _ => self.inner.read_now(offset, bytes),
        };
        assert!(matches!(now, Immediate::Done), "memory answers at once");
    }

    fn look_again(ring: &mut Ring, slot: u32) {
        ring.timeout(RingToken::lower(slot), monotonic() + Duration::from_millis(1)).unwrap();
    }
}

impl Channel for HalvesChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        if self.gate.goes_in_halves(IoKind::Read) {
            Immediate::Blocked(0)
        } else {
            self.inner.read_now(offset, data)
        }
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        if self.gate.goes_in_halves(IoKind::Write) {
            Immediate::Blocked(0)
        } else {
            self.inner.write_now(offset, data)
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let kind = io.kind();
        if !self.gate.goes_in_halves(kind) {
            return self.inner.start(ring, slot, io);
        }
        let (offset, mut buffer, range) = match io {
            Io::Read { offset, buffer, range } | Io::Write { offset, buffer, range, .. } => {
                (offset, buffer, range)
            }
            other => return self.inner.start(ring, slot, other),
        };
        let half = range.len() / 2;
        self.transfer(kind, offset, &mut buffer[range.start..range.start + half]);
        let rest = range.start + half..range.end;
        let number = self.gate.enter();
        self.flights[slot as usize] =
            Some(Flight { number, kind, offset: offset + half as u64, buffer, range: rest });
        Self::look_again(ring, slot);
        Started::Pending
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, _result: i32) -> Option<Finished> {
        let slot = token.as_lower()?;
        let flight = self.flights[slot as usize].take()?;
        if !self.gate.lets_go(flight.number) {
            self.flights[slot as usize] = Some(flight);
            Self::look_again(ring, slot);
            return None;
        }
        let Flight { kind, offset, mut buffer, range, .. } = flight;
        self.transfer(kind, offset, &mut buffer[range]);
        Some(Finished { slot, buffer: Some(buffer), tags: None, result: Ok(()) })
    }

    fn woken(&mut self, _ring: &mut Ring, _token: RingToken, _result: i32, _over: &mut Vec<Finished>) {}
}
