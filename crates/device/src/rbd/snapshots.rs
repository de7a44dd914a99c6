//! Snapshots of an image without requests in flight: librbd asks for the pause, and reports its
//! end.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::SnapshotPause;

/// The time without a message after which the program that makes the snapshot counts as dead.
pub(super) const LONGEST: Duration = Duration::from_secs(120);

/// A message of librbd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotEvent {
    /// A snapshot will be made as soon as requests are paused.
    Begins,
    /// The snapshot was made, or failed.
    Ends,
}

/// Pauses and resumes requests until no messages can come any more. `rests` gets the result of each
/// pause.
pub(super) fn attend(
    words: &Receiver<SnapshotEvent>,
    pause: &dyn SnapshotPause,
    longest: Duration,
    rests: impl Fn(bool),
) {
    // Several snapshots may be in progress at a time, each with a pause.
    let mut paused = 0_u32;
    let end_all = |paused: &mut u32| (0..std::mem::take(paused)).for_each(|_| pause.end());
    loop {
        let word = if paused > 0 {
            words.recv_timeout(longest)
        } else {
            words.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match word {
            Ok(SnapshotEvent::Begins) => {
                let begun = pause.begin();
                paused += u32::from(begun);
                rests(begun);
            }
            Ok(SnapshotEvent::Ends) => {
                if paused > 0 {
                    paused -= 1;
                    pause.end();
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                log::warn!("a snapshot was begun and not ended for {longest:?}: requests resume");
                end_all(&mut paused);
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    end_all(&mut paused);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::sync::{Arc, Mutex};
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// Records events, and may refuse.
    struct Diary {
        events: Mutex<Vec<&'static str>>,
        refuses: bool,
    }

    impl Diary {
        fn add(&self, event: &'static str) {
            self.events.lock().unwrap().push(event);
        }
    }

    impl SnapshotPause for Diary {
        fn begin(&self) -> bool {
            self.add(if self.refuses { "refuses" } else { "begins" });
            !self.refuses
        }

        fn end(&self) {
            self.add("ends");
        }
    }

    /// The events after these messages.
    fn events(words: &[SnapshotEvent], refuses: bool) -> Vec<&'static str> {
        let diary = Diary { events: Mutex::default(), refuses };
        let (tell, told) = mpsc::channel();
        words.iter().for_each(|word| tell.send(*word).unwrap());
        drop(tell);
        attend(&told, &diary, LONGEST, |rests| diary.add(if rests { "rests" } else { "does not rest" }));
        diary.events.into_inner().unwrap()
    }

    #[test]
    fn each_that_began_ends() {
        use SnapshotEvent::{Begins, Ends};
        assert_eq!(events(&[Begins, Ends], false), ["begins", "rests", "ends"]);
        let nested = events(&[Begins, Begins, Ends, Ends, Ends], false);
        assert_eq!(nested, ["begins", "rests", "begins", "rests", "ends", "ends"]);
        let closed = events(&[Begins, Begins, Ends, Begins], false);
        assert_eq!(closed.iter().filter(|event| **event == "ends").count(), 3, "{closed:?}");
        assert_eq!(events(&[Begins, Ends], true), ["refuses", "does not rest"]);
        assert_eq!(events(&[Begins], false), ["begins", "rests", "ends"], "the image is closed meanwhile");
        assert_eq!(events(&[Ends], false), [""; 0]);
    }

    #[test]
    fn who_dies_amid_a_snapshot_is_not_waited_for_for_ever() {
        let diary = Arc::new(Diary { events: Mutex::default(), refuses: false });
        let (tell, told) = mpsc::channel();
        let writer = diary.clone();
        let thread = thread::spawn(move || attend(&told, &*writer, Duration::from_millis(20), |_| {}));
        tell.send(SnapshotEvent::Begins).unwrap();
        let began = Instant::now();
        while diary.events.lock().unwrap().len() < 2 {
            assert!(began.elapsed() < Duration::from_secs(60));
            thread::yield_now();
        }
        tell.send(SnapshotEvent::Begins).unwrap();
        tell.send(SnapshotEvent::Ends).unwrap();
        drop(tell);
        thread.join().unwrap();
        assert_eq!(*diary.events.lock().unwrap(), ["begins", "ends", "begins", "ends"]);
    }
}
