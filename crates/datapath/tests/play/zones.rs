//! The player of a volume in zones: it fills its zones from the front, reads them, and empties
//! them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use underseal_datapath::{Completion, Mapping, Queue, Request};

use super::dice::Dice;
use super::disk::fill;
use super::lower::ZONE;
use super::round::{Setup, Shared};

struct Player<'r> {
    shared: &'r Shared,
    queue: Queue,
    dice: Dice,
    zones: Vec<Zone>,
    /// Sent requests, by tag.
    sent: HashMap<u64, Sent>,
    next: u64,
    checked: u64,
}

struct Zone {
    start: u64,
    /// Writes by offset in the zone, in order of submission.
    writes: Vec<(u64, u64, u64)>,
    /// The offset up to which writes are acknowledged.
    acknowledged: u64,
    /// The zone is being emptied.
    goes: bool,
    /// How often the zone was emptied.
    emptied: u64,
}

enum Sent {
    Write { zone: usize, end: u64 },
    Read { zone: usize, from: u64, emptied: u64 },
    Empty { zone: usize },
    Flush,
}

impl Zone {
    fn pointer(&self) -> u64 {
        self.writes.last().map_or(0, |(from, len, _)| from + len)
    }
}

/// Plays until the round ends. Returns the numbers of blocks of 512 bytes and of requests.
pub(crate) fn play(setup: &Setup, shared: &Shared, mapping: &Arc<Mapping>, number: u64) -> (u64, u64) {
    let own = |zone: &u64| zone % setup.threads == number;
    let zones = (0..setup.size / ZONE).filter(own).map(|zone| Zone {
        start: zone * ZONE,
        writes: Vec::new(),
        acknowledged: 0,
        goes: false,
        emptied: 0,
    });
    let mut player = Player {
        shared,
        queue: Queue::open(mapping.clone(), setup.queue).unwrap(),
        dice: Dice::of(setup.seed, 100 + number),
        zones: zones.collect(),
        sent: HashMap::new(),
        next: 0,
        checked: 0,
    };
    while !shared.stop.load(SeqCst) {
        for _ in 0..1 + player.dice.below(8) {
            if !player.send(setup, mapping.block().into()) {
                break;
            }
        }
        player.take();
        if player.queue.in_flight() > 0 {
            player.queue.wait().unwrap();
            player.take();
        }
    }
    while player.queue.in_flight() > 0 {
        player.queue.wait().unwrap();
        player.take();
    }
    player.take();
    assert!(player.sent.is_empty(), "every request was answered");
    (player.checked, player.next)
}

impl Player<'_> {
    /// Sends a request. False when the queue had no room.
    fn send(&mut self, setup: &Setup, block: u64) -> bool {
        let zone = usize::try_from(self.dice.below(self.zones.len() as u64)).unwrap();
        let most = setup.queue.max_request as u64;
        let Zone { start, ref writes, acknowledged, goes, emptied } = self.zones[zone];
        let (pointer, idle) = (self.zones[zone].pointer(), acknowledged == self.zones[zone].pointer());
        let room = (ZONE - pointer) / block;
        let (request, sent) = match self.dice.below(10) {
            _ if goes => return true,
            0..6 if room > 0 => {
                let len = self.dice.length((most / block).min(room)) * block;
                let Some(mut data) = self.queue.alloc(usize::try_from(len).unwrap()) else { return false };
                let stamp = self.dice.next() | 1;
                fill(&mut data, start + pointer, stamp);
                self.zones[zone].writes.push((pointer, len, stamp));
                let durable = self.dice.one_in(8);
                (
                    Request::Write { offset: start + pointer, data, durable },
                    Sent::Write { zone, end: pointer + len },
                )
            }
            6..9 if acknowledged > 0 => {
                let done: Vec<_> =
                    writes.iter().filter(|(from, len, _)| from + len <= acknowledged).collect();
                let (from, len, _) = *self.dice.pick(&done);
                (
                    Request::Read { offset: start + from, len: usize::try_from(len).unwrap() },
                    Sent::Read { zone, from, emptied },
                )
            }
            9 if idle && pointer > 0 && (room == 0 || self.dice.one_in(20)) => {
                self.zones[zone].goes = true;
                (Request::Discard { offset: start, len: ZONE, durable: false }, Sent::Empty { zone })
            }
            _ => (Request::Flush, Sent::Flush),
        };
        self.next += 1;
        match self.queue.submit(self.next, request) {
            Ok(()) => {
                self.sent.insert(self.next, sent);
                true
            }
            Err(refused) => {
                match sent {
                    Sent::Write { zone, .. } => drop(self.zones[zone].writes.pop()),
                    Sent::Empty { zone } => self.zones[zone].goes = false,
                    _ => {}
                }
                if let Request::Write { data, .. } = refused {
                    self.queue.free(data);
                }
                false
            }
        }
    }

    fn take(&mut self) {
        while let Some(Completion { tag, result, buffer }) = self.queue.next_completion() {
            result.unwrap_or_else(|e| panic!("no request fails here: {e}"));
            match self.sent.remove(&tag).expect("a request is answered once") {
                Sent::Write { zone, end } => {
                    let zone = &mut self.zones[zone];
                    assert!(zone.acknowledged < end, "writes to a zone end in their order");
                    zone.acknowledged = end;
                }
                // A zone that was emptied since may have any contents.
                Sent::Read { zone, from, emptied } if self.zones[zone].emptied == emptied => {
                    self.check(zone, from, buffer.as_deref().unwrap());
                }
                Sent::Read { .. } => {}
                Sent::Empty { zone } => {
                    let zone = &mut self.zones[zone];
                    (zone.acknowledged, zone.goes) = (0, false);
                    zone.emptied += 1;
                    zone.writes.clear();
                }
                Sent::Flush => {}
            }
            buffer.into_iter().for_each(|buffer| self.queue.free(buffer));
        }
        self.shared.progress.fetch_add(1, SeqCst);
    }

    fn check(&mut self, zone: usize, from: u64, data: &[u8]) {
        let zone = &self.zones[zone];
        if zone.goes {
            return;
        }
        let (_, len, stamp) = zone.writes.iter().find(|(at, ..)| *at == from).expect("it was written");
        let mut expected = vec![0; data.len()];
        fill(&mut expected, zone.start + from, *stamp);
        assert!(data == expected, "{} + {}: not what was written", zone.start + from, data.len());
        self.checked += len / 512;
    }
}
