//! Channels that share one connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::queue::Queue;
use super::{Behaviour, Server, open, plain, wait_until};
use underseal_device::{Blocking, Io};
use underseal_nbd_protocol::TransmissionFlags as Flags;

fn read(queue: &mut Queue, slot: u32) {
    let buffer = queue.arena.alloc(4096).unwrap();
    queue.start(slot, Io::Read { offset: 0, buffer, range: 0..4096 });
}

#[test]
fn who_reads_for_all_hands_over_to_one_that_does() {
    for begins in [1, 2] {
        let server = Server::start(Behaviour { answers: Some(1), ..plain().without(Flags::CAN_MULTI_CONN) });
        let device = open(&server, "");
        let mut queues: Vec<_> = (0..3).map(|_| Queue::new(&device, 4)).collect();
        // The first channel reads for all; the others wait for their wakeups.
        queues.iter_mut().for_each(|queue| read(queue, 0));
        assert_eq!(queues[0].drain().len(), 1);
        // The first channel has no requests any more. Before another channel is woken, one of them
        // has a new request.
        read(&mut queues[begins], 1);
        server.inner.behaviour.lock().unwrap().answers = None;
        wait_until("all are answered", || {
            queues.iter_mut().for_each(|queue| drop(queue.turn(Duration::from_millis(10))));
            queues.iter().all(|queue| queue.in_flight == 0)
        });
    }
}

/// A thread that has ended leaves no state that the next one would wait for.
#[test]
fn a_way_is_passed_on_from_thread_to_thread() {
    for server in [plain(), plain().without(Flags::CAN_MULTI_CONN)].map(Server::start) {
        let device = open(&server, "");
        let mut way = Blocking::passed_on(&device).unwrap();
        way.write(0, &[1; 4096], false).unwrap();
        for round in 1..20_u8 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut now = [0; 4096];
                    way.read(0, &mut now).unwrap();
                    assert_eq!(now, [round; 4096]);
                    way.write(0, &[round + 1; 4096], round % 2 == 0).unwrap();
                });
            });
        }
    }
}

/// A step of the test.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A queue sends a request, without a look at completions.
    Ask(usize),
    /// A queue takes completions.
    Look(usize),
    /// The server answers the oldest open request.
    Answer,
}

const QUEUES: usize = 4;
const DEPTH: u32 = 3;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..QUEUES).prop_map(Step::Ask),
        3 => (0..QUEUES).prop_map(Step::Look),
        2 => Just(Step::Answer),
    ]
}

fn play(steps: &[Step]) {
    let server = Server::start(Behaviour { answers: Some(0), ..plain().without(Flags::CAN_MULTI_CONN) });
    let device = open(&server, "");
    let mut queues: Vec<_> = (0..QUEUES).map(|_| Queue::new(&device, DEPTH)).collect();
    let mut free: Vec<Vec<u32>> = vec![(0..DEPTH).collect(); QUEUES];
    let (mut asked, mut allowed) = (0, 0);
    let look = |queue: &mut Queue, free: &mut Vec<u32>, limit| {
        for done in queue.turn(limit) {
            done.result.unwrap();
            queue.arena.free(done.buffer.unwrap());
            free.push(done.slot);
        }
    };
    for &step in steps {
        match step {
            Step::Ask(number) => {
                let Some(slot) = free[number].pop() else { continue };
                read(&mut queues[number], slot);
                asked += 1;
            }
            Step::Look(number) => look(&mut queues[number], &mut free[number], Duration::ZERO),
            Step::Answer if allowed < asked => {
                allowed += 1;
                server.inner.behaviour.lock().unwrap().answers = Some(allowed);
                let answered = &server.inner.answered;
                wait_until("it is answered", || answered.load(Ordering::SeqCst) >= allowed);
            }
            Step::Answer => {}
        }
    }
    server.inner.behaviour.lock().unwrap().answers = None;
    wait_until("all are answered", || {
        for (queue, free) in queues.iter_mut().zip(&mut free) {
            look(queue, free, Duration::from_millis(1));
        }
        queues.iter().all(|queue| queue.in_flight == 0)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 0, ..Default::default() })]
    #[test]
    fn every_request_ends_whoever_reads_and_whoever_runs_dry(steps in prop::collection::vec(step(), 1..200)) {
        play(&steps);
    }
}
