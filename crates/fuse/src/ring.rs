//! FUSE over io_uring (Linux 6.14): requests arrive in registered memory, as completions of
//! commands in a thread's ring.
//!
//! ```text
//!   REGISTER          an entry: memory for one request at a time, in the queue of one processor
//!      |  the command is answered when a request is in the entry's memory
//!   COMMIT_AND_FETCH  the reply is in the entry's memory; answered when the next request is
//!
//!   an entry:  headers   request header (128) | arguments (128) | length, number (32)
//!              payload   a write's data, names; the bytes of a read
//! ```
//!
//! Requests come this way once each of Linux's queues has an entry. FORGET and INTERRUPT still
//! come through the descriptor.

use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::Errno;
use underseal_device::{Arena, Buffer, LongCommand, Ring};

use crate::channel::FuseChannel;
use crate::wire::{HEADER, WRITE_DATA, reply_header};

/// The commands (`FUSE_IO_URING_CMD_..`).
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// The offsets of the parts in an entry's headers (`struct fuse_uring_req_header`).
const ARGUMENTS: usize = 128;
const IN_OUT: usize = 256;
/// An offset in `struct fuse_uring_ent_in_out`: after its flags.
const COMMIT_ID: usize = IN_OUT + 8;
const PAYLOAD_LEN: usize = IN_OUT + 16;
const HEADERS: usize = 288;
/// The distance between two entries' headers.
const STEP: usize = 320;

/// The largest memory for entries of one mount, as address space: only used pages need memory.
const ROOM: usize = 1 << 30;
/// The largest and smallest number of entries in one of the kernel's queues.
const MOST: usize = 32;
const LEAST: usize = 4;

/// The module's setting.
const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns the number of the kernel's queues, one for each possible processor, if this process can
/// serve them.
///
/// # Errors
/// The reason why it cannot, for the operator.
pub fn queues() -> Result<u16, String> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible");
    let text = text.map_err(|e| format!("the system does not tell its processors: {e}"))?;
    let queues = count(text.trim()).filter(|count| *count > 0);
    let queues = queues.ok_or_else(|| format!("the system has processors {}", text.trim()))?;
    // Like the rings of the mount's threads, before the kernel waits for them.
    Ring::with_long_commands(1, 0)
        .map_err(|e| format!("the kernel refuses this process the needed io_uring: {e}"))?;
    Ok(queues)
}

/// Makes Linux, which waits for entries, use the descriptor: a wrong entry causes that.
///
/// # Errors
/// When this process has no ring for it.
#[expect(unsafe_code, reason = "a command for a driver")]
pub fn decline(channel: &FuseChannel) -> io::Result<()> {
    let mut ring = Ring::with_long_commands(1, 0).map_err(io::Error::other)?;
    let wrong = LongCommand { operation: REGISTER, payload: command(u16::MAX, 0), buffers: &[] };
    // SAFETY: the command refers to no memory.
    unsafe { ring.long_command(channel.as_fd(), &wrong, 0) }?;
    ring.wait()
}

/// Returns why the kernel does not offer it, for the operator.
pub fn not_offered() -> String {
    match Path::new(SETTING).exists() {
        true => "the kernel's setting fuse.enable_uring is off".into(),
        false => "this kernel has no FUSE over io_uring (Linux 6.14 has)".into(),
    }
}

/// Returns the number of members in a list of the kernel: `0-3,8`.
fn count(list: &str) -> Option<u16> {
    list.split(',').try_fold(0u16, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// The queues that one thread serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingShare {
    /// The queues' numbers.
    pub queues: Vec<u16>,
    /// The number of entries in each queue.
    pub each: usize,
    /// An entry's room for payload: the longest read or write.
    pub payload: usize,
}

impl RingShare {
    /// Returns the share of the thread with this number, of `threads` threads. Threads beyond the
    /// number of queues serve some of them too.
    pub fn of(thread: u16, threads: u16, queues: u16, payload: usize) -> Self {
        let each = (ROOM / payload.max(1) / usize::from(queues.max(threads))).clamp(LEAST, MOST);
        let shared = if thread < queues { thread } else { thread % queues };
        let step = usize::from(threads.max(1));
        Self { queues: (shared..queues).step_by(step).collect(), each, payload }
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> u32 {
        u32::try_from(self.queues.len() * self.each).unwrap_or(u32::MAX)
    }
}

/// The kernel's answer to an entry's command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryEvent {
    /// A request has arrived.
    Request,
    /// The mount is gone, and so is the entry.
    Gone,
    /// The kernel does not accept the command; the entry is gone.
    Refused(Errno),
}

/// The entries of one thread.
pub struct RingEntries {
    headers: Buffer,
    entries: Vec<RingEntry>,
    live: usize,
}

struct RingEntry {
    queue: u16,
    /// The memory for payload; `None` while a request has that memory.
    payload: Option<Buffer>,
    is_live: bool,
}

impl RingEntries {
    /// Allocates memory for a thread's entries.
    ///
    /// # Errors
    /// When no memory is left.
    pub fn new(share: &RingShare) -> io::Result<Self> {
        let no_memory = || io::Error::from(io::ErrorKind::OutOfMemory);
        let count = share.queues.len() * share.each;
        // Headers and payloads have separate pages.
        let mut headers = Arena::new(count * STEP).map_err(io::Error::other)?;
        let headers = headers.alloc(count * STEP).ok_or_else(no_memory)?;
        let mut arena = Arena::new(share.payload.next_power_of_two() * count).map_err(io::Error::other)?;
        let queues = share.queues.iter().flat_map(|queue| std::iter::repeat_n(*queue, share.each));
        let entry = |queue| {
            let payload = Some(arena.alloc(share.payload).ok_or_else(no_memory)?);
            Ok(RingEntry { queue, payload, is_live: false })
        };
        let entries = queues.map(entry).collect::<io::Result<_>>()?;
        Ok(Self { headers, entries, live: 0 })
    }

    /// Passes all entries to the kernel: `give` gets a command and the number of its entry.
    ///
    /// # Errors
    /// The error of `give`.
    pub fn register(
        &mut self,
        mut give: impl FnMut(&LongCommand<'_>, u32) -> io::Result<()>,
    ) -> io::Result<()> {
        for (number, entry) in (0..).zip(&mut self.entries) {
            let Some(payload) = &entry.payload else { continue };
            let buffers = [IoSlice::new(&self.headers[headers(number)]), IoSlice::new(payload)];
            let payload = command(entry.queue, 0);
            give(&LongCommand { operation: REGISTER, payload, buffers: &buffers }, number)?;
            entry.is_live = true;
            self.live += 1;
        }
        Ok(())
    }

    /// Records Linux's answer to an entry's command.
    pub fn answered(&mut self, number: u32, result: i32) -> EntryEvent {
        if result == 0 {
            return EntryEvent::Request;
        }
        if let Some(entry) = self.entry(number)
            && std::mem::take(&mut entry.is_live)
        {
            self.live -= 1;
        }
        match Errno::from_raw_os_error(result.saturating_neg()) {
            Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED => EntryEvent::Gone,
            // Linux dropped the request while it was being answered.
            Errno::NOENT => EntryEvent::Gone,
            other => EntryEvent::Refused(other),
        }
    }

    /// Returns the number of entries that the kernel has, or that hold a request.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Returns true when each queue has an entry.
    pub fn are_in_every_queue(&self) -> bool {
        let has = |queue| self.entries.iter().any(|entry| entry.queue == queue && entry.is_live);
        self.entries.iter().all(|entry| has(entry.queue))
    }

    /// Copies the front of an arrived request: header, arguments, and the part of names or other
    /// payload that fits behind short arguments. Returns the request's whole length, as if it had
    /// come through the descriptor.
    ///
    /// # Errors
    /// `EIO` for a malformed request.
    pub fn front(&self, number: u32, front: &mut [u8; WRITE_DATA]) -> Result<usize, Errno> {
        let parts = self.parts(number)?;
        front[..HEADER].copy_from_slice(parts.header);
        let mut rest = &mut front[HEADER..];
        for part in [parts.arguments, parts.payload] {
            let len = part.len().min(rest.len());
            rest[..len].copy_from_slice(&part[..len]);
            rest = &mut rest[len..];
        }
        rest.fill(0);
        Ok(HEADER + parts.arguments.len() + parts.payload.len())
    }

    /// Returns an arrived request's parts.
    ///
    /// # Errors
    /// `EIO` when it is malformed.
    pub fn parts(&self, number: u32) -> Result<EntryRequest<'_>, Errno> {
        let entry = self.entries.get(number as usize).ok_or(Errno::IO)?;
        let payload = entry.payload.as_ref().ok_or(Errno::IO)?;
        let head = &self.headers[headers(number)];
        let word =
            |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let payload = payload.get(..word(PAYLOAD_LEN)).ok_or(Errno::IO)?;
        let arguments = word(0).checked_sub(HEADER + payload.len()).ok_or(Errno::IO)?;
        let arguments = head[ARGUMENTS..IN_OUT].get(..arguments).ok_or(Errno::IO)?;
        Ok(EntryRequest { header: &head[..HEADER], arguments, payload })
    }

    /// An entry's payload, for the data of a reply.
    pub fn payload(&mut self, number: u32) -> Option<&mut [u8]> {
        self.entry(number)?.payload.as_deref_mut()
    }

    /// Takes the first `len` bytes of an entry's payload out, until [`put_back`](Self::put_back)
    /// returns them.
    pub fn take_payload(&mut self, number: u32, len: usize) -> Option<(Buffer, Buffer)> {
        let mut whole = self.take_whole(number)?;
        let rest = whole.split_off(len.min(whole.len()));
        Some((whole, rest))
    }

    /// Takes all of an entry's payload out, until [`put_back_whole`](Self::put_back_whole) returns
    /// it.
    pub fn take_whole(&mut self, number: u32) -> Option<Buffer> {
        self.entry(number)?.payload.take()
    }

    /// Returns memory that was taken from the entry.
    pub fn put_back(&mut self, number: u32, (mut whole, rest): (Buffer, Buffer)) {
        whole.join(rest);
        if let Some(entry) = self.entry(number) {
            entry.payload = Some(whole);
        }
    }

    /// Restores a payload that was taken as a whole.
    pub fn put_back_whole(&mut self, number: u32, whole: Buffer) {
        if let Some(entry) = self.entry(number) {
            entry.payload = Some(whole);
        }
    }

    /// Writes the reply's header, for a payload of the answered length, and returns the command
    /// that sends it and waits for the next request.
    pub fn reply(&mut self, number: u32, answer: Result<usize, Errno>) -> Option<LongCommand<'static>> {
        let queue = self.entry(number)?.queue;
        let head = &mut self.headers[headers(number)];
        let unique = head[8..16].try_into().map(u64::from_ne_bytes).ok()?;
        let (error, len) = match answer {
            Ok(len) => (0, len),
            Err(e) => (-e.raw_os_error(), 0),
        };
        let commit = head[COMMIT_ID..COMMIT_ID + 8].try_into().map(u64::from_ne_bytes).ok()?;
        let header = reply_header(unique, error, len);
        head[..header.len()].copy_from_slice(&header);
        head[PAYLOAD_LEN..PAYLOAD_LEN + 4].copy_from_slice(&u32::try_from(len).ok()?.to_ne_bytes());
        Some(LongCommand { operation: COMMIT_AND_FETCH, payload: command(queue, commit), buffers: &[] })
    }

    fn entry(&mut self, number: u32) -> Option<&mut RingEntry> {
        self.entries.get_mut(number as usize)
    }
}

impl Drop for RingEntries {
    /// When a thread ends early, Linux may still write to registered memory.
    fn drop(&mut self) {
        if self.live > 0 {
            let Self { headers, entries, .. } = self;
            // A single buffer keeps all memory of its arena mapped.
            let payload = entries.iter_mut().find_map(|entry| entry.payload.take());
            std::mem::forget(payload);
            if let Ok(mut none) = Arena::new(1)
                && let Some(none) = none.alloc(1)
            {
                std::mem::forget(std::mem::replace(headers, none));
            }
        }
    }
}

/// A request in an entry.
#[derive(Debug, Clone, Copy)]
pub struct EntryRequest<'a> {
    /// `struct fuse_in_header`.
    pub header: &'a [u8],
    /// The operation's own structure.
    pub arguments: &'a [u8],
    /// The following bytes: names, a write's data.
    pub payload: &'a [u8],
}

fn headers(number: u32) -> std::ops::Range<usize> {
    let start = number as usize * STEP;
    start..start + HEADERS
}

/// `struct fuse_uring_cmd_req`.
fn command(queue: u16, commit_id: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_thread() {
        for (threads, queues) in [(1, 1), (1, 5), (2, 5), (5, 5), (7, 3)] {
            let mut seen: Vec<u16> =
                (0..threads).flat_map(|n| RingShare::of(n, threads, queues, 1 << 20).queues).collect();
            seen.sort_unstable();
            seen.dedup();
            assert!(seen.into_iter().eq(0..queues), "{threads} threads, {queues} queues");
            assert!((0..threads).all(|n| RingShare::of(n, threads, queues, 1 << 20).entries() > 0));
        }
    }

    #[test]
    fn processors_are_counted() {
        assert_eq!((count("0"), count("0-3"), count("0-3,8,10-11")), (Some(1), Some(4), Some(7)));
        assert_eq!((count(""), count("3-0"), count("x"), count("0-65535")), (None, None, None, None));
    }

    /// Writes a request into an entry like the kernel.
    fn put(entries: &mut RingEntries, len: u32, opcode: u32, payload: &[u8]) {
        let head = &mut entries.headers[headers(1)];
        head[..4].copy_from_slice(&len.to_ne_bytes());
        head[4..8].copy_from_slice(&opcode.to_ne_bytes());
        head[8..16].copy_from_slice(&42u64.to_ne_bytes());
        head[ARGUMENTS] = 7;
        head[COMMIT_ID] = 43;
        head[PAYLOAD_LEN..PAYLOAD_LEN + 4]
            .copy_from_slice(&u32::try_from(payload.len()).unwrap().to_ne_bytes());
        entries.payload(1).unwrap()[..payload.len()].copy_from_slice(payload);
    }

    fn entries() -> RingEntries {
        RingEntries::new(&RingShare { queues: vec![3], each: 2, payload: 8192 }).unwrap()
    }

    #[test]
    fn a_request_reads_as_if_it_had_come_through_the_descriptor() {
        let mut entries = entries();
        let mut front = [1; WRITE_DATA];
        put(&mut entries, 40 + 40 + 5, 16, b"bytes");
        assert_eq!(entries.front(1, &mut front), Ok(85));
        assert_eq!((front[4], front[HEADER], front[HEADER + 1]), (16, 7, 0));
        // A name follows where the operation has no arguments.
        put(&mut entries, 40 + 5, 1, b"name\0");
        assert_eq!(entries.front(1, &mut front), Ok(45));
        assert_eq!(&front[HEADER..HEADER + 6], b"name\0\0");
        // Longer arguments are cut.
        put(&mut entries, 40 + 88, 4, b"");
        assert_eq!(entries.front(1, &mut front), Ok(128));
        for (len, payload) in [(39, 0), (40 + 129, 0), (44, 5)] {
            put(&mut entries, len, 1, &b"12345"[..payload]);
            assert_eq!(entries.front(1, &mut front), Err(Errno::IO), "{len} {payload}");
        }
        entries.headers[headers(1)][PAYLOAD_LEN + 1] = 0xff;
        assert_eq!(entries.front(1, &mut front), Err(Errno::IO), "longer than the memory");
        assert_eq!(entries.front(2, &mut front), Err(Errno::IO), "no such entry");
    }

    #[test]
    fn a_reply_names_its_request() {
        let mut entries = entries();
        put(&mut entries, 80, 15, b"");
        let taken = entries.take_payload(1, 4096).unwrap();
        assert_eq!((taken.0.len(), taken.1.len()), (4096, 4096));
        assert!(entries.payload(1).is_none());
        entries.put_back(1, taken);
        let sent = entries.reply(1, Ok(4096)).unwrap();
        assert_eq!((sent.operation, sent.payload[8], sent.payload[16]), (2, 43, 3));
        let head = &entries.headers[headers(1)];
        assert_eq!(head[..16], reply_header(42, 0, 4096));
        assert_eq!(head[PAYLOAD_LEN..PAYLOAD_LEN + 4], 4096u32.to_ne_bytes());
        put(&mut entries, 80, 15, b"");
        entries.reply(1, Err(Errno::NOSYS)).unwrap();
        assert_eq!(entries.headers[headers(1)][..16], reply_header(42, -38, 0));
    }
}
