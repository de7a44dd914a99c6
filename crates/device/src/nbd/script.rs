//! A server's bytes without a server: for fuzzing, and for a test with random bytes.

use rustix::io::Errno;
use underseal_nbd_protocol::TransmissionFlags;

use super::flight::NbdRequest;
use super::handshake::{ClientHandshake, ServerExport};
use super::replies::{ReceiveOutcome, ReplyInbox, ReplyOutcome, ReplySource};
use crate::{Arena, Io};

/// The offset and length of a read; a write and a flush follow it.
const READ: (u64, usize) = (8192, 4096);
/// Bytes around the read's buffer, which no server may change.
const AROUND: usize = 512;
/// The generation in the cookies of the three requests.
const GENERATION: u32 = 7;

/// Feeds a server's bytes to the handshake, and returns the export, if there is one.
pub fn negotiate(said: &[u8], wants_allocation: bool) -> Option<ServerExport> {
    let mut handshake = ClientHandshake::new("export", wants_allocation);
    let mut rest = said;
    let mut message = Vec::new();
    let mut sent = 0;
    loop {
        sent += handshake.take_output().len();
        assert!(sent < 4096, "{sent} bytes were said to a server");
        let wants = handshake.wants(&message).ok()?;
        if wants == 0 {
            let export = handshake.take(&message).ok()?;
            message.clear();
            if export.is_some() {
                return export;
            }
            continue;
        }
        message.extend(rest.split_off(..wants)?);
        assert!(message.len() <= 20 + (16 << 10), "{} bytes are kept of one message", message.len());
    }
}

/// Feeds a server's bytes to three requests, in portions, and returns the number of successes.
pub fn answers(said: &[u8], structured: bool, portion: usize) -> usize {
    let Ok(mut arena) = Arena::new(1 << 20) else { return 0 };
    let export = ServerExport {
        size: 1 << 20,
        flags: TransmissionFlags::all(),
        min_block: 512,
        preferred_block: 4096,
        max_block: 1 << 20,
        structured,
        allocation: None,
    };
    let mut buffer = |fill| {
        let mut buffer = arena.alloc(READ.1 + 2 * AROUND);
        buffer.iter_mut().for_each(|b| b.fill(fill));
        buffer
    };
    let (Some(to), Some(from)) = (buffer(0xee), buffer(0x77)) else { return 0 };
    let range = AROUND..AROUND + READ.1;
    let requests = [
        Io::Read { offset: READ.0, buffer: to, range: range.clone() },
        Io::Write { offset: 0, buffer: from, range, durable: true },
        Io::Flush,
    ];
    let mut flights: Vec<Option<NbdRequest>> = (0..)
        .zip(requests)
        .map(|(slot, io)| {
            let mut flight = NbdRequest::new(0, slot, io, u64::from(slot));
            flight.ask(&export, 0, GENERATION);
            flight.is_sent = true;
            Some(flight)
        })
        .collect();

    let mut inbox = ReplyInbox::new();
    let mut script = Script { said, portion: portion.max(1) };
    let mut done = 0;
    while !matches!(inbox.receive(&mut script, &mut flights), Ok(ReceiveOutcome::End) | Err(_)) {
        loop {
            match inbox.next(&mut flights, structured) {
                Ok(None) => break,
                Ok(Some((index, answer))) => {
                    let flight = flights[index].take();
                    flight.into_iter().for_each(look);
                    done += usize::from(answer == ReplyOutcome::Done);
                }
                Err(_) => {
                    flights.into_iter().flatten().for_each(look);
                    return done;
                }
            }
        }
    }
    flights.into_iter().flatten().for_each(look);
    done
}

/// Checks that the bytes around a read's buffer, and those of a write, are unchanged.
fn look(flight: NbdRequest) {
    let (slot, (_, finished)) = (flight.slot, flight.over(Ok(())));
    let Some(buffer) = finished.buffer else { return };
    let (before, rest) = buffer.split_at(AROUND);
    let (inside, behind) = rest.split_at(READ.1);
    let (outside, written) = if slot == 0 { (0xee, false) } else { (0x77, true) };
    assert!(before.iter().chain(behind).all(|&b| b == outside));
    assert!(!written || inside.iter().all(|&b| b == outside));
}

struct Script<'a> {
    said: &'a [u8],
    portion: usize,
}

impl ReplySource for Script<'_> {
    fn fill(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Errno> {
        let len = self.portion.min(self.said.len()).min(first.len() + second.len());
        let (now, later) = self.said.split_at(len);
        self.said = later;
        let (to_first, to_second) = now.split_at(first.len().min(len));
        first[..to_first.len()].copy_from_slice(to_first);
        second[..to_second.len()].copy_from_slice(to_second);
        Ok(len)
    }
}

/// Makes replies with right magics and cookies from any bytes: ten of them choose each reply, and
/// data follows.
pub fn replies(mut dice: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    while let Some((&[kind, request, flags, at, length, a, b, c, d, data], rest)) = dice.split_first_chunk() {
        let cookie = (u64::from(GENERATION) << 32 | u64::from(request % 4)).to_be_bytes();
        dice = rest;
        if kind % 8 == 7 {
            let error = u32::from(flags % 3) * 5;
            said.extend([&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie].concat());
        } else {
            let kinds = [0_u16, 1, 1, 2, 5, 0x8001, 0x8002];
            let kind = kinds[usize::from(kind % 8)];
            let offset = READ.0.wrapping_add(u64::from(at) * 64).wrapping_sub(if a == 255 { 64 } else { 0 });
            let part = u32::from(length) * 64 + u32::from(b == 255);
            let body = match kind {
                1 => [&offset.to_be_bytes()[..], &vec![data; part as usize]].concat(),
                2 => [&offset.to_be_bytes()[..], &part.to_be_bytes()].concat(),
                5 => vec![data; 12],
                0 => Vec::new(),
                _ => vec![data; usize::from(length)],
            };
            let len = u32::try_from(body.len()).unwrap_or(0).wrapping_sub(u32::from(c == 255));
            let head = [&0x668e_33ef_u32.to_be_bytes()[..], &u16::from(flags & 1).to_be_bytes()];
            said.extend(
                [&head.concat(), &kind.to_be_bytes()[..], &cookie, &len.to_be_bytes(), &body].concat(),
            );
        }
        if d == 255 {
            said.push(data);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dice() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..200)
    }

    proptest! {
        #[test]
        fn any_replies_are_taken_without_harm(dice in dice(), structured in any::<bool>(), portion in 1usize..5000) {
            let (whole, portions) = (answers(&replies(&dice), structured, usize::MAX), answers(&replies(&dice), structured, portion));
            prop_assert_eq!(whole, portions, "however the bytes come");
            answers(&dice, structured, portion);
        }

        #[test]
        fn any_handshake_is_taken_without_harm(dice in dice(), wants in any::<bool>()) {
            negotiate(&dice, wants);
            negotiate(&[b"NBDMAGICIHAVEOPT\0\x03", &dice[..]].concat(), wants);
        }
    }

    #[test]
    fn dice_can_fall_well() {
        // A hole in the first half and data in the second, the write's reply, a simple reply to the
        // flush.
        let dice = [
            [3, 0, 0, 0, 32, 0, 0, 0, 0, 0],
            [1, 0, 1, 32, 32, 0, 0, 0, 0, 9],
            [0, 1, 1, 0, 0, 0, 0, 0, 0, 0],
            [7, 2, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(answers(&replies(&dice.concat()), true, 100), 3);
    }
}
