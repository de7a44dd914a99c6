//! Blocks that all players write at the same time. Each block has the contents of one whole write,
//! of any player.

use std::sync::atomic::Ordering::SeqCst;

use super::dice::{Dice, mix};
use super::round::{Setup, Shared};

/// A few of these blocks, so that players often meet.
pub(crate) fn range(dice: &mut Dice, setup: &Setup, block: u32) -> (u64, u64) {
    let block = u64::from(block);
    let room = (setup.hot / block).min(8);
    let at = dice.below(room);
    let longest = setup.queue.max_request.min(setup.other.max_request) as u64;
    let most = (room - at).min(longest / block);
    (setup.size - setup.hot + at * block, (1 + dice.below(most)) * block)
}

/// Fills the data of the next write: its number, with a different value in each word.
pub(crate) fn fill(data: &mut [u8], offset: u64, shared: &Shared) {
    let number = shared.hot_writes.fetch_add(1, SeqCst) + 1;
    for (at, word) in (offset / 8..).zip(data.chunks_exact_mut(8)) {
        word.copy_from_slice(&(number ^ mix(at)).to_le_bytes());
    }
}

/// Checks the bytes of a read of written blocks, and returns their number.
///
/// # Panics
/// When a block is not of one whole write.
pub(crate) fn check(data: &[u8], offset: u64, block: u32, shared: &Shared) -> u64 {
    let most = shared.hot_writes.load(SeqCst);
    let mut checked = 0;
    for (at, bytes) in (offset..).step_by(block as usize).zip(data.chunks(block as usize)) {
        let words = (at / 8..).zip(bytes.chunks_exact(8));
        let mut numbers = words.map(|(at, word)| u64::from_le_bytes(word.try_into().unwrap()) ^ mix(at));
        let first = numbers.next().unwrap();
        assert!(
            (1..=most).contains(&first) && numbers.all(|number| number == first),
            "the block of {block} bytes at {at} is of more than one write, or of none: {:x?}",
            &bytes[..16]
        );
        checked += 1;
    }
    checked
}
