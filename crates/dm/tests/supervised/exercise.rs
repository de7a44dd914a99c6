//! System calls of a supervised program, whose memory changes while it is read.

use std::cell::{Cell, RefCell};

use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_dm::script::Machine;
use underseal_dm::server::answer;
use underseal_dm::supervised::{CallerBuffer, CallerMemory, CallerPath, LONGEST_PATH};
use underseal_dm::{Caller, GrantedKeys};

/// Memory that another thread writes to after the first read.
struct Memory {
    start: u64,
    bytes: RefCell<Vec<u8>>,
    /// Bytes that come to be at a place after the first read.
    change: Cell<Option<(u8, [u8; 4])>>,
}

impl Memory {
    fn at(&self, at: u64) -> Option<usize> {
        at.checked_sub(self.start).and_then(|at| usize::try_from(at).ok())
    }
}

impl CallerMemory for Memory {
    fn read_some(&self, at: u64, into: &mut [u8]) -> usize {
        let mut bytes = self.bytes.borrow_mut();
        let from = self.at(at).and_then(|at| bytes.get(at..)).unwrap_or_default();
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        if let Some((place, new)) = self.change.take()
            && let Some(to) = bytes.get_mut(usize::from(place)..usize::from(place) + 4)
        {
            to.copy_from_slice(&new);
        }
        n
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut mapped = self.bytes.borrow_mut();
        let at = self.at(at).ok_or(Errno::FAULT)?;
        let to = mapped.get_mut(at..at.saturating_add(bytes.len())).ok_or(Errno::FAULT)?;
        to.copy_from_slice(bytes);
        Ok(())
    }
}

/// Makes one system call: `kind, offset of the argument, place of a change, change (u32), command,
/// the memory`. A path has a meaning or none; an ioctl's answer changes the buffer of the size that
/// was read and nothing else, whatever the program changes meanwhile. Returns true for a call that
/// was answered.
pub(crate) fn call(bytes: &[u8]) -> bool {
    let [kind, offset, place, a, b, c, d, command, memory @ ..] = bytes else { return false };
    // High addresses, too: sums must not wrap.
    let start = [0, 1 << 40, u64::MAX - 200][usize::from(kind >> 1) % 3];
    let at = start.saturating_add(u64::from(*offset));
    let change = Cell::new(Some((*place, [*a, *b, *c, *d])));
    let memory = Memory { start, bytes: RefCell::new(memory.to_vec()), change };
    if kind & 1 == 0 {
        let mut room = [0; LONGEST_PATH];
        if let Some(path) = memory.string(at, &mut room) {
            assert!(path.len() < LONGEST_PATH && !path.contains(&0));
            if let Some(CallerPath::Holders(device) | CallerPath::Device(device)) = CallerPath::parse(path) {
                assert!(!device.to_string().contains('/'));
            }
        }
        return true;
    }
    let Ok(mut buffer) = CallerBuffer::read(&memory, at) else { return false };
    let before = memory.bytes.borrow().clone();
    let request = 0xc138_fd00 | u32::from(*command);
    let copy = Key::new(buffer.as_mut_bytes()).expect("memory");
    let caller = Caller { is_there: &|| false, keys: &GrantedKeys::default() };
    let Ok(message) = answer(&Machine::default().mapper(), request, copy, &caller) else { return false };
    let len = message.answer().len();
    buffer.as_mut_bytes()[..len].copy_from_slice(message.answer());
    let size = buffer.size();
    buffer.write_back(&memory, request, len).expect("the buffer was read");
    let after = memory.bytes.borrow();
    let first = usize::from(*offset);
    for (place, (before, after)) in before.iter().zip(&*after).enumerate() {
        assert!(before == after || (first..first + size.min(len)).contains(&place), "byte {place}");
    }
    true
}
