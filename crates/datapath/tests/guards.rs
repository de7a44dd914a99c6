//! Guarded ranges: no request changes a byte of them, whatever its kind, size and queue.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use underseal_cipher::{Key, SectorCipher, SectorSize, build};
use underseal_datapath::{Completion, ErrorKind, Mapping, Queue, QueueOptions, Request};
use underseal_device::RamDevice;
use underseal_volume::{Guard, GuardRule, Segment, Volume};

const SIZE: u64 = 256 << 10;
/// The protected range.
const GUARD: std::ops::Range<u64> = (96 << 10)..(160 << 10);

fn cipher() -> Arc<dyn SectorCipher> {
    let key = Key::new(&(0..64).collect::<Vec<u8>>()).unwrap();
    build(&"aes-xts-plain64".parse().unwrap(), &key, SectorSize::S512).unwrap()
}

fn volume() -> Volume {
    Volume::new(vec![Segment::stored(0, SIZE, 4096, 8, cipher())]).unwrap().with_discards(true)
}

fn queue(mapping: &Arc<Mapping>) -> Queue {
    Queue::open(mapping.clone(), QueueOptions { depth: 8, max_request: 1 << 18 }).unwrap()
}

fn finish(queue: &mut Queue) -> Completion {
    loop {
        if let Some(completion) = queue.next_completion() {
            return completion;
        }
        queue.wait().unwrap();
    }
}

fn run(queue: &mut Queue, request: Request) -> Completion {
    queue.submit(1, request).expect("there is room");
    finish(queue)
}

fn all(queue: &mut Queue) -> Vec<u8> {
    let read = run(queue, Request::Read { offset: 0, len: usize::try_from(SIZE).unwrap() });
    let buffer = read.buffer.unwrap();
    let bytes = buffer.to_vec();
    queue.free(buffer);
    bytes
}

/// A request to the volume.
#[derive(Debug, Clone)]
enum Ask {
    Write(u64, u64, bool),
    InPlace(u64, u64),
    Zeros(u64, u64, bool),
    Discard(u64, u64),
    Resize(Option<u64>),
}

impl Ask {
    fn range(&self) -> Option<std::ops::Range<u64>> {
        match *self {
            Self::Write(at, len, _)
            | Self::InPlace(at, len)
            | Self::Zeros(at, len, _)
            | Self::Discard(at, len) => Some(at..at + len),
            Self::Resize(_) => None,
        }
    }

    fn of(&self, queue: &mut Queue, mapping: &Mapping) -> std::result::Result<(), ErrorKind> {
        let fill = |len: u64| vec![0x5a; usize::try_from(len).unwrap()];
        let completion = match *self {
            Self::Write(offset, len, durable) => {
                let mut data = queue.alloc(usize::try_from(len).unwrap()).unwrap();
                data.copy_from_slice(&fill(len));
                run(queue, Request::Write { offset, data, durable })
            }
            Self::InPlace(offset, len) => {
                queue.write_in_place(1, offset, &mut fill(len), false).unwrap();
                finish(queue)
            }
            Self::Zeros(offset, len, punch) => {
                run(queue, Request::WriteZeroes { offset, len, durable: false, punch, fast: false })
            }
            Self::Discard(offset, len) => run(queue, Request::Discard { offset, len, durable: false }),
            Self::Resize(size) => {
                return mapping.resize(size, Duration::from_secs(5)).map(|_| ()).map_err(|e| e.kind());
            }
        };
        if let Some(buffer) = completion.buffer {
            queue.free(buffer);
        }
        completion.result.map_err(|e| e.kind())
    }
}

/// Requests within the volume, some of them close to the guard's edges; by bytes or by sectors.
fn asks(bytes: bool) -> impl Strategy<Value = Vec<(bool, Ask)>> {
    let unit = if bytes { 1 } else { 512 };
    let near = prop_oneof![
        0..SIZE,
        GUARD.start.saturating_sub(1200)..GUARD.start + 1200,
        GUARD.end - 1200..GUARD.end + 1200,
    ];
    let range = (near, 1..20_000u64).prop_map(move |(at, len)| {
        let at = (at / unit * unit).min(SIZE - unit);
        (at, (len.div_ceil(unit) * unit).min(SIZE - at))
    });
    let ask = (0..6u8, range, any::<bool>()).prop_map(|(kind, (at, len), flag)| match kind {
        0 => Ask::Write(at, len, flag),
        1 | 2 => Ask::InPlace(at, len),
        3 => Ask::Zeros(at, len, flag),
        4 => Ask::Discard(at, len),
        _ => Ask::Resize(flag.then_some(at)),
    });
    prop::collection::vec((any::<bool>(), ask), 1..40)
}

fn nothing_changes_the_guard(bytes: bool, asks: &[(bool, Ask)]) -> std::result::Result<(), TestCaseError> {
    let device = Arc::new(RamDevice::new(SIZE + 8192));
    let plain = Arc::new(Mapping::new(volume(), device.clone()).unwrap());
    let mut judge = queue(&plain);
    let before = all(&mut judge);
    let guarded = Mapping::new(volume(), device)
        .unwrap()
        .with_guard(Guard { range: GUARD, rule: GuardRule::RefuseAll });
    let guarded = Arc::new(if bytes { guarded.with_bytes() } else { guarded });
    let mut queues = [queue(&guarded), queue(&guarded)];
    let (mut model, mut ended) = (before, false);
    for (which, ask) in asks {
        // A read-modify-write rewrites whole sectors.
        let wide = ask.range().map(|of| of.start / 512 * 512..of.end.next_multiple_of(512));
        let touches = wide.is_some_and(|of| of.start < GUARD.end && GUARD.start < of.end);
        let told = ask.of(&mut queues[usize::from(*which)], &guarded);
        match ask {
            Ask::Resize(_) => prop_assert_eq!(told, Err(ErrorKind::Layout)),
            _ if ended || touches => {
                prop_assert_eq!(told, Err(ErrorKind::ReadOnly), "{:?}", ask);
                ended = true;
            }
            _ => prop_assert_eq!(told, Ok(()), "{:?}", ask),
        }
        let now = all(&mut judge);
        if ended {
            // No byte changes, also for a request that only reaches into the guard.
            prop_assert!(now == model, "{:?}", ask);
        }
        let guard = usize::try_from(GUARD.start).unwrap()..usize::try_from(GUARD.end).unwrap();
        prop_assert!(now[guard.clone()] == model[guard], "{:?}", ask);
        model = now;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_sequence_of_requests_changes_a_guarded_byte(asks in asks(false)) {
        nothing_changes_the_guard(false, &asks)?;
    }

    #[test]
    fn no_sequence_of_requests_for_single_bytes_changes_a_guarded_byte(asks in asks(true)) {
        nothing_changes_the_guard(true, &asks)?;
    }
}

#[test]
fn a_guard_of_a_format_refuses_its_range_and_nothing_else() {
    let mapping = Mapping::new(volume(), Arc::new(RamDevice::new(SIZE + 8192))).unwrap();
    let mapping = Arc::new(mapping.with_guard(Guard { range: GUARD, rule: GuardRule::Refuse }));
    let mut q = queue(&mapping);
    let write = |q: &mut Queue, at| Ask::InPlace(at, 512).of(q, &mapping);
    assert_eq!(write(&mut q, GUARD.start), Err(ErrorKind::ReadOnly));
    assert_eq!(write(&mut q, GUARD.end - 512), Err(ErrorKind::ReadOnly));
    assert_eq!((write(&mut q, GUARD.start - 512), write(&mut q, GUARD.end)), (Ok(()), Ok(())));
}

#[test]
fn a_volume_without_writes_refuses_them_though_its_device_could() {
    let mapping = Mapping::new(volume(), Arc::new(RamDevice::new(SIZE + 8192))).unwrap();
    let mapping = Arc::new(mapping.without_writes());
    assert!(mapping.read_only() && !mapping.discards());
    assert_eq!(Ask::InPlace(0, 512).of(&mut queue(&mapping), &mapping), Err(ErrorKind::ReadOnly));
    assert_eq!(all(&mut queue(&mapping)).len(), usize::try_from(SIZE).unwrap());
}
