//! A device in memory, for measurements of the layers above and for tests.

use std::sync::{Arc, PoisonError, RwLock};

use crate::{Channel, Device, Extent, Finished, Geometry, Immediate, Io, Result, Ring, RingToken, Started};

/// Bytes under one lock, and the unit of allocation.
const STRIPE: usize = 64 << 10;

type Stripes = Vec<RwLock<Option<Box<[u8]>>>>;

/// Memory that is allocated when it is written. Its contents are lost when it is dropped.
pub struct RamDevice {
    stripes: Arc<Stripes>,
    size: u64,
}

impl RamDevice {
    /// A device of `size` zero bytes.
    pub fn new(size: u64) -> Self {
        let count = usize::try_from(size.div_ceil(STRIPE as u64)).unwrap_or(usize::MAX);
        Self { stripes: Arc::new((0..count).map(|_| RwLock::new(None)).collect()), size }
    }
}

impl Device for RamDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            block: 1,
            preferred_block: 4096,
            memory_alignment: 1,
            read_only: false,
            discard: true,
            zones: None,
            tag_size: 0,
        }
    }

    fn channel(&self, _depth: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(RamChannel { stripes: self.stripes.clone() }))
    }

    fn name(&self) -> &'static str {
        "RAM"
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        let hole = |at: u64| {
            let stripe = usize::try_from(at / STRIPE as u64).ok().and_then(|i| self.stripes.get(i));
            stripe.is_some_and(|s| s.read().unwrap_or_else(PoisonError::into_inner).is_none())
        };
        let first = hole(offset);
        let mut at = offset;
        while at < offset + len && hole(at) == first {
            at = (at / STRIPE as u64 + 1) * STRIPE as u64;
        }
        Extent { len: at.min(offset + len) - offset, hole: first }
    }
}

struct RamChannel {
    stripes: Arc<Stripes>,
}

impl RamChannel {
    /// Calls `each(stripe, offset within it, length)` over a range, in order.
    fn over(&self, offset: u64, len: usize, mut each: impl FnMut(&RwLock<Option<Box<[u8]>>>, usize, usize)) {
        #[expect(clippy::cast_possible_truncation, reason = "the device's size fits the address space")]
        let (mut at, end) = (offset as usize, offset as usize + len);
        while at < end {
            let within = at % STRIPE;
            let n = (STRIPE - within).min(end - at);
            each(&self.stripes[at / STRIPE], within, n);
            at += n;
        }
    }

    fn clear(&self, offset: u64, len: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "the device's size fits the address space")]
        self.over(offset, len as usize, |stripe, from, n| {
            let mut stripe = stripe.write().unwrap_or_else(PoisonError::into_inner);
            match &mut *stripe {
                whole if n == STRIPE => *whole = None,
                Some(bytes) => bytes[from..from + n].fill(0),
                None => {}
            }
        });
    }
}

impl Channel for RamChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        let mut done = 0;
        self.over(offset, data.len(), |stripe, from, n| {
            let to = &mut data[done..done + n];
            match &*stripe.read().unwrap_or_else(PoisonError::into_inner) {
                Some(bytes) => to.copy_from_slice(&bytes[from..from + n]),
                None => to.fill(0),
            }
            done += n;
        });
        Immediate::Done
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        let mut done = 0;
        self.over(offset, data.len(), |stripe, from, n| {
            let mut stripe = stripe.write().unwrap_or_else(PoisonError::into_inner);
            let bytes = stripe.get_or_insert_with(|| vec![0; STRIPE].into_boxed_slice());
            bytes[from..from + n].copy_from_slice(&data[done..done + n]);
            done += n;
        });
        Immediate::Done
    }

    fn start(&mut self, _ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Ok(io) => io,
            Err(refused) => return Started::Finished(refused),
        };
        let buffer = match io {
            Io::Read { offset, mut buffer, range } => {
                self.read_now(offset, &mut buffer[range]);
                Some(buffer)
            }
            Io::Write { offset, buffer, range, .. } => {
                self.write_now(offset, &buffer[range]);
                Some(buffer)
            }
            Io::Discard { offset, len } | Io::Zero { offset, len, .. } => {
                self.clear(offset, len);
                None
            }
            io => io.into_buffer(),
        };
        Started::Finished(Finished { slot, buffer, tags: None, result: Ok(()) })
    }

    fn finish(&mut self, _ring: &mut Ring, _token: RingToken, _result: i32) -> Option<Finished> {
        None
    }

    /// Has no events: the device waits for nothing.
    fn woken(&mut self, _ring: &mut Ring, _token: RingToken, _result: i32, _over: &mut Vec<Finished>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_across_stripes_reads_back() {
        let device = RamDevice::new(4 << 20);
        let mut channel = device.channel(1).unwrap();
        let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        assert!(matches!(channel.write_now(65_000, &data), Immediate::Done));
        let mut back = vec![1; 200_002];
        assert!(matches!(channel.read_now(64_999, &mut back), Immediate::Done));
        assert_eq!(back[1..200_001], data);
        assert_eq!((back[0], back[200_001]), (0, 0));
    }

    #[test]
    fn extents_tell_what_was_never_written() {
        let device = RamDevice::new(1 << 20);
        device.channel(1).unwrap().write_now(128 << 10, &[1]);
        assert_eq!(device.extent(0, 1 << 20), Extent { len: 128 << 10, hole: true });
        assert_eq!(device.extent(130 << 10, 1 << 20), Extent { len: 62 << 10, hole: false });
    }
}
