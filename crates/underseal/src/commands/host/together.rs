//! The same work on several items in parallel, some of them after others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Calls `work` on each item, on at most `at_a_time` at once; the results are in the order of the
/// items.
pub(in crate::commands) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    at_a_time: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    in_order(items, &[], &[(at_a_time, &|_| true)], |_, item| work(item))
}

/// Threads, and the items that they work on.
pub(super) type Lane<'l, T> = (usize, &'l (dyn Fn(&T) -> bool + Sync));

/// Calls `work` with the number of each item and the item, once all those are done that come before
/// it: `before` has their numbers for each item, or nothing. Each item belongs to one lane. Where
/// items come before each other in a ring, one of them comes first. The results are in the order of
/// the items.
pub(super) fn in_order<T: Sync, R: Send>(
    items: &[T],
    before: &[Vec<usize>],
    lanes: &[Lane<'_, T>],
    work: impl Fn(usize, &T) -> R + Sync,
) -> Vec<R> {
    let order =
        Order { stages: Mutex::new(vec![Stage::Waiting; items.len()]), changed: Condvar::new(), before };
    let run = |belongs: &(dyn Fn(&T) -> bool + Sync)| {
        let mut done = Vec::new();
        while let Some(running) = order.next(&|number| belongs(&items[number])) {
            done.push((running.number, work(running.number, &items[running.number])));
        }
        done
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for &(count, belongs) in lanes {
            let (run, count) = (&run, count.clamp(1, items.len().max(1)));
            threads.extend((0..count).map(|_| scope.spawn(move || run(belongs))));
        }
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Done,
}

struct Order<'o> {
    stages: Mutex<Vec<Stage>>,
    changed: Condvar,
    before: &'o [Vec<usize>],
}

impl Order<'_> {
    fn stages(&self) -> MutexGuard<'_, Vec<Stage>> {
        self.stages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an item of a lane that may run. `None`: no item of the lane waits any more.
    fn next(&self, belongs: &dyn Fn(usize) -> bool) -> Option<RunningItem<'_>> {
        let mut stages = self.stages();
        loop {
            let waiting = || (0..stages.len()).filter(|number| stages[*number] == Stage::Waiting);
            let mut of_lane = waiting().filter(|number| belongs(*number)).peekable();
            of_lane.peek()?;
            let is_ready = |number: &usize| {
                let mut before = self.before.get(*number).into_iter().flatten();
                before.all(|before| stages[*before] == Stage::Done)
            };
            let is_ring = || !stages.contains(&Stage::Running) && !waiting().any(|number| is_ready(&number));
            let first = || waiting().next().filter(|number| is_ring() && belongs(*number));
            if let Some(number) = of_lane.find(is_ready).or_else(first) {
                stages[number] = Stage::Running;
                return Some(RunningItem { order: self, number });
            }
            stages = self.changed.wait(stages).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// An item that is being worked on, until it is dropped.
struct RunningItem<'o> {
    order: &'o Order<'o>,
    number: usize,
}

impl Drop for RunningItem<'_> {
    fn drop(&mut self) {
        self.order.stages()[self.number] = Stage::Done;
        self.order.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn so_many_at_a_time_and_in_order() {
        // Each call waits for two others: one after the other they would never end.
        let barrier = Barrier::new(3);
        let done = side_by_side(&[1, 2, 3, 4, 5, 6], 3, |item| {
            barrier.wait();
            item * 10
        });
        assert_eq!(done, [10, 20, 30, 40, 50, 60]);
        assert!(side_by_side(&[] as &[u8], 4, |_| ()).is_empty());
    }

    #[test]
    fn items_come_after_those_before_them_and_wait_for_no_others() {
        let done = Mutex::new(Vec::new());
        let both: [Lane<'_, u8>; 2] = [(2, &|item| *item % 2 == 0), (1, &|item| *item % 2 == 1)];
        let run = |before: &[Vec<usize>]| {
            let numbers = in_order(&[0_u8, 1, 2, 3], before, &both, |number, _| {
                done.lock().unwrap().push(number);
                number
            });
            assert_eq!(numbers, [0, 1, 2, 3]);
            std::mem::take(&mut *done.lock().unwrap())
        };
        assert_eq!(run(&[vec![1], vec![2], vec![3], vec![]]), [3, 2, 1, 0]);
        // A ring of the first three, and the last one over it.
        assert_eq!(run(&[vec![2], vec![0], vec![1], vec![2]]), [0, 1, 2, 3]);
        // One item that takes long keeps back only those behind it.
        let gate = Barrier::new(2);
        let slow: Lane<'_, u8> = (2, &|_| true);
        let ended = in_order(&[0_u8, 1, 2], &[vec![], vec![0], vec![]], &[slow], |number, _| {
            if number != 1 {
                gate.wait();
            }
            number
        });
        assert_eq!(ended, [0, 1, 2]);
    }
}
