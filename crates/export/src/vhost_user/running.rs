//! A running ring, as the session sees it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use underseal_datapath::Mapping;
use underseal_device::Signal;

use super::guest::Memory;
use super::inflight::Tracker;
use super::request::SERIAL;
use super::ring::Ring;
use super::worker::Worker;
use crate::event::{event, raise, still};

/// The parameters of a ring's start.
pub(super) struct Start {
    pub(super) name: String,
    pub(super) mapping: Arc<Mapping>,
    pub(super) memory: Arc<Memory>,
    pub(super) ring: Ring,
    /// The next available head, unless the tracker has a later one.
    pub(super) base: u16,
    pub(super) tracker: Option<Tracker>,
    pub(super) kick: File,
    pub(super) call: Option<Signal>,
    pub(super) error: Option<Signal>,
    pub(super) serial: [u8; SERIAL],
    /// True when every write must be on stable storage before its answer: the driver does not
    /// flush.
    pub(super) durable: bool,
    /// True when the ring starts paused.
    pub(super) rests: bool,
}

/// An order to a running ring.
pub(super) enum Order {
    Call(Option<Signal>),
    Error(Option<Signal>),
    Memory(Arc<Memory>, SyncSender<()>),
    /// Pauses the ring, and reports when all requests taken are answered.
    Rest(SyncSender<Rested>),
    /// Resumes the ring.
    GoOn,
    /// Takes no more requests, and ends when all those taken are answered.
    Stop,
    /// Ends as `Stop` does, for a front end that has disconnected: requests that wait for a
    /// suspended volume are dropped.
    Leave,
}

/// The state of a paused ring.
pub(super) struct Rested {
    /// The next available head.
    pub(super) next: u16,
    /// True when the ring was malformed, and is not served any more.
    pub(super) broken: bool,
}

/// A wakeup for orders: a descriptor wakes a sleeping thread, a flag reaches a thread that never
/// sleeps.
pub(super) struct RingWakeup {
    rung: AtomicBool,
    event: OwnedFd,
}

impl RingWakeup {
    fn new() -> io::Result<Self> {
        Ok(Self { rung: AtomicBool::new(false), event: event()? })
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        raise(&self.event, 1);
    }

    /// Returns true when the wakeup was raised since the last call.
    pub(super) fn was_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Acquire)
    }

    /// Resets the descriptor.
    pub(super) fn still(&self) {
        still(&self.event);
    }
}

impl AsFd for RingWakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A running ring.
pub(super) struct Running {
    orders: Sender<Order>,
    wakeup: Arc<RingWakeup>,
    thread: JoinHandle<u16>,
}

impl Running {
    /// Starts a ring. Fails when the system has no descriptor, memory or thread for it.
    pub(super) fn start(start: Start) -> io::Result<Self> {
        let wakeup = Arc::new(RingWakeup::new()?);
        let (orders, inbox) = channel();
        let (ready, begun) = sync_channel(1);
        let rung = wakeup.clone();
        let thread = thread::Builder::new().name(start.name.clone()).spawn(move || {
            let base = start.base;
            match Worker::new(start, inbox, rung) {
                Ok(worker) => {
                    let _ = ready.send(Ok(()));
                    drop(ready);
                    worker.run()
                }
                Err(e) => {
                    let _ = ready.send(Err(e));
                    base
                }
            }
        })?;
        let begun = begun.recv().unwrap_or_else(|_| Err(io::Error::other("its thread ended")));
        begun.map(|()| Self { orders, wakeup, thread })
    }

    pub(super) fn set_call(&self, call: Option<Signal>) {
        self.tell(Order::Call(call));
    }

    pub(super) fn set_error(&self, error: Option<Signal>) {
        self.tell(Order::Error(error));
    }

    /// Replaces the memory, and returns when the ring has dropped its old memory.
    pub(super) fn set_memory(&self, memory: Arc<Memory>) {
        let (seen, wait) = sync_channel(1);
        self.tell(Order::Memory(memory, seen));
        // An error means that the thread has ended, and has dropped its memory.
        let _ = wait.recv();
    }

    /// Asks the ring to pause. The receiver gets its state when it has; an error means that its
    /// thread has ended.
    pub(super) fn ask_to_rest(&self) -> Receiver<Rested> {
        let (tell, heard) = sync_channel(1);
        self.tell(Order::Rest(tell));
        heard
    }

    /// Resumes the ring.
    pub(super) fn go_on(&self) {
        self.tell(Order::GoOn);
    }

    /// Asks the ring to end; `gone` means that the front end has disconnected.
    pub(super) fn ask_to_end(&self, gone: bool) {
        self.tell(if gone { Order::Leave } else { Order::Stop });
    }

    /// Waits until the ring has ended, and returns the next available head.
    pub(super) fn join(self) -> Option<u16> {
        self.thread.join().ok()
    }

    fn tell(&self, order: Order) {
        // A thread that has ended needs no orders.
        let _ = self.orders.send(order);
        self.wakeup.ring();
    }
}
