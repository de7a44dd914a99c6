//! A disk's timeline: the requests, and the end of each. It reads no clock and moves no data.

use super::DiskCounters;
use super::flash::FlashState;
use super::profile::{Medium, Profile};
use super::rotating::RotatingState;
use underseal_device::{Io, IoKind};

/// The parameters of a request that determine its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskRequest {
    pub(super) kind: IoKind,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) durable: bool,
}

impl From<&Io> for DiskRequest {
    fn from(io: &Io) -> Self {
        let (offset, len) = io.extent();
        Self { kind: io.kind(), offset, len, durable: io.is_durable() }
    }
}

/// The number of a request on the timeline.
pub(super) type DiskCookie = usize;

/// The state of a request at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskProgress {
    Done,
    /// The time before which the state cannot change.
    Until(u64),
}

/// The ends of requests, indexed by [`DiskCookie`].
#[derive(Default)]
pub(super) struct Ends {
    ends: Vec<End>,
    free: Vec<DiskCookie>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The request waits for its turn.
    Unknown,
    At(u64),
    /// The request was abandoned, so no caller asks for its end.
    Abandoned,
}

impl Ends {
    fn take(&mut self) -> DiskCookie {
        if let Some(cookie) = self.free.pop() {
            self.ends[cookie] = End::Unknown;
            return cookie;
        }
        self.ends.push(End::Unknown);
        self.ends.len() - 1
    }

    /// The request ends at `at`.
    pub(super) fn set(&mut self, cookie: DiskCookie, at: u64) {
        match self.ends[cookie] {
            End::Abandoned => self.free.push(cookie),
            _ => self.ends[cookie] = End::At(at),
        }
    }

    fn abandon(&mut self, cookie: DiskCookie) {
        match self.ends[cookie] {
            End::At(_) => self.free.push(cookie),
            _ => self.ends[cookie] = End::Abandoned,
        }
    }
}

/// A disk.
pub(super) struct DiskModel {
    mechanism: Mechanism,
    ends: Ends,
    pub(super) counters: DiskCounters,
}

enum Mechanism {
    Flash(FlashState),
    Rotating(RotatingState),
}

impl DiskModel {
    /// Returns a disk of `size` bytes, or `None` when it takes no time.
    pub(super) fn new(profile: &Profile, size: u64) -> Option<Self> {
        let mechanism = match profile.medium {
            Medium::Memory => return None,
            Medium::Flash(flash) => Mechanism::Flash(FlashState::new(flash)),
            Medium::Rotating(rotating) => Mechanism::Rotating(RotatingState::new(rotating, size)),
        };
        Some(Self { mechanism, ends: Ends::default(), counters: DiskCounters::default() })
    }

    /// Accepts a request. Time must not decrease from call to call.
    pub(super) fn submit(&mut self, now: u64, request: DiskRequest) -> DiskCookie {
        let cookie = self.ends.take();
        self.counters.requests += 1;
        match &mut self.mechanism {
            Mechanism::Flash(flash) => {
                let end = flash.serve(now, request.kind, request.len, &mut self.counters);
                self.ends.set(cookie, end);
            }
            Mechanism::Rotating(disk) => {
                disk.submit(now, request, cookie, &mut self.ends, &mut self.counters)
            }
        }
        cookie
    }

    /// The state of a request at `now`. When the request is done, its number is free again.
    pub(super) fn poll(&mut self, now: u64, cookie: DiskCookie) -> DiskProgress {
        let next = match &mut self.mechanism {
            Mechanism::Flash(_) => now,
            Mechanism::Rotating(disk) => {
                disk.advance(now, &mut self.ends, &mut self.counters);
                disk.next_dispatch().unwrap_or(now)
            }
        };
        match self.ends.ends[cookie] {
            End::At(end) if end <= now => {
                self.ends.free.push(cookie);
                DiskProgress::Done
            }
            End::At(end) => DiskProgress::Until(end),
            End::Unknown | End::Abandoned => DiskProgress::Until(next.max(now + 1)),
        }
    }

    /// Abandons a request: no caller asks for it again.
    pub(super) fn abandon(&mut self, cookie: DiskCookie) {
        self.ends.abandon(cookie);
    }
}
