//! A volume that is suspended, and its key.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_datapath::ErrorKind;
use underseal_device::{Channel, Device, Geometry, RamDevice, SharedImage, SnapshotPause};
use underseal_device_lab::RecorderDevice;

use super::*;

const LONG: Duration = Duration::from_secs(120);

#[test]
fn nothing_reaches_the_device_while_the_volume_is_suspended_and_all_goes_on_afterwards() {
    let recorder = Arc::new(RecorderDevice::new(Arc::new(RamDevice::new(SIZE)), 1 << 20));
    let mapping = mapping(recorder.clone());
    let mapping = Arc::new(mapping);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = open(&mapping);
            while !stop.load(SeqCst) {
                for tag in 0..8 {
                    submit_write(&mut queue, tag, tag * SECTOR, 4096, 1);
                }
                succeed(&mut queue);
                done.fetch_add(8, SeqCst);
            }
        });
        for text in POLICIES {
            mapping.set_policy(policy(text)).unwrap();
            mapping.suspend(LONG).unwrap();
            mapping.suspend(LONG).expect("it is suspended");
            recorder.take();
            thread::sleep(Duration::from_millis(20));
            assert_eq!(recorder.take(), [], "{text}");
            mapping.wipe_key().unwrap();
            assert!(mapping.volume().is_none());
            assert_eq!(mapping.resume().unwrap_err().kind(), ErrorKind::NoKey);
            assert!(mapping.is_suspended());
            mapping.replace_volume(volume(xts(SectorSize::S4096))).unwrap();
            let before = done.load(SeqCst);
            mapping.resume().unwrap();
            // Held requests are answered, although nothing else wakes the queue.
            while done.load(SeqCst) < before + 16 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        stop.store(true, SeqCst);
    });
}

#[test]
fn the_old_key_is_gone_when_it_was_wiped() {
    let cipher = xts(SectorSize::S4096);
    let there = Arc::downgrade(&cipher);
    let mapping = Arc::new(Mapping::new(volume(cipher), Arc::new(RamDevice::new(SIZE))).unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut queue = open(&mapping);
                while !stop.load(SeqCst) {
                    submit_write(&mut queue, 0, 0, 4096, 1);
                    succeed(&mut queue);
                }
            });
        }
        mapping.set_policy(policy("workers")).unwrap();
        thread::sleep(Duration::from_millis(20));
        mapping.suspend(LONG).unwrap();
        assert!(there.upgrade().is_some());
        mapping.wipe_key().unwrap();
        assert!(there.upgrade().is_none(), "somebody still has the key");
        mapping.replace_volume(volume(xts(SectorSize::S4096))).unwrap();
        stop.store(true, SeqCst);
        mapping.resume().unwrap();
    });
}

#[test]
fn keys_are_changed_while_suspended_only_and_only_for_the_same_volume() {
    let mapping = Mapping::new(volume(xts(SectorSize::S4096)), Arc::new(RamDevice::new(SIZE))).unwrap();
    let same = || volume(xts(SectorSize::S4096));
    assert_eq!(mapping.wipe_key().unwrap_err().kind(), ErrorKind::NotSuspended);
    assert_eq!(mapping.replace_volume(same()).unwrap_err().kind(), ErrorKind::NotSuspended);
    mapping.suspend(LONG).unwrap();
    let other = mapping.replace_volume(volume(xts(SectorSize::S512))).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Layout);
    mapping.replace_volume(same()).unwrap();
}

/// A device of which snapshots are made.
struct Snapshotted {
    below: RamDevice,
    pause: Mutex<Option<Arc<dyn SnapshotPause>>>,
}

impl Device for Snapshotted {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        self.below.channel(depth)
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn shared_image(&self) -> Option<&dyn SharedImage> {
        Some(self)
    }
}

impl SharedImage for Snapshotted {
    fn when_snapshot(&self, pause: Arc<dyn SnapshotPause>) {
        *self.pause.lock().unwrap() = Some(pause);
    }
}

/// A volume that an operator suspends during a snapshot stays suspended after it; and a snapshot of
/// a suspended volume leaves it suspended.
#[test]
fn a_snapshot_and_an_operator_suspend_it_each_for_themselves() {
    let device = Arc::new(Snapshotted { below: RamDevice::new(SIZE), pause: Mutex::default() });
    let mapping = Arc::new(Mapping::new(volume(xts(SectorSize::S4096)), device.clone()).unwrap());
    mapping.pause_for_snapshots();
    let pause = device.pause.lock().unwrap().take().expect("it is asked for");
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = open(&mapping);
            while !stop.load(SeqCst) {
                submit_write(&mut queue, 0, 0, 4096, 1);
                succeed(&mut queue);
                done.fetch_add(1, SeqCst);
            }
        });
        let goes_on = |goes_on: bool, what: &str| {
            assert_eq!(mapping.is_suspended(), !goes_on, "{what}");
            let before = done.load(SeqCst);
            thread::sleep(Duration::from_millis(20));
            // A request may have been over, and not counted yet.
            assert!(goes_on || done.load(SeqCst) <= before + 1, "{what}");
            while goes_on && done.load(SeqCst) < before + 2 {
                thread::sleep(Duration::from_millis(1));
            }
        };
        goes_on(true, "at first");
        assert!(pause.begin());
        goes_on(false, "while it is made");
        pause.end();
        goes_on(true, "afterwards");
        mapping.suspend(LONG).unwrap();
        assert!(pause.begin());
        pause.end();
        goes_on(false, "suspended before");
        assert!(pause.begin());
        mapping.resume().unwrap();
        goes_on(false, "resumed meanwhile");
        assert_eq!(mapping.wipe_key().unwrap_err().kind(), ErrorKind::NotSuspended);
        mapping.suspend(LONG).unwrap();
        pause.end();
        goes_on(false, "suspended meanwhile");
        mapping.resume().unwrap();
        goes_on(true, "at last");
        // Snapshots of several images, or several of one.
        assert!(pause.begin() && pause.begin());
        pause.end();
        mapping.release();
        goes_on(false, "one more is made, also where the volume is being closed");
        pause.end();
        goes_on(true, "after the last one");
        stop.store(true, SeqCst);
    });
    drop(mapping);
    assert!(!pause.begin(), "the volume is closed");
    pause.end();
}

#[test]
fn a_thread_that_sleeps_outside_of_its_ring_is_woken() {
    let mapping = Arc::new(mapping(Arc::new(RamDevice::new(SIZE))));
    let (turn, turns) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = open(&mapping);
            let (wakes, wakeups) = mpsc::channel();
            queue.set_outside_wakeup(move || wakes.send(()).unwrap());
            for _ in 0..2 {
                let sleep = || {
                    turn.send(()).unwrap();
                    wakeups.recv_timeout(LONG)
                };
                assert_eq!(queue.sleep_in(sleep), Some(Ok(())));
            }
            turn.send(()).unwrap();
            while !mapping.is_suspended() {
                queue.poll().unwrap();
            }
            queue.poll().unwrap();
            assert_eq!(wakeups.try_recv(), Err(mpsc::TryRecvError::Empty), "nobody slept");
            queue.submit(0, Request::Read { offset: 0, len: 4096 }).expect("there is room");
            assert_eq!(queue.sleep_in(|| ()), None, "a request is in flight");
        });
        for suspends in [true, false, true] {
            turns.recv_timeout(LONG).unwrap();
            if suspends { mapping.suspend(LONG) } else { mapping.resume() }.unwrap();
        }
    });
}

/// A queue whose client has left does nothing more, also when the volume is resumed later.
#[test]
fn writes_of_a_client_that_is_gone_are_not_made_after_the_suspension() {
    let mapping =
        Arc::new(Mapping::new(volume(xts(SectorSize::S4096)), Arc::new(RamDevice::new(SIZE))).unwrap());
    let [mut gone, mut next] = [open(&mapping), open(&mapping)];
    submit_write(&mut gone, 0, 0, 4096, 1);
    succeed(&mut gone);
    thread::scope(|scope| {
        let suspended = scope.spawn(|| mapping.suspend(LONG).unwrap());
        while !suspended.is_finished() {
            gone.poll().unwrap();
            next.poll().unwrap();
        }
    });
    submit_write(&mut gone, 1, 0, 4096, 2);
    gone.abandon();
    let completion = gone.next_completion().expect("it is given up at once");
    assert_eq!(completion.result.unwrap_err().kind(), ErrorKind::Abandoned);
    mapping.resume().unwrap();
    submit_write(&mut gone, 2, 0, 4096, 3);
    let completion = gone.next_completion().expect("a later request is refused");
    assert_eq!(completion.result.unwrap_err().kind(), ErrorKind::Abandoned);
    assert_eq!(read(&mut next, 0, 4096), [1; 4096]);
}
