//! Writers that remember what was acknowledged.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::bytes;
use crate::support::nbd::{Client, Command};

/// Where one writer writes: places of this many bytes, round and round.
const PLACE: usize = 16 << 10;
const PLACES: usize = 64;
/// Requests in flight of one writer.
const DEPTH: usize = 16;

/// A writer, with its record of its part of the volume.
pub(crate) struct Writer<'c> {
    number: u64,
    /// The number of acknowledged writes, for the thread that watches the writer.
    count: &'c AtomicU64,
    /// Of each place: the round that was last sent, acknowledged, and acknowledged before a flush
    /// that was too.
    places: Vec<Place>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    sent: u64,
    acknowledged: u64,
    flushed: u64,
}

/// Bytes of the volume that `writers` writers need.
pub(crate) const fn volume_size(writers: u64) -> u64 {
    writers * (PLACE * PLACES) as u64
}

impl<'c> Writer<'c> {
    pub(crate) fn new(number: u64, count: &'c AtomicU64) -> Self {
        Self { number, count, places: vec![Place::default(); PLACES] }
    }

    fn offset(&self, place: usize) -> u64 {
        volume_size(self.number) + (place * PLACE) as u64
    }

    fn content(&self, place: usize, round: u64) -> Vec<u8> {
        if round == 0 {
            return vec![0; PLACE];
        }
        bytes(self.offset(place) ^ round << 40, PLACE)
    }

    /// Writes until the server goes away, with many requests in flight and a flush now and then.
    pub(crate) fn write_until_cut_off(&mut self, socket: &Path) {
        let mut client = Client::connect(socket).unwrap();
        let mut next: u64 = 0;
        let mut in_flight = VecDeque::new();
        loop {
            let cookie = next + 1;
            let place = usize::try_from(next).unwrap() % PLACES;
            let round = next / PLACES as u64 + 1;
            let sent = if next % 100 == 99 {
                // A flush covers the writes that were acknowledged before it was sent.
                let before: Vec<_> = self.places.iter().map(|place| place.acknowledged).collect();
                in_flight.push_back((cookie, None, before));
                std::io::Write::write_all(&mut client.stream, &Client::header(Command::Flush, cookie, 0, 0))
            } else {
                self.places[place].sent = round;
                in_flight.push_back((cookie, Some((place, round)), Vec::new()));
                client.send_write(cookie, self.offset(place), &self.content(place, round))
            };
            next += 1;
            // A server that stops reads no more requests, but answers the ones that it has taken.
            let cut_off = sent.is_err();
            while in_flight.len() >= DEPTH || (cut_off && !in_flight.is_empty()) {
                let Ok((cookie, error)) = client.reply() else { return };
                assert_eq!(error, 0, "request {cookie}");
                let index =
                    in_flight.iter().position(|(c, ..)| *c == cookie).expect("a cookie that was sent");
                let (_, write, before) = in_flight.remove(index).unwrap();
                match write {
                    Some((place, round)) => {
                        self.places[place].acknowledged = round;
                        self.count.fetch_add(1, Ordering::Relaxed);
                    }
                    None => self.places.iter_mut().zip(before).for_each(|(p, round)| p.flushed = round),
                }
            }
            if cut_off {
                return;
            }
        }
    }

    /// Checks the volume's plain bytes: each place has its acknowledged write, or the one that was
    /// sent after it.
    pub(crate) fn check(&self, volume: &[u8]) {
        for (number, place) in self.places.iter().enumerate() {
            assert!(place.flushed <= place.acknowledged && place.acknowledged <= place.sent);
            let at = usize::try_from(self.offset(number)).unwrap();
            let found = &volume[at..at + PLACE];
            if place.acknowledged == place.sent {
                assert!(found == self.content(number, place.sent), "place {number}: {place:?} is not there");
                continue;
            }
            // A write that was not acknowledged may be there in part.
            let (old, new) = (self.content(number, place.acknowledged), self.content(number, place.sent));
            let blocks = found.chunks(512).zip(old.chunks(512).zip(new.chunks(512)));
            for (i, (found, (old, new))) in blocks.enumerate() {
                let fresh = place.acknowledged == 0;
                assert!(
                    fresh || found == old || found == new,
                    "place {number}, sector {i}: {place:?} is not there"
                );
            }
        }
    }
}
