//! A block of PBKDF2 at several counts of rounds, with a stop signal: for headers that do not
//! store their derivation's parameters.

use std::sync::atomic::{AtomicBool, Ordering};

use digest::{FixedOutput, KeyInit, Update};
use underseal_cipher::wipe_traces;
use zeroize::Zeroize;

use crate::Hash;
use crate::hash::{TRACES, with_mac};

/// The rounds between two looks at the stop signal: a millisecond with the slowest hash.
const LOOK: u32 = 512;

/// Runs block `block` (1 is the first) of PBKDF2-HMAC over `hash`, and calls `reached` with the
/// position of each of `marks` and the block after that number of rounds. `marks` ascend; a run of
/// the highest count passes through all lower ones.
///
/// Returns false when `stop` became true before the last mark.
pub fn pbkdf2_marks(
    hash: Hash,
    (passphrase, salt, block): (&[u8], &[u8], u32),
    marks: &[u32],
    stop: &AtomicBool,
    reached: &mut dyn FnMut(usize, &[u8]),
) -> bool {
    let whole = with_mac!(hash, M => {
        // HMAC accepts a key of any length, so no error occurs.
        let keyed = <M as KeyInit>::new_from_slice(passphrase);
        keyed.is_ok_and(|keyed| run(&keyed, salt, block, marks, stop, reached))
    });
    wipe_traces::<TRACES>();
    whole
}

/// Runs [`pbkdf2_marks`], with HMAC keyed.
fn run<M: Update + FixedOutput + Clone>(
    keyed: &M,
    salt: &[u8],
    block: u32,
    marks: &[u32],
    stop: &AtomicBool,
    reached: &mut dyn FnMut(usize, &[u8]),
) -> bool {
    let mut mac = keyed.clone();
    mac.update(salt);
    mac.update(&block.to_be_bytes());
    let mut last = mac.finalize_fixed();
    let mut sum = last.clone();
    let mut done = 1u32;
    let mut whole = true;
    'marks: for (position, &mark) in marks.iter().enumerate() {
        while done < mark {
            if done.is_multiple_of(LOOK) && stop.load(Ordering::Relaxed) {
                whole = false;
                break 'marks;
            }
            let mut mac = keyed.clone();
            mac.update(&last);
            mac.finalize_into(&mut last);
            sum.iter_mut().zip(&last).for_each(|(sum, last)| *sum ^= last);
            done += 1;
        }
        reached(position, &sum);
    }
    sum.as_mut_slice().zeroize();
    last.as_mut_slice().zeroize();
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_what_so_many_rounds_make() {
        let (passphrase, salt) = (b"correct horse", [9; 64]);
        for hash in Hash::ALL {
            let (len, marks) = (hash.output_len(), [1, 2, 700, 1030]);
            for block in [1, 3] {
                let mut seen = 0;
                let go = AtomicBool::new(false);
                assert!(pbkdf2_marks(hash, (passphrase, &salt, block), &marks, &go, &mut |at, bytes| {
                    let mut want = vec![0; len * block as usize];
                    hash.pbkdf2(passphrase, &salt, marks[at], &mut want);
                    assert_eq!(bytes, &want[want.len() - len..], "{hash}, {} rounds", marks[at]);
                    seen += 1;
                }));
                assert_eq!(seen, marks.len());
            }
        }
    }

    #[test]
    fn a_run_that_is_stopped_reaches_no_further_mark() {
        let mut reached = Vec::new();
        let stop = AtomicBool::new(true);
        let of = (&b"secret"[..], &[1u8; 8][..], 1);
        let whole = pbkdf2_marks(Hash::Sha512, of, &[100, u32::MAX], &stop, &mut |at, _| reached.push(at));
        assert_eq!((whole, reached), (false, vec![0]));
    }
}
