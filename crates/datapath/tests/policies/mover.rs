//! A range mover that rewrites the volume under its requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use underseal_cipher::{InOutBuf, Key, SectorCipher, SectorSize, build};
use underseal_datapath::{Completion, ErrorKind, Mapping, Queue, RangeMover, Request};
use underseal_device::{Device, Immediate, IoKind, RamDevice};
use underseal_volume::{Segment, Volume};

use super::halves::Halves;
use super::*;

/// Longer than any request takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// After this many turns, a thread without requests to wait for has begun all that it can.
const TURNS: usize = 12;

fn cipher(spec: &str, key: u8, fill: u8) -> Arc<dyn SectorCipher> {
    let key = Key::new(&(0..key).map(|i| i ^ fill).collect::<Vec<u8>>()).unwrap();
    build(&spec.parse().unwrap(), &key, SectorSize::S4096).unwrap()
}

/// The cipher of a volume of one segment.
fn present(mapping: &Mapping) -> Arc<dyn SectorCipher> {
    mapping.volume().unwrap().segments()[0].as_stored().unwrap().cipher.clone()
}

/// The volume of [`mapping`] with a part at another place, under another key.
fn with_part(
    now: &Arc<dyn SectorCipher>,
    part: std::ops::Range<u64>,
    lower: u64,
    cipher: Arc<dyn SectorCipher>,
) -> Volume {
    let rest = |from: u64, to: u64| Segment::stored(from, to - from, from, from >> 9, now.clone());
    let moved = Segment::stored(part.start, part.end - part.start, lower, part.start >> 9, cipher);
    let segments = [rest(0, part.start), moved, rest(part.end, SIZE)];
    Volume::new(segments.into_iter().filter(|segment| segment.len > 0).collect()).unwrap()
}

/// Another key than that of [`xts`].
fn other() -> Arc<dyn SectorCipher> {
    cipher("aes-xts-plain64", 64, 0x55)
}

fn submit_read(queue: &mut Queue, tag: u64, offset: u64) {
    queue.submit(tag, Request::Read { offset, len: 4096 }).expect("there is room");
}

/// Lets a queue make progress.
fn turns(queue: &mut Queue, over: &mut Vec<Completion>) {
    for _ in 0..TURNS {
        over.extend(std::iter::from_fn(|| queue.next_completion()));
        queue.poll().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
}

fn tags(over: &mut Vec<Completion>) -> Vec<u64> {
    let mut tags: Vec<_> = over.drain(..).map(|c| c.result.map(|()| c.tag).unwrap()).collect();
    tags.sort_unstable();
    tags
}

#[test]
fn requests_keep_out_of_a_movers_range_and_only_of_that() {
    for text in POLICIES {
        let (device, gate) = Halves::new(SIZE);
        let mapping = mapping(device);
        let mapping = Arc::new(mapping);
        mapping.set_policy(policy(text)).unwrap();
        let (mut queue, mut over) = (open(&mapping), Vec::new());
        // Without a lock: no mover exists yet.
        gate.hold(IoKind::Write);
        submit_write(&mut queue, 0, 0, 4096, 1);
        while gate.halfway() < 1 {
            turns(&mut queue, &mut over);
        }
        let mover = thread::scope(|scope| {
            let busy = scope.spawn(|| RangeMover::new(mapping.clone(), Duration::from_millis(1)).err());
            while !busy.is_finished() {
                turns(&mut queue, &mut over);
            }
            assert_eq!(busy.join().unwrap().map(|e| e.kind()), Some(ErrorKind::Busy), "{text}");

            let coming = scope.spawn(|| RangeMover::new(mapping.clone(), LONG).unwrap());
            turns(&mut queue, &mut over);
            assert!(!coming.is_finished(), "{text}: a write has no lock");
            gate.open();
            while !coming.is_finished() {
                turns(&mut queue, &mut over);
            }
            coming.join().unwrap()
        });
        assert_eq!(tags(&mut over), [0]);
        thread::scope(|scope| {
            // With a lock: the mover waits for its range only.
            gate.hold(IoKind::Write);
            submit_write(&mut queue, 1, 0, 4096, 2);
            while gate.halfway() < 1 {
                turns(&mut queue, &mut over);
            }
            drop(mover.claim(SECTOR..SIZE, LONG).unwrap());
            let short = mover.claim(0..2 * SECTOR, Duration::from_millis(1)).err().map(|e| e.kind());
            assert_eq!(short, Some(ErrorKind::Busy));
            let claiming = scope.spawn(|| mover.claim(0..8 << 20, LONG).unwrap());
            turns(&mut queue, &mut over);
            assert!(!claiming.is_finished(), "{text}: the write is there");
            gate.open();
            while !claiming.is_finished() {
                turns(&mut queue, &mut over);
            }
            let claim = claiming.join().unwrap();
            assert_eq!(tags(&mut over), [1]);

            // Requests in the range wait, and others do not.
            submit_write(&mut queue, 2, 4 << 20, 4096, 3);
            submit_read(&mut queue, 3, SECTOR);
            queue.write_in_place(4, (8 << 20) - SECTOR, &mut [4; 8192], false).unwrap();
            submit_read(&mut queue, 5, 8 << 20);
            submit_write(&mut queue, 6, 12 << 20, 4096, 5);
            submit_read(&mut queue, 7, 2 * SECTOR);
            turns(&mut queue, &mut over);
            let ended = tags(&mut over);
            assert!(
                ended.contains(&6) && !ended.iter().any(|tag| [2, 3, 4, 7].contains(tag)),
                "{text}: {ended:?}"
            );
            drop(claim);
            let mut rest: Vec<_> =
                finish(&mut queue).into_iter().map(|c| c.result.map(|()| c.tag).unwrap()).collect();
            rest.extend(ended);
            rest.sort_unstable();
            assert_eq!(rest, [2, 3, 4, 5, 6, 7], "{text}");
        });
        assert_eq!(read(&mut queue, 4 << 20, 4096), [3; 4096]);
        assert_eq!(read(&mut queue, (8 << 20) - SECTOR, 8192), [4; 8192]);
    }
}

#[test]
fn a_request_ends_under_the_volume_that_it_began_under() {
    for text in POLICIES {
        let (device, gate) = Halves::new(2 * SIZE);
        let mapping = mapping(device.clone());
        let mapping = Arc::new(mapping);
        mapping.set_policy(policy(text)).unwrap();
        // The mover comes before the queue that it would wait for.
        let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
        let mut queue = open(&mapping);
        submit_write(&mut queue, 0, 0, 16384, 1);
        succeed(&mut queue);
        gate.hold(IoKind::Read);
        queue.submit(1, Request::Read { offset: 0, len: 16384 }).unwrap();
        let mut over = Vec::new();
        while gate.halfway() < 1 {
            turns(&mut queue, &mut over);
        }
        let (now, range) = (present(&mapping), 8 << 20..9 << 20);
        let claim = mover.claim(range.clone(), LONG).unwrap();
        claim.relay(with_part(&now, range, SIZE, other())).unwrap();
        drop(claim);
        // Requests from now on run under the new volume.
        submit_write(&mut queue, 2, 8 << 20, 4096, 2);
        turns(&mut queue, &mut over);
        gate.open();
        while over.len() < 2 {
            turns(&mut queue, &mut over);
        }
        over.sort_by_key(|completion| completion.tag);
        assert!(over.iter().all(|completion| completion.result.is_ok()), "{text}");
        assert_eq!(over[0].buffer.as_deref().unwrap(), [1; 16384], "{text}");
        assert_eq!(read(&mut queue, 8 << 20, 4096), [2; 4096], "{text}");
        assert_eq!(read(&mut queue, 0, 4096), [1; 4096], "{text}");
        let there = Volume::new(vec![Segment::stored(0, 1 << 20, SIZE, 8 << 11, other())]).unwrap();
        let mut queue = open(&Arc::new(Mapping::new(there, device).unwrap()));
        assert_eq!(read(&mut queue, 0, 4096), [2; 4096], "{text}");
    }
}

/// Zeros that were to be written below need memory once the volume is encrypted there.
#[test]
fn zeros_are_written_while_other_requests_have_all_memory() {
    let device = Arc::new(RamDevice::new(2 * SIZE));
    let mapping = Arc::new(Mapping::new(volume(cipher("cipher_null-ecb", 0, 0)), device).unwrap());
    let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 0, 1 << 20, 7);
    succeed(&mut queue);
    let (now, part) = (present(&mapping), 0..1 << 20);
    let claim = mover.claim(part.clone(), LONG).unwrap();
    let zeros = Request::WriteZeroes { offset: 0, len: 1 << 20, durable: true, punch: false, fast: false };
    queue.submit(1, zeros).expect("there is room");
    let mut over = Vec::new();
    turns(&mut queue, &mut over);
    let all: Vec<_> = std::iter::from_fn(|| queue.alloc(4096)).collect();
    claim.relay(with_part(&now, part, 0, other())).unwrap();
    drop(claim);
    for _ in 0..100 {
        turns(&mut queue, &mut over);
    }
    assert_eq!(tags(&mut over), [1]);
    all.into_iter().for_each(|buffer| queue.free(buffer));
    assert_eq!(read(&mut queue, (1 << 20) - 4096, 4096), [0; 4096]);
}

#[test]
fn only_the_claimed_range_may_lie_elsewhere_or_have_another_key() {
    let mapping = mapping(Arc::new(RamDevice::new(2 * SIZE)));
    let mapping = Arc::new(mapping);
    let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
    let now = present(&mapping);
    let claim = mover.claim(1 << 20..2 << 20, LONG).unwrap();
    for range in [(1 << 20) - SECTOR..2 << 20, 1 << 20..(2 << 20) + SECTOR, 3 << 20..4 << 20] {
        for lower in [range.start, SIZE] {
            let refused = claim.relay(with_part(&now, range.clone(), lower, other())).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Layout, "{range:?} at {lower}");
        }
    }
    // A different cipher object may have a different key.
    let strange =
        claim.relay(with_part(&xts(SectorSize::S4096), 1 << 20..2 << 20, SIZE, other())).unwrap_err();
    assert_eq!(strange.kind(), ErrorKind::Layout);
    claim.relay(with_part(&now, (1 << 20) + SECTOR..2 << 20, SIZE, other())).unwrap();
    claim.relay(with_part(&now, 1 << 20..2 << 20, SIZE, other())).unwrap();
    claim.relay(with_part(&now, 1 << 20..2 << 20, 1 << 20, other())).unwrap();
}

#[test]
fn nobody_changes_size_or_key_under_a_mover() {
    let mapping = mapping(Arc::new(RamDevice::new(2 * SIZE)));
    let mapping = Arc::new(mapping);
    let before = present(&mapping);
    let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
    assert_eq!(RangeMover::new(mapping.clone(), LONG).err().map(|e| e.kind()), Some(ErrorKind::Busy));
    // Only keys differ, which the layout does not show.
    let claim = mover.claim(0..SIZE / 2, LONG).unwrap();
    claim.relay(with_part(&before, 0..SIZE / 2, 0, other())).unwrap();
    drop(claim);
    mapping.suspend(LONG).unwrap();
    let changes: [&dyn Fn() -> underseal_datapath::Result<()>; 3] = [
        &|| mapping.replace_volume(with_part(&before, 0..SIZE / 2, 0, before.clone())),
        &|| mapping.wipe_key(),
        &|| mapping.resize(Some(SIZE / 2), LONG).map(drop),
    ];
    for change in changes {
        assert_eq!(change().unwrap_err().kind(), ErrorKind::Busy);
    }
    mapping.resume().unwrap();
    assert!(!Arc::ptr_eq(&present(&mapping), &before), "what was rewritten came back");
    drop(mover);
    // A later mover with an earlier volume would restore the part that the first mover has
    // rewritten.
    let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
    let claim = mover.claim(SIZE / 2..SIZE, LONG).unwrap();
    let stale = claim.relay(with_part(&before, SIZE / 2..SIZE, SIZE / 2, other())).unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Layout);
    drop(claim);
    drop(mover);
    mapping.resize(Some(SIZE * 3 / 4), LONG).unwrap();
    assert!(!Arc::ptr_eq(&present(&mapping), &before));
    mapping.suspend(LONG).unwrap();
    assert_eq!(RangeMover::new(mapping.clone(), LONG).err().map(|e| e.kind()), Some(ErrorKind::Busy));
    mapping.wipe_key().unwrap();
}

#[test]
fn who_suspends_comes_before_a_mover_that_waits() {
    for text in POLICIES {
        let (device, gate) = Halves::new(SIZE);
        let mapping = Arc::new(mapping(device));
        mapping.set_policy(policy(text)).unwrap();
        let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
        let (mut queue, mut over) = (open(&mapping), Vec::new());
        gate.hold(IoKind::Write);
        submit_write(&mut queue, 0, 0, 4096, 1);
        while gate.halfway() < 1 {
            turns(&mut queue, &mut over);
        }
        thread::scope(|scope| {
            let claiming = scope.spawn(|| mover.claim(0..1 << 20, LONG).unwrap());
            // A read waits behind the mover as soon as that has begun to wait.
            loop {
                submit_read(&mut queue, 1, SECTOR);
                turns(&mut queue, &mut over);
                assert!(!claiming.is_finished(), "{text}");
                if over.is_empty() {
                    break;
                }
                over.clear();
            }
            let suspending = scope.spawn(|| mapping.suspend(LONG));
            while !mapping.is_suspended() {
                thread::yield_now();
            }
            gate.open();
            while !suspending.is_finished() {
                turns(&mut queue, &mut over);
            }
            suspending.join().unwrap().unwrap();
            assert_eq!(tags(&mut over), [0, 1], "{text}: they end, and the mover has not begun");
            turns(&mut queue, &mut over);
            assert!(!claiming.is_finished(), "{text}: it moves while the volume is suspended");
            let busy = mover.claim(2 << 20..3 << 20, Duration::from_millis(1)).err();
            assert_eq!(busy.map(|e| e.kind()), Some(ErrorKind::Busy));
            mapping.resume().unwrap();
            while !claiming.is_finished() {
                turns(&mut queue, &mut over);
            }
            let claim = claiming.join().unwrap();
            submit_read(&mut queue, 2, 0);
            turns(&mut queue, &mut over);
            assert!(over.is_empty(), "{text}: the range is the mover's");
            drop(claim);
            succeed(&mut queue);
        });
    }
}

#[test]
fn a_mover_ends_its_range_while_somebody_suspends() {
    let mapping = Arc::new(mapping(Arc::new(RamDevice::new(SIZE))));
    let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
    let (mut queue, mut over) = (open(&mapping), Vec::new());
    let now = present(&mapping);
    thread::scope(|scope| {
        let claim = mover.claim(0..1 << 20, LONG).unwrap();
        // A suspension waits for the mover's range also without requests in flight.
        let busy = mapping.suspend(Duration::from_millis(1)).unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert!(busy.to_string().contains("rewritten"), "{busy}");
        assert!(!mapping.is_suspended());
        submit_read(&mut queue, 0, 0);
        turns(&mut queue, &mut over);
        let suspending = scope.spawn(|| mapping.suspend(LONG));
        while !mapping.is_suspended() {
            thread::yield_now();
        }
        turns(&mut queue, &mut over);
        assert!(over.is_empty() && !suspending.is_finished());
        let begun = std::time::Instant::now();
        claim.relay(with_part(&now, 0..1 << 20, 0, other())).unwrap();
        assert!(begun.elapsed() < LONG / 2, "it waited for who waits for it");
        turns(&mut queue, &mut over);
        assert!(!suspending.is_finished(), "the range is still the mover's");
        drop(claim);
        while !suspending.is_finished() {
            turns(&mut queue, &mut over);
        }
        suspending.join().unwrap().unwrap();
        assert_eq!(tags(&mut over), [0]);
    });
    mapping.resume().unwrap();
}

/// Writes sectors of this thread, reads them back, and checks that they stay the same.
fn load(mapping: &Arc<Mapping>, number: u64, stop: &AtomicBool, done: &AtomicU64) -> Vec<u8> {
    let mut queue = open(mapping);
    let mut fills = vec![0; 512];
    let mut turn = number;
    while !stop.load(SeqCst) {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (turn >> 33) % fills.len() as u64;
        let offset = |which: u64| (which * 8 + number) * SECTOR;
        let fill = turn.to_le_bytes()[7].max(1);
        if turn >> 40 & 1 == 0 {
            submit_write(&mut queue, 0, offset(which), 4096, fill);
        } else {
            queue.write_in_place(0, offset(which), &mut [fill; 4096], false).unwrap();
        }
        succeed(&mut queue);
        fills[usize::try_from(which).unwrap()] = fill;
        let old = which ^ 1;
        let expected = fills[usize::try_from(old).unwrap()];
        let found = read(&mut queue, offset(old), 4096);
        assert!(expected == 0 || found == [expected; 4096], "sector {old}");
        done.fetch_add(1, SeqCst);
    }
    fills
}

#[test]
fn a_volume_is_encrypted_anew_under_load() {
    for (spec, key) in [("aes-xts-plain64", 64), ("aes-hctr2-plain64", 32)] {
        let device = Arc::new(RamDevice::new(SIZE));
        let mapping = mapping(device.clone());
        let mapping = Arc::new(mapping);
        let (old, new) = (present(&mapping), cipher(spec, key, 0x77));
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let fills = thread::scope(|scope| {
            let loads: Vec<_> = (0..3)
                .map(|number| {
                    let (mapping, stop, done) = (&mapping, &stop, &done);
                    scope.spawn(move || load(mapping, number, stop, done))
                })
                .collect();
            let mover = RangeMover::new(mapping.clone(), LONG).unwrap();
            let mut channel = device.channel(1).unwrap();
            let mut begin = 0;
            for (n, text) in POLICIES.into_iter().enumerate() {
                mapping.set_policy(policy(text)).unwrap();
                let end =
                    if n == POLICIES.len() - 1 { SIZE } else { begin + [64 << 10, 2 << 20, SECTOR][n % 3] };
                let claim = mover.claim(begin..end, LONG).unwrap();
                let mut bytes = vec![0; usize::try_from(end - begin).unwrap()];
                assert!(matches!(channel.read_now(begin, &mut bytes), Immediate::Done));
                old.decrypt(begin >> 9, InOutBuf::from(&mut bytes[..]));
                new.encrypt(begin >> 9, InOutBuf::from(&mut bytes[..]));
                assert!(matches!(channel.write_now(begin, &bytes), Immediate::Done));
                let mut segments = vec![Segment::stored(0, end, 0, 0, new.clone())];
                if end < SIZE {
                    segments.push(Segment::stored(end, SIZE - end, end, end >> 9, old.clone()));
                }
                claim.relay(Volume::new(segments).unwrap()).unwrap();
                drop(claim);
                let before = done.load(SeqCst);
                while done.load(SeqCst) < before + 50 {
                    thread::yield_now();
                }
                begin = end;
            }
            stop.store(true, SeqCst);
            loads.into_iter().map(|load| load.join().unwrap()).collect::<Vec<_>>()
        });
        // Another mapping reads all sectors under the new cipher alone.
        let mut queue = open(&Arc::new(Mapping::new(volume(new), device).unwrap()));
        for (number, fills) in (0..).zip(fills) {
            for (which, fill) in (0..).zip(fills).filter(|(_, fill)| *fill != 0) {
                let found = read(&mut queue, (which * 8 + number) * SECTOR, 4096);
                assert!(found == [fill; 4096], "{spec}: sector {which} of {number}");
            }
        }
    }
}
