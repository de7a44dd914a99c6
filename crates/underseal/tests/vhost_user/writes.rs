//! Writes by all slots, each to a place of its own, and what is to be there in the end.

use crate::support::bytes;
use crate::support::scratch::assert_same;
use crate::vhost_user::front::{Front, IN, OUT, SLOTS, data};

const OK: u8 = 0;

pub(crate) struct Writes {
    len: usize,
    random: fastrand::Rng,
    /// What each slot writes at present, and what its place has at the end.
    model: [u64; SLOTS],
    free: Vec<usize>,
}

impl Writes {
    /// Of so many bytes each.
    pub(crate) fn new(len: usize, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { len, random, model: [0; SLOTS], free: (0..SLOTS).collect() }
    }

    /// Has every slot write, and hears what is done.
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

    /// Waits for all of them. Each place has what was written last.
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
