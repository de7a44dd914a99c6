//! Every interleaving of threads that give and take work, by the model checker loom.

// The crate and `injector.rs` both use these names.
#[path = "../src/injector.rs"]
#[expect(dead_code, reason = "the crate uses more of it")]
mod injector;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

use std::iter;

use injector::Injector;
use loom::sync::Arc;
use loom::thread;

/// Tries the interleavings with at most three preemptions: all interleavings take minutes, and
/// found nothing more.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn work_is_done_once_by_a_worker_or_by_who_takes_it_back() {
    explore(|| {
        let injector = Arc::new(Injector::new());
        let worker = {
            let injector = injector.clone();
            thread::spawn(move || iter::from_fn(|| injector.pop(iter::empty::<()>())).collect::<Vec<u32>>())
        };
        injector.push(1).unwrap();
        injector.push(2).unwrap();
        let mut done = Vec::from_iter(injector.take_back(|item| *item == 2));
        injector.close();
        assert_eq!(injector.push(3), Err(3));
        done.extend(worker.join().unwrap());
        done.sort_unstable();
        assert_eq!(done, [1, 2]);
        assert_eq!(injector.idle(), 0);
    });
}
