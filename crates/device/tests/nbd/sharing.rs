//! Channels that share one connection.

use std::time::Duration;

use super::queue::Queue;
use super::{Behaviour, Server, open, plain, wait_until};
use underseal_device::Io;
use underseal_device::nbd::protocol::TransmissionFlags as Flags;

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
        // The first reads for all; the others wait for their bells.
        queues.iter_mut().for_each(|queue| read(queue, 0));
        assert_eq!(queues[0].drain().len(), 1);
        // The first has nothing to wait for any more. Before anybody hears a bell, one of the others has another request.
        read(&mut queues[begins], 1);
        server.inner.behaviour.lock().unwrap().answers = None;
        wait_until("all are answered", || {
            queues.iter_mut().for_each(|queue| drop(queue.turn(Duration::from_millis(10))));
            queues.iter().all(|queue| queue.in_flight == 0)
        });
    }
}
