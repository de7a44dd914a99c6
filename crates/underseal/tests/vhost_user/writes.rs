//! Writes by all slots, each to a separate place, and the contents of the places at the end.

use crate::support::bytes;
use crate::support::scratch::assert_same;
use crate::vhost_user::front::{Front, IN, OUT, SLOTS, data};

const OK: u8 = 0;

pub(crate) struct Writes {
    len: usize,
    random: fastrand::Rng,
    /// The seed of each slot's present write: the contents of its place at the end.
    model: [u64; SLOTS],
    free: Vec<usize>,
}

impl Writes {
    /// Writes of `len` bytes each.
    pub(crate) fn new(len: usize, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { len, random, model: [0; SLOTS], free: (0..SLOTS).collect() }
    }

    /// Lets every free slot write, and takes completions.
    pub(crate) fn more(&mut self, front: &mut Front) {
        while let Some(slot) = self.free.pop() {
            self.model[slot] = self.random.u64(..);
            front.put(data(slot), &bytes(self.model[slot], self.len));
            front.ask(slot, OUT, self.place(slot), self.len);
        }
        while let Some((head, _)) = front.take() {
            self.done(front, head);
        }
    }

    /// Waits for all writes. Each place then has its last write.
    pub(crate) fn finish(mut self, front: &mut Front) {
        while self.free.len() < SLOTS {
            let (head, _) = front.next();
            self.done(front, head);
        }
        assert_eq!(front.take(), None);
        for (slot, &seed) in self.model.iter().enumerate() {
            assert_eq!(front.does(IN, self.place(slot), self.len), OK);
            assert_same(&front.get(data(0), self.len), &bytes(seed, self.len), &format!("slot {slot}"));
        }
    }

    fn done(&mut self, front: &Front, head: u16) {
        let slot = usize::from(head) / 3;
        assert_eq!(front.status(slot), OK);
        assert!(!self.free.contains(&slot), "answered twice");
        self.free.push(slot);
    }

    fn place(&self, slot: usize) -> u64 {
        (slot * self.len / 512) as u64
    }
}
