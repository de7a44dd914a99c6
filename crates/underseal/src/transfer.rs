//! The plain bytes of a volume, in order, through a separate queue with many requests in flight.
//!

mod read;
mod write;

use std::sync::Arc;

use underseal_datapath::{Buffer, Completion, Mapping, Queue, QueueOptions, Request};

use crate::error::{Error, Result};
use crate::exit::Exit;

pub(crate) use read::{read, salvage};
pub(crate) use write::write;

/// The bytes of a request. All requests except the first begin at multiples of this.
const CHUNK: u64 = 1 << 20;
/// Requests in flight: enough for one to be encrypted, some on their way to the disk and one at the
/// reader or writer.
const DEPTH: u32 = 8;
const _: () = assert!(CHUNK.is_multiple_of(1 << 16), "a chunk is whole blocks");

fn queue(mapping: &Arc<Mapping>) -> Result<Queue> {
    // A queue's memory is twice the longest request: enough for all chunks, and for the old blocks
    // that a write is merged with.
    let max_request = length(CHUNK) * DEPTH as usize;
    Ok(Queue::open(mapping.clone(), QueueOptions { depth: DEPTH, max_request })?)
}

/// Returns the end of the chunk that contains `at`.
fn chunk_end(at: u64) -> u64 {
    (at / CHUNK + 1) * CHUNK
}

/// Converts a length within a chunk.
fn length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("no chunk is longer than memory")
}

/// Waits for a successful request.
fn wait(queue: &mut Queue) -> Result<(u64, Option<Buffer>)> {
    let completion = wait_for_any(queue)?;
    completion.result?;
    Ok((completion.tag, completion.buffer))
}

/// Waits for a completion and takes it.
fn wait_for_any(queue: &mut Queue) -> Result<Completion> {
    loop {
        if let Some(completion) = queue.next_completion() {
            return Ok(completion);
        }
        queue.wait().map_err(|e| Error::new(Exit::Failed, "cannot wait for the disk").because(&e))?;
    }
}

/// Submits a request for which the queue has room.
fn submit(queue: &mut Queue, tag: u64, request: Request) -> Result<()> {
    queue.submit(tag, request).map_err(|_| Error::new(Exit::Failed, "no memory left for requests"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Cursor;

    use underseal_cipher::{Key, SectorSize};
    use underseal_device::RamDevice;
    use underseal_volume::plain::{self, PlainOptions};
    use underseal_volume::{Guard, GuardRule};

    use crate::progress::Progress;

    const SIZE: u64 = 20 << 20;

    fn volume() -> Arc<Mapping> {
        let key = Key::new(&[7; 64]).unwrap();
        let options = PlainOptions { sector_size: SectorSize::S4096, ..PlainOptions::default() };
        let volume = plain::activate(&key, SIZE, &options).unwrap();
        Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(SIZE))).unwrap())
    }

    fn silent() -> Progress {
        Progress::new("", None, true)
    }

    fn all(mapping: &Arc<Mapping>) -> Vec<u8> {
        let mut bytes = Vec::new();
        read(mapping, 0..SIZE, &mut bytes, &mut silent()).unwrap();
        bytes
    }

    #[test]
    fn any_range_is_written_and_read_back_and_nothing_beside_it() {
        let mapping = volume();
        let mut model = all(&mapping);
        for (offset, len) in [
            (0, 20 << 20),
            (0, 1),
            (1, 1),
            (4095, 2),
            (4096, 4096),
            (5000, 100),
            ((1 << 20) - 1, 2),
            (3, (9 << 20) + 5),
            ((20 << 20) - 7, 7),
            (12_345_678, 1_234_567),
            (77, 0),
        ] {
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset).unwrap() + len;
            let data: Vec<u8> =
                (0..len).map(|i| u8::try_from((i * 7 + i / 251 + len) % 256).unwrap()).collect();
            model[range.clone()].copy_from_slice(&data);
            let written = write(&mapping, offset, &mut Cursor::new(&data), &mut silent()).unwrap();
            assert_eq!(written, len as u64);
            let mut back = Vec::new();
            read(&mapping, offset..offset + len as u64, &mut back, &mut silent()).unwrap();
            assert!(back == data, "{offset} + {len}");
            assert!(all(&mapping) == model, "{offset} + {len}: something else changed");
        }
    }

    #[test]
    fn input_longer_than_the_volume_is_an_error_that_says_how_much_was_written() {
        let mapping = volume();
        let data = vec![1; 5000];
        let error = write(&mapping, SIZE - 4096, &mut Cursor::new(data), &mut silent()).unwrap_err();
        assert!(error.to_string().contains("after 4096 bytes"), "{error}");
    }

    #[test]
    fn a_refused_write_is_a_refusal_only_where_nothing_was_written() {
        let rule = GuardRule::RefuseAll;
        let guarded = |mib: u64| {
            let range = (mib << 20)..(mib << 20) + 512;
            let mapping = Arc::into_inner(volume()).unwrap();
            Arc::new(mapping.with_guard(Guard { range, rule }))
        };
        let data = vec![9; 8 << 20];
        let fails = |mapping: &_| write(mapping, 0, &mut Cursor::new(&data), &mut silent()).unwrap_err();
        let error = fails(&guarded(5));
        assert!(error.what().starts_with("after 5242880 bytes: "), "{error}");
        assert_eq!(error.exit(), Exit::Failed, "{error}");
        let mapping = guarded(0);
        let before = all(&mapping);
        let error = fails(&mapping);
        assert!(error.what().starts_with("after 0 bytes: "), "{error}");
        assert_eq!(error.exit(), Exit::Usage, "{error}");
        assert!(all(&mapping) == before);
    }

    #[test]
    fn input_that_comes_in_dribbles_arrives_whole() {
        struct Dribble(usize);
        impl std::io::Read for Dribble {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                let len = into.len().min(self.0).min(1 + self.0 % 4099);
                into[..len].fill(9);
                self.0 -= len;
                Ok(len)
            }
        }
        let mapping = volume();
        assert_eq!(write(&mapping, 100, &mut Dribble(3_000_001), &mut silent()).unwrap(), 3_000_001);
        let mut back = Vec::new();
        read(&mapping, 100..3_000_101, &mut back, &mut silent()).unwrap();
        assert!(back.len() == 3_000_001 && back.iter().all(|&byte| byte == 9));
    }
}
