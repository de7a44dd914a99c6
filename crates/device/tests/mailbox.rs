//! Every interleaving of a mailbox's owner and its senders, by the model checker loom.

// The crate and `mailbox.rs` both use these names.
#[path = "../src/mailbox.rs"]
#[allow(unreachable_pub, reason = "a part of the crate's interface")]
mod mailbox;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

use std::collections::VecDeque;

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use mailbox::Mailbox;

/// The wakeup of a thread: set until the thread waits for it.
struct TestWakeup(Mutex<bool>, Condvar);

impl TestWakeup {
    fn new() -> Self {
        Self(Mutex::new(false), Condvar::new())
    }

    fn notify(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn wait(&self) {
        let mut rings = self.0.lock().unwrap();
        while !*rings {
            rings = self.1.wait(rings).unwrap();
        }
        *rings = false;
    }
}

/// Tries the interleavings with at most three preemptions: all interleavings take minutes, and
/// found nothing more.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// The owner, as a queue's thread: sleeps when it may, and is woken through a descriptor.
fn receive(mailbox: &Mailbox<u32>, wakeup: &TestWakeup, count: usize) -> Vec<u32> {
    let (mut all, mut some) = (Vec::new(), VecDeque::new());
    while all.len() < count {
        mailbox.take(&mut some);
        all.extend(some.drain(..));
        if all.len() < count && mailbox.may_sleep(|| false) {
            // If the wakeup never came, loom would find a deadlock here.
            wakeup.wait();
            mailbox.awake();
        }
    }
    all
}

#[test]
fn nothing_that_is_sent_is_lost_or_left_lying() {
    explore(|| {
        let (mailbox, wakeup) = (Arc::new(Mailbox::new(4)), Arc::new(TestWakeup::new()));
        let senders: Vec<_> = [1, 2]
            .map(|item| {
                let (mailbox, wakeup) = (mailbox.clone(), wakeup.clone());
                thread::spawn(move || {
                    if mailbox.send(item) {
                        wakeup.notify();
                    }
                })
            })
            .into_iter()
            .collect();
        let mut all = receive(&mailbox, &wakeup, 2);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        senders.into_iter().for_each(|s| s.join().unwrap());
    });
}

#[test]
fn what_one_sends_arrives_in_order() {
    explore(|| {
        let (mailbox, wakeup) = (Arc::new(Mailbox::new(4)), Arc::new(TestWakeup::new()));
        let sender = {
            let (mailbox, wakeup) = (mailbox.clone(), wakeup.clone());
            thread::spawn(move || {
                for item in [1, 2] {
                    if mailbox.send(item) {
                        wakeup.notify();
                    }
                }
            })
        };
        assert_eq!(receive(&mailbox, &wakeup, 2), [1, 2]);
        sender.join().unwrap();
    });
}

#[test]
fn a_change_that_is_announced_is_seen_before_the_owner_sleeps_on() {
    explore(|| {
        let (mailbox, wakeup) = (Arc::new(Mailbox::<u32>::new(1)), Arc::new(TestWakeup::new()));
        let version = Arc::new(AtomicU32::new(0));
        let changer = {
            let (mailbox, wakeup, version) = (mailbox.clone(), wakeup.clone(), version.clone());
            thread::spawn(move || {
                version.store(1, Ordering::SeqCst);
                if mailbox.rouse() {
                    wakeup.notify();
                }
            })
        };
        while version.load(Ordering::SeqCst) == 0 {
            if mailbox.may_sleep(|| version.load(Ordering::SeqCst) != 0) {
                wakeup.wait();
                mailbox.awake();
            }
        }
        changer.join().unwrap();
    });
}
