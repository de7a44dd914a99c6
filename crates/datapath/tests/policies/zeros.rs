//! Long requests for zeros, over a device that never blocks: only the queue ends their turn.

use underseal_device::RamDevice;

use super::*;

/// More zeros than a turn makes.
const EACH: u64 = 2 << 20;

#[test]
fn a_read_waits_for_no_zeros_that_were_asked_for_before() {
    const READ: u64 = 99;
    for text in POLICIES.into_iter().filter(|text| !text.contains("engine")) {
        let device = Arc::new(RamDevice::new(SIZE));
        let mapping = Arc::new(Mapping::new(volume(xts(SectorSize::S4096)), device).unwrap());
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        submit_write(&mut queue, 0, 0, 1 << 20, 7);
        succeed(&mut queue);
        let zero =
            |offset| Request::WriteZeroes { offset, len: EACH, durable: false, punch: false, fast: false };
        for (tag, offset) in (0..).zip((1..SIZE / EACH).map(|nth| nth * EACH)) {
            queue.submit(tag, zero(offset)).expect("there is room");
        }
        queue.submit(READ, Request::Read { offset: 0, len: 4096 }).expect("there is room");
        let mut tags = Vec::new();
        while (tags.len() as u64) < SIZE / EACH {
            while let Some(completion) = queue.next_completion() {
                completion.result.unwrap();
                completion.buffer.into_iter().for_each(|buffer| queue.free(buffer));
                tags.push(completion.tag);
            }
            queue.wait().unwrap();
        }
        let zeros = usize::try_from(SIZE / EACH - 1).unwrap();
        let before = tags.iter().position(|tag| *tag == READ).unwrap();
        // The thread that decrypts the read may get no processor for a while.
        let most = if text.starts_with("inline") { 2 } else { zeros };
        assert!(before < most, "{text}: {before} of {zeros} requests for zeros went first");
    }
}

#[test]
fn a_queue_is_dropped_after_its_zeros_are_written() {
    let device = Arc::new(RamDevice::new(SIZE));
    let mapping = Arc::new(Mapping::new(volume(xts(SectorSize::S4096)), device).unwrap());
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, SIZE - 4096, 4096, 7);
    succeed(&mut queue);
    let zeros = Request::WriteZeroes { offset: 0, len: SIZE, durable: true, punch: false, fast: false };
    queue.submit(0, zeros).expect("there is room");
    assert!(queue.next_completion().is_none(), "16 MiB were written in one turn");
    drop(queue);
    let mut queue = open(&mapping);
    queue.submit(1, Request::Read { offset: SIZE - 4096, len: 4096 }).expect("there is room");
    let read = loop {
        match queue.next_completion() {
            Some(completion) => break completion.buffer.unwrap(),
            None => queue.wait().unwrap(),
        }
    };
    assert!(read.iter().all(|byte| *byte == 0));
    queue.free(read);
}
