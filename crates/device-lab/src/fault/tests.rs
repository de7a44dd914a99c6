use proptest::prelude::*;
use rustix::io::Errno;
use underseal_device::{Finished, Immediate, Io, RamDevice, Ring, RingToken, Started};

use super::*;

const EIO: i32 = Errno::IO.raw_os_error();
const ENOSPC: i32 = Errno::NOSPC.raw_os_error();
const SIZE: u64 = 256 << 10;
const BLOCK: usize = 512;

fn faulty(seed: u64) -> (FaultDevice, Arc<FaultControl>) {
    let device = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), seed);
    let control = device.control();
    (device, control)
}

fn errno(result: Result<()>) -> Option<i32> {
    result.err().map(|e| e.errno().expect("faults have the system's numbers"))
}

#[test]
fn rules_strike_the_requests_that_they_name() {
    let (device, control) = faulty(1);
    let mut io = Blocking::new(&device).unwrap();
    control.add(Rule::new(Fault::Error(ENOSPC)).on(IoKind::Write).within(4096..8192));
    control.add(Rule::new(Fault::EIO).on(IoKind::Flush).after(1).times(1));
    assert_eq!(errno(io.write(0, &[1; 4096], false)), None);
    assert_eq!(errno(io.write(3584, &[1; 1024], false)), Some(ENOSPC));
    assert_eq!(errno(io.read(4096, &mut [0; 512])), None);
    let flushes: Vec<_> = (0..3).map(|_| errno(io.flush())).collect();
    assert_eq!(flushes, [None, Some(EIO), None]);
    assert_eq!(control.injected(), 2);
    control.clear();
    assert_eq!(errno(io.write(4096, &[1; 4096], false)), None);
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let outcome = |seed| {
        let (device, control) = faulty(seed);
        control.add(Rule::new(Fault::EIO).chance(0.3));
        let mut io = Blocking::new(&device).unwrap();
        (0..64).map(|_| io.read(0, &mut [0; 512]).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(outcome(7), outcome(7));
    assert_ne!(outcome(7), outcome(8));
    let failed = outcome(7).iter().filter(|&&ok| !ok).count();
    assert!((5..40).contains(&failed), "{failed}");
}

#[test]
fn short_transfers_are_whole_in_the_end() {
    let (device, control) = faulty(3);
    control.add(Rule::new(Fault::Short));
    let data: Vec<u8> = (0..32 << 10).map(|i: u32| i.to_le_bytes()[1]).collect();
    let mut io = Blocking::new(&device).unwrap();
    io.write(512, &data, false).unwrap();
    let mut back = vec![0; data.len()];
    io.read(512, &mut back).unwrap();
    assert!(back == data);
    assert_eq!(control.injected(), 2);
    let mut channel = device.channel(1).unwrap();
    let Immediate::Blocked(n) = channel.read_now(512, &mut back) else { panic!("it is cut short") };
    assert!(n > 0 && n < back.len() && n.is_multiple_of(512));
}

#[test]
fn a_torn_write_leaves_a_prefix_of_sectors() {
    let (device, control) = faulty(4);
    let mut io = Blocking::new(&device).unwrap();
    let mut lengths = std::collections::BTreeSet::new();
    for fill in 1..=40 {
        control.add(Rule::new(Fault::Torn).times(1));
        assert_eq!(errno(io.write(0, &[fill; 4096], true)), Some(EIO));
        let mut back = [0; 4096];
        io.read(0, &mut back).unwrap();
        let new = back.iter().take_while(|&&b| b == fill).count();
        assert!(new.is_multiple_of(512) && new < 4096 && back[new..].iter().all(|&b| b != fill));
        lengths.insert(new);
    }
    assert!(lengths.len() > 4, "{lengths:?}");
}

#[test]
fn a_delay_is_waited_for_in_the_ring() {
    let (device, control) = faulty(5);
    let mut io = Blocking::new(&device).unwrap();
    control.add(Rule::new(Fault::Delay(std::time::Duration::from_millis(20))).on(IoKind::Read));
    control.add(Rule::new(Fault::EIO).on(IoKind::Read).after(1));
    let begin = std::time::Instant::now();
    io.read(0, &mut [0; 512]).unwrap();
    assert!(begin.elapsed().as_millis() >= 20);
    assert!(io.read(0, &mut [0; 512]).is_err());
    assert!(begin.elapsed().as_millis() >= 40);
}

#[test]
fn without_power_everything_fails() {
    let (device, control) = faulty(6);
    let mut io = Blocking::new(&device).unwrap();
    io.write(0, &[1; 512], false).unwrap();
    control.power_cut().unwrap();
    control.power_cut().unwrap();
    assert_eq!(errno(io.read(0, &mut [0; 512])), Some(EIO));
    assert_eq!(errno(io.flush()), Some(EIO));
    assert!(matches!(device.channel(1).unwrap().read_now(0, &mut [0; 512]), Immediate::Failed(_)));
    control.power_on();
    let mut back = [0; 512];
    io.read(0, &mut back).unwrap();
    assert_eq!(back, [1; 512]);
}

#[derive(Debug, Clone)]
enum Step {
    Write { at: usize, len: usize, durable: bool },
    Zero { at: usize, len: usize },
    Flush,
    PowerCut,
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0usize..64, 1usize..16).prop_map(|(at, len)| (at * BLOCK, len.min(64 - at) * BLOCK));
    prop_oneof![
        8 => (range(), prop::bool::weighted(0.2)).prop_map(|((at, len), durable)| Step::Write { at, len, durable }),
        1 => range().prop_map(|(at, len)| Step::Zero { at, len }),
        2 => Just(Step::Flush),
        1 => Just(Step::PowerCut),
    ]
}

proptest! {
    /// Compared with a list of the possible states of each block.
    #[test]
    fn a_power_cut_loses_only_what_was_not_flushed(steps in prop::collection::vec(step(), 1..60), seed: u64) {
        let device = FaultDevice::with_volatile_cache(Arc::new(RamDevice::new(SIZE)), seed, 512);
        let control = device.control();
        let mut io = Blocking::new(&device).unwrap();
        let mut states: Vec<Vec<Vec<u8>>> = vec![vec![vec![0; BLOCK]]; 64];
        for (number, step) in (1u32..).zip(&steps) {
            match *step {
                Step::Write { at, len, durable } => {
                    let fill = number.to_le_bytes()[0];
                    io.write(at as u64, &vec![fill; len], durable).unwrap();
                    for block in &mut states[at / BLOCK..(at + len) / BLOCK] {
                        if durable {
                            block.clear();
                        }
                        block.push(vec![fill; BLOCK]);
                    }
                }
                Step::Zero { at, len } => {
                    io.zero(at as u64, len as u64).unwrap();
                    states[at / BLOCK..(at + len) / BLOCK].iter_mut().for_each(|b| b.push(vec![0; BLOCK]));
                }
                Step::Flush => {
                    io.flush().unwrap();
                    prop_assert_eq!(control.unflushed(), 0);
                    states.iter_mut().for_each(|block| { block.drain(..block.len() - 1); });
                }
                Step::PowerCut => {
                    control.power_cut().unwrap();
                    prop_assert!(io.read(0, &mut [0; BLOCK]).is_err());
                    control.power_on();
                }
            }
            let mut now = vec![0; 64 * BLOCK];
            io.read(0, &mut now).unwrap();
            for (block, (state, now)) in states.iter_mut().zip(now.chunks(BLOCK)).enumerate() {
                if matches!(step, Step::PowerCut) {
                    prop_assert!(state.iter().any(|s| s == now), "seed {}, block {}", control.seed(), block);
                    *state = vec![now.to_vec()];
                }
                prop_assert_eq!(state.last().map(Vec::as_slice), Some(now), "block {}", block);
            }
        }
    }
}

#[test]
fn a_power_cut_loses_some_blocks_and_keeps_others() {
    let device = FaultDevice::with_volatile_cache(Arc::new(RamDevice::new(SIZE)), 9, 512);
    let mut io = Blocking::new(&device).unwrap();
    io.write(0, &[1; 64 << 10], false).unwrap();
    device.control().power_cut().unwrap();
    device.control().power_on();
    let mut back = vec![0; 64 << 10];
    io.read(0, &mut back).unwrap();
    let new = back.chunks(512).filter(|block| block[0] == 1).count();
    assert!((32..96).contains(&new), "{new} of 128");
}

/// Memory that cuts the power of the upper device during a read.
struct CutWhileRead(RamDevice, Arc<std::sync::OnceLock<Arc<FaultControl>>>);

struct CutWhileReadChannel(Box<dyn Channel>, Arc<std::sync::OnceLock<Arc<FaultControl>>>);

impl Device for CutWhileRead {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(CutWhileReadChannel(self.0.channel(depth)?, self.1.clone())))
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

impl Channel for CutWhileReadChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        self.0.read_now(offset, data)
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        self.0.write_now(offset, data)
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let is_read = matches!(io, Io::Read { .. });
        let started = self.0.start(ring, slot, io);
        if let Some(control) = self.1.get().filter(|_| is_read) {
            control.power_cut().unwrap();
        }
        started
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        self.0.finish(ring, token, result)
    }

    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>) {
        self.0.woken(ring, token, result, over);
    }
}

#[test]
fn what_a_write_saw_before_the_power_was_cut_does_not_come_back_with_the_next_cut() {
    let cuts = Arc::new(std::sync::OnceLock::new());
    let device = Arc::new(CutWhileRead(RamDevice::new(SIZE), cuts.clone()));
    let device = FaultDevice::with_volatile_cache(device, 1, 512);
    let control = device.control();
    let mut io = Blocking::new(&device).unwrap();
    io.write(0, &[1; BLOCK], true).unwrap();
    cuts.set(control.clone()).unwrap_or_else(|_| panic!("set once"));
    assert_eq!(errno(io.write(0, &[2; BLOCK], false)), Some(EIO));
    assert_eq!(control.unflushed(), 0);
}
