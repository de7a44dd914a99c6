//! A server that dies at each message of a conversation, and forgets unflushed writes.
//!
//! `UNDERSEAL_NBD_CRASH_SEEDS=N` tries N conversations instead of one.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;

use super::{Behaviour, Server, open};
use underseal_device::Blocking;
use underseal_nbd_protocol::TransmissionFlags as Flags;
use underseal_testing::PATIENCE;

const BLOCK: usize = 512;
const BLOCKS: u64 = 8;
const STEPS: u8 = 20;
const CHANNELS: usize = 2;

/// A generator of numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// The client's guarantees: the oldest version that each block may have.
#[derive(Default)]
struct Promised {
    least: BTreeMap<u64, u8>,
    /// For each channel, the acknowledged writes since its last flush ended.
    pending: [BTreeMap<u64, u8>; CHANNELS],
    told: u32,
}

impl Promised {
    fn flush(&mut self, number: usize, channel: &mut Blocking) -> bool {
        let flushed = channel.flush().is_ok();
        let pending = std::mem::take(&mut self.pending[number]);
        if flushed {
            for (block, version) in pending {
                let least = self.least.entry(block).or_default();
                *least = version.max(*least);
            }
        } else {
            self.told += 1;
        }
        flushed
    }

    fn check(&self, block: u64, found: &[u8], when: &str) {
        let least = self.least.get(&block).copied().unwrap_or(0);
        assert!(found.iter().all(|&byte| byte == found[0]), "{when}: block {block} is torn");
        assert!(
            found[0] >= least,
            "{when}: block {block} is of step {}, and step {least} was flushed",
            found[0]
        );
    }
}

/// Runs the conversation. Returns the number of its messages, and of failed flushes.
fn converse(seed: u64, flags: Flags, crashes_at: (u64, bool)) -> (u64, u32) {
    let size = BLOCK * usize::try_from(BLOCKS).unwrap();
    let server = Server::start(Behaviour {
        forgets: true,
        crashes_at: Some(crashes_at),
        ..Behaviour::plain(size).without(flags)
    });
    // The first connection is the opening's, which is not repeated.
    server.inner.behaviour.lock().unwrap().crashes_at = None;
    let device = open(&server, "");
    server.inner.behaviour.lock().unwrap().crashes_at = Some(crashes_at);
    let mut channels = [(); CHANNELS].map(|()| Blocking::new(&device).unwrap());
    let (mut dice, mut promised) = (Dice(seed), Promised::default());
    for step in 1..=STEPS {
        let (number, block) = (usize::try_from(dice.below(CHANNELS as u64)).unwrap(), dice.below(BLOCKS));
        let (channel, offset) = (&mut channels[number], block * BLOCK as u64);
        match dice.below(8) {
            0..4 => {
                channel.write(offset, &[step; BLOCK], false).unwrap();
                for pending in &mut promised.pending {
                    pending.insert(block, step);
                }
            }
            4 => {
                channel.write(offset, &[step; BLOCK], true).unwrap();
                promised.least.insert(block, step);
                for pending in &mut promised.pending {
                    pending.remove(&block);
                }
            }
            5 => {
                let mut found = [0; BLOCK];
                channel.read(offset, &mut found).unwrap();
                promised.check(block, &found, "read");
            }
            _ => {
                promised.flush(number, channel);
            }
        }
    }
    for (number, channel) in channels.iter_mut().enumerate() {
        let flushed = promised.flush(number, channel) || promised.flush(number, channel);
        assert!(flushed, "a loss is told of once");
    }
    let messages = server.inner.messages.load(Ordering::SeqCst);
    server.vanish();
    let memory = server.memory();
    for (block, found) in (0..).zip(memory.chunks(BLOCK)) {
        promised.check(block, found, "at the end");
    }
    (messages, promised.told)
}

fn every_crash(seed: u64, flags: Flags) {
    let (messages, told) = converse(seed, flags, (u64::MAX, false));
    assert_eq!(told, 0, "nothing was lost");
    let mut all = 0;
    for message in 0..messages {
        for after in [false, true] {
            let (tell, end) = mpsc::channel();
            thread::spawn(move || tell.send(converse(seed, flags, (message, after))));
            let what = format!("seed {seed}, without {flags:?}, message {message}, after it: {after}");
            match end.recv_timeout(PATIENCE) {
                Ok((_, told)) => all += told,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
                Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{what}: it failed, as is said above"),
            }
        }
    }
    assert!(flags.contains(Flags::SEND_FLUSH) || all > 0, "some lost writes were told of");
}

#[test]
fn what_was_flushed_is_there_or_a_flush_failed_at_whichever_message_the_server_dies() {
    let seeds = std::env::var("UNDERSEAL_NBD_CRASH_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in 1..=seeds {
        for flags in [Flags::empty(), Flags::CAN_MULTI_CONN, Flags::SEND_FUA] {
            every_crash(seed, flags);
        }
    }
}
