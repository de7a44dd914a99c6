//! The same work on several items in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Calls `work` on each item, on at most `at_a_time` at once; the results are in the order of the
/// items.
pub(in crate::commands) fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    at_a_time: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let some = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..at_a_time.clamp(1, items.len().max(1))).map(|_| scope.spawn(some)).collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
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
}
