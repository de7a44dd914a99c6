//! A ring that runs: how the session talks to the thread that serves it.

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

/// What a ring has when it starts.
pub(super) struct Start {
    pub(super) name: String,
    pub(super) mapping: Arc<Mapping>,
    pub(super) memory: Arc<Memory>,
    pub(super) ring: Ring,
    /// The next available head, unless the tracker knows better.
    pub(super) base: u16,
    pub(super) tracker: Option<Tracker>,
    pub(super) kick: File,
    pub(super) call: Option<Signal>,
    pub(super) error: Option<Signal>,
    pub(super) serial: [u8; SERIAL],
    /// Without a cache to flush, every write is on stable storage when it is answered.
    pub(super) durable: bool,
    /// It rests until it is told to go on.
    pub(super) rests: bool,
}

/// What a running ring is told.
pub(super) enum Order {
    Call(Option<Signal>),
    Error(Option<Signal>),
    Memory(Arc<Memory>, SyncSender<()>),
    /// Take no more, and say so when all that was taken is answered.
    Rest(SyncSender<Rested>),
    /// As before that.
    GoOn,
    /// Take no more, and end when all that was taken is answered.
    Stop,
    /// The same, for a front end that is gone: what waits for a suspended volume is given up.
    Leave,
}

/// A ring at rest.
pub(super) struct Rested {
    /// The next available head.
    pub(super) next: u16,
    /// It made no sense, and serves nobody any more.
    pub(super) broken: bool,
}

/// Says that there are orders: to a thread that sleeps by a descriptor, and to one that never does
/// by a flag.
pub(super) struct Bell {
    rung: AtomicBool,
    event: OwnedFd,
}

impl Bell {
    fn new() -> io::Result<Self> {
        Ok(Self { rung: AtomicBool::new(false), event: event()? })
    }

    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        raise(&self.event, 1);
    }

    /// Whether it was rung since this was last asked.
    pub(super) fn was_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed) && self.rung.swap(false, Ordering::Acquire)
    }

    /// Makes the descriptor wait for the next time.
    pub(super) fn still(&self) {
        still(&self.event);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A ring that runs.
pub(super) struct Running {
    orders: Sender<Order>,
    bell: Arc<Bell>,
    thread: JoinHandle<u16>,
}

impl Running {
    /// Starts a ring.
    ///
    /// # Errors
    /// When there is no descriptor, memory or thread for it.
    pub(super) fn start(start: Start) -> io::Result<Self> {
        let bell = Arc::new(Bell::new()?);
        let (orders, inbox) = channel();
        let (ready, begun) = sync_channel(1);
        let rung = bell.clone();
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
        begun.map(|()| Self { orders, bell, thread })
    }

    pub(super) fn set_call(&self, call: Option<Signal>) {
        self.tell(Order::Call(call));
    }

    pub(super) fn set_error(&self, error: Option<Signal>) {
        self.tell(Order::Error(error));
    }

    /// Returns when the ring has let go of the memory that it had.
    pub(super) fn set_memory(&self, memory: Arc<Memory>) {
        let (seen, wait) = sync_channel(1);
        self.tell(Order::Memory(memory, seen));
        // An error means that the thread is gone, and with it the memory.
        let _ = wait.recv();
    }

    /// Asks it to rest. What is heard when it does; an error means that its thread is gone.
    pub(super) fn ask_to_rest(&self) -> Receiver<Rested> {
        let (tell, heard) = sync_channel(1);
        self.tell(Order::Rest(tell));
        heard
    }

    /// Lets it go on.
    pub(super) fn go_on(&self) {
        self.tell(Order::GoOn);
    }

    /// Asks it to end; `gone`: nobody is there any more who waits for it.
    pub(super) fn ask_to_end(&self, gone: bool) {
        self.tell(if gone { Order::Leave } else { Order::Stop });
    }

    /// Waits until it has ended. The next available head.
    pub(super) fn join(self) -> Option<u16> {
        self.thread.join().ok()
    }

    fn tell(&self, order: Order) {
        // A thread that is gone needs no orders.
        let _ = self.orders.send(order);
        self.bell.ring();
    }
}
