//! An image that is open, and what is asked of it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::{Calls, EXCLUSIVE, Handle, Pool, Setting, THICK, answer, calls};
use crate::rbd::quiet::BlockedSignals;
use crate::rbd::snapshots::SnapshotEvent;
use crate::{Buffer, Io};

/// An image that is open. All queues use the one: each would be another owner of its lock.
pub(in crate::rbd) struct Image {
    pub(super) handle: Handle,
    pub(super) calls: &'static Calls,
    pub(super) watch: Option<u64>,
    /// How often the image's header has changed. A thread of librbd's counts, as long as it watches.
    pub(super) changes: Arc<AtomicU64>,
    /// Where words about snapshots go, as long as they are heard.
    pub(super) asked: Option<Box<SnapshotWatcher>>,
    pub(super) pool: Pool,
}

/// What is told of snapshots, and by whom that is heard.
pub(super) struct SnapshotWatcher {
    tell: mpsc::Sender<SnapshotEvent>,
    watch: AtomicU64,
    /// So many times librbd waits for the image to rest.
    waits: AtomicU32,
}

// SAFETY: librbd takes calls on one image from any thread, and at the same time; nothing else is behind the pointers.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    pub(in crate::rbd) fn size(&self) -> std::result::Result<u64, Errno> {
        self.number(self.calls.rbd_get_size)
    }

    pub(in crate::rbd) fn features(&self) -> std::result::Result<u64, Errno> {
        self.number(self.calls.rbd_get_features)
    }

    pub(in crate::rbd) fn flags(&self) -> std::result::Result<u64, Errno> {
        self.number(self.calls.rbd_get_flags)
    }

    fn number(&self, of: unsafe extern "C" fn(Handle, *mut u64) -> c_int) -> std::result::Result<u64, Errno> {
        let mut number = 0;
        // SAFETY: the image is open; the number is written.
        answer(unsafe { of(self.handle, &raw mut number) }).map(|_| number)
    }

    /// What is in force of these options for this image, whoever has set it: this program, the pool or the image. None: it has no such
    /// option.
    pub(in crate::rbd) fn settings<const N: usize>(
        &self,
        names: [&CStr; N],
    ) -> std::result::Result<[Option<String>; N], Errno> {
        // Ceph 16 has a hundred.
        const MOST: c_int = 1 << 14;
        let mut count: c_int = 1 << 10;
        let settings = loop {
            let mut settings: Vec<Setting> = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
            // SAFETY: the image is open; it writes so many at most, and how many there are.
            let listed = unsafe {
                (self.calls.rbd_config_image_list)(self.handle, settings.as_mut_ptr(), &raw mut count)
            };
            match answer(listed) {
                Ok(_) => break settings,
                Err(Errno::RANGE)
                    if count <= MOST && usize::try_from(count).unwrap_or(0) > settings.capacity() => {}
                Err(e) => return Err(e),
            }
        };
        let mut settings = settings;
        // SAFETY: so many were written.
        unsafe { settings.set_len(usize::try_from(count).unwrap_or(0)) };
        let found = names.map(|name| {
            // SAFETY: the names and values are strings until they are cleaned up below.
            let one = settings.iter().find(|one| unsafe { CStr::from_ptr(one.name) } == name)?;
            // SAFETY: as above.
            Some(unsafe { CStr::from_ptr(one.value) }.to_string_lossy().into_owned())
        });
        // SAFETY: what was listed, once.
        unsafe { (self.calls.rbd_config_image_list_cleanup)(settings.as_mut_ptr(), count) };
        Ok(found)
    }

    /// The image's own name, which is never given to another one: digits and letters.
    pub(in crate::rbd) fn id(&self) -> std::result::Result<String, Errno> {
        let mut id = [0_u8; 256];
        // SAFETY: it writes so many bytes at most, a zero the last of them.
        answer(unsafe { (self.calls.rbd_get_id)(self.handle, id.as_mut_ptr().cast(), id.len()) })?;
        let id = CStr::from_bytes_until_nul(&id).ok().and_then(|id| id.to_str().ok());
        let id = id.filter(|id| id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        id.map(str::to_owned).ok_or(Errno::IO)
    }

    /// This client's number.
    pub(in crate::rbd) fn own(&self) -> u64 {
        // SAFETY: the cluster is connected.
        unsafe { (self.calls.rados_get_instance_id)(self.pool.cluster.handle) }
    }

    /// The numbers of the clients that have the image open to write, and answer: this one is among them.
    ///
    /// They are told that the image's header may have changed, which each answers, and which changes nothing.
    pub(in crate::rbd) fn present(&self, patience: Duration) -> std::result::Result<Vec<u64>, Errno> {
        let header = CString::new(format!("rbd_header.{}", self.id()?)).map_err(|_| Errno::IO)?;
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let (mut reply, mut len) = (ptr::null_mut(), 0);
        let _quiet = BlockedSignals::begin();
        // SAFETY: the pool is open; nothing is sent, and where the reply is, is written.
        let notified = answer(unsafe {
            (self.calls.rados_notify2)(
                self.pool.handle,
                header.as_ptr(),
                ptr::null(),
                0,
                millis,
                &raw mut reply,
                &raw mut len,
            )
        });
        let present = if reply.is_null() {
            Vec::new()
        } else {
            // SAFETY: so many bytes are there, until they are freed below.
            let present = answered(unsafe { std::slice::from_raw_parts(reply.cast(), len) });
            // SAFETY: it came from there, and is not used any more.
            unsafe { (self.calls.rados_buffer_free)(reply) };
            present
        };
        match notified {
            // Some have not answered: whoever has died is among those for half a minute.
            Ok(_) | Err(Errno::TIMEDOUT) => Ok(present),
            Err(e) => Err(e),
        }
    }

    /// Takes the lock that keeps other writers away, and keeps it until the image is closed. Waits for one whose owner has died.
    pub(in crate::rbd) fn lock(&self) -> std::result::Result<(), Errno> {
        let _quiet = BlockedSignals::begin();
        // SAFETY: the image is open.
        answer(unsafe { (self.calls.rbd_lock_acquire)(self.handle, EXCLUSIVE) }).map(drop)
    }

    /// Takes the lock from who has it at this address, and shuts that client out: nothing that it has sent is done any more.
    pub(in crate::rbd) fn break_lock(&self, address: &str) -> std::result::Result<(), Errno> {
        let address = CString::new(address).map_err(|_| Errno::INVAL)?;
        let _quiet = BlockedSignals::begin();
        // SAFETY: the image is open; the string is read only.
        answer(unsafe { (self.calls.rbd_lock_break)(self.handle, EXCLUSIVE, address.as_ptr()) }).map(drop)
    }

    /// Where its owner is, as the cluster says now: what it [lists](Self::lockers) may be as of some while ago.
    pub(in crate::rbd) fn owner(&self) -> Option<String> {
        let (mut mode, mut owners, mut count) = (0, [ptr::null_mut(); 4], 4);
        // SAFETY: the image is open; it writes so many owners at most, and how many there are.
        answer(unsafe {
            let to = owners.as_mut_ptr();
            (self.calls.rbd_lock_get_owners)(self.handle, &raw mut mode, to, &raw mut count)
        })
        .ok()?;
        let of = owners.first().filter(|owner| count > 0 && !owner.is_null());
        // SAFETY: a string, until it is cleaned up below.
        let owner = of.map(|owner| unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned());
        // SAFETY: what was listed, once.
        unsafe { (self.calls.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        owner
    }

    /// Who has it: the names of clients and where they are.
    pub(in crate::rbd) fn lockers(&self) -> Vec<(String, String)> {
        const ROOM: usize = 4096;
        let mut texts = [(); 4].map(|()| vec![0_u8; ROOM]);
        let mut lens = [ROOM; 4];
        let mut exclusive = 0;
        let [tag, clients, cookies, addresses] = &mut texts;
        let [of_tag, of_clients, of_cookies, of_addresses] = &mut lens;
        // SAFETY: each text has as much room as its length says; what was written is told in it.
        let count = unsafe {
            (self.calls.rbd_list_lockers)(
                self.handle,
                &raw mut exclusive,
                tag.as_mut_ptr().cast(),
                of_tag,
                clients.as_mut_ptr().cast(),
                of_clients,
                cookies.as_mut_ptr().cast(),
                of_cookies,
                addresses.as_mut_ptr().cast(),
                of_addresses,
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        // One after the other, each with a zero at its end.
        let words = |text: &[u8]| -> Vec<String> {
            text.split(|byte| *byte == 0)
                .take(count)
                .map(|word| String::from_utf8_lossy(word).into())
                .collect()
        };
        words(clients).into_iter().zip(words(addresses)).collect()
    }

    /// Has changes of the image's header noted from now on.
    pub(in crate::rbd) fn watch(&mut self) -> std::result::Result<(), Errno> {
        let (mut watch, noted) = (0, Arc::as_ptr(&self.changes).cast_mut().cast());
        let _quiet = BlockedSignals::begin();
        // SAFETY: `changes` stays until `drop` has ended the watching.
        answer(unsafe { (self.calls.rbd_update_watch)(self.handle, &raw mut watch, changed, noted) })?;
        self.watch = Some(watch);
        Ok(())
    }

    /// How often the image's header has changed since it is watched.
    pub(in crate::rbd) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Has it said from now on when snapshots are made, which wait until the image [rests](Self::rests).
    pub(in crate::rbd) fn watch_snapshots(
        &mut self,
        tell: mpsc::Sender<SnapshotEvent>,
    ) -> std::result::Result<(), Errno> {
        if self.asked.is_some() {
            return Err(Errno::BUSY);
        }
        let asker = Box::new(SnapshotWatcher { tell, watch: AtomicU64::new(0), waits: AtomicU32::new(0) });
        let (to, mut watch) = (ptr::from_ref(&*asker).cast_mut().cast(), 0);
        let _quiet = BlockedSignals::begin();
        // SAFETY: `asker` stays where it is until `drop` has ended the watching; the number is written.
        answer(unsafe { (self.calls.rbd_quiesce_watch)(self.handle, begins, ends, to, &raw mut watch) })?;
        asker.watch.store(watch, Ordering::SeqCst);
        self.asked = Some(asker);
        Ok(())
    }

    /// Answers who wants to make a snapshot: the image rests, or cannot.
    pub(in crate::rbd) fn rests(&self, rests: std::result::Result<(), Errno>) {
        let Some(asker) = &self.asked else { return };
        let one_less = |waits: u32| waits.checked_sub(1);
        if asker.waits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            let result = rests.map_or_else(|e| -e.raw_os_error(), |()| 0);
            let watch = asker.watch.load(Ordering::SeqCst);
            // SAFETY: the image is open, and librbd waits for this.
            unsafe { (self.calls.rbd_quiesce_complete)(self.handle, watch, result) };
        }
    }

    /// Has nothing said of snapshots any more. Who wants to make one meanwhile is told that the image does not rest: else librbd would wait.
    pub(in crate::rbd) fn watch_no_snapshots(&mut self) {
        let this = &*self;
        let Some(asker) = &this.asked else { return };
        let watch = asker.watch.load(Ordering::SeqCst);
        let unwatch = || {
            // SAFETY: the image is open, and this is done once.
            unsafe { (this.calls.rbd_quiesce_unwatch)(this.handle, watch) };
        };
        thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, unwatch) {
            Ok(unwatching) => {
                while !unwatching.is_finished() {
                    this.rests(Err(Errno::SHUTDOWN));
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Err(_) => {
                this.rests(Err(Errno::SHUTDOWN));
                unwatch();
            }
        });
        self.asked = None;
    }

    /// The runs of a range that are stored, by whole objects.
    pub(in crate::rbd) fn stored(&self, range: Range<u64>) -> std::result::Result<Vec<Range<u64>>, Errno> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let len = range.end.saturating_sub(range.start);
        // SAFETY: `stored` gets the list, which nobody else uses until this returns; null: since the image was made.
        answer(unsafe {
            let to = ptr::from_mut(&mut runs).cast();
            (self.calls.rbd_diff_iterate2)(self.handle, ptr::null(), range.start, len, 1, 1, stored, to)
        })?;
        Ok(runs)
    }

    /// Hands a request over. Its memory is librbd's until it is `over`, which a thread of librbd's says.
    ///
    /// # Errors
    /// It is over at once, and was not begun.
    pub(in crate::rbd) fn start<F: ImageRequest>(
        &self,
        mut flight: Box<F>,
    ) -> std::result::Result<(), (Box<F>, Errno)> {
        let what = ImageOperation::of(flight.io());
        let mut completion = ptr::null_mut();
        let flight = Box::into_raw(flight);
        // SAFETY: it writes the handle; `over` gets the flight back.
        let made =
            unsafe { (self.calls.rbd_aio_create_completion)(flight.cast(), over::<F>, &raw mut completion) };
        let started = answer(made).and_then(|_| {
            // SAFETY: the image is open. The memory is the flight's, which stays as it is until `over` has it: so it is valid, nobody
            // else uses it, and `ImageOperation::of` took it from the slices that are meant.
            answer(unsafe {
                match what {
                    ImageOperation::Read(offset, to, len) => {
                        (self.calls.rbd_aio_read)(self.handle, offset, len, to, completion)
                    }
                    ImageOperation::Write(offset, from, len) => {
                        (self.calls.rbd_aio_write)(self.handle, offset, len, from, completion)
                    }
                    ImageOperation::Flush => (self.calls.rbd_aio_flush)(self.handle, completion),
                    ImageOperation::Discard(offset, len) => {
                        (self.calls.rbd_aio_discard)(self.handle, offset, len, completion)
                    }
                    ImageOperation::Zero(offset, len, flags) => {
                        (self.calls.rbd_aio_write_zeroes)(self.handle, offset, len, completion, flags, 0)
                    }
                    ImageOperation::Nothing => -libc::EOPNOTSUPP,
                }
            })
            .inspect_err(|_| {
                // SAFETY: it was not begun with, so nobody calls `over`.
                unsafe { (self.calls.rbd_aio_release)(completion) };
            })
        });
        // SAFETY: what was taken out of its box above, and went nowhere.
        started.map(drop).map_err(|e| (unsafe { Box::from_raw(flight) }, e))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.watch_no_snapshots();
        // SAFETY: the image is open, and nobody else has the handle. Both wait until no callback runs any more.
        unsafe {
            if let Some(watch) = self.watch {
                (self.calls.rbd_update_unwatch)(self.handle, watch);
            }
            (self.calls.rbd_close)(self.handle);
        }
    }
}

/// A request that librbd has, with its memory.
pub(in crate::rbd) trait ImageRequest: Send + 'static {
    /// What is asked for.
    fn io(&mut self) -> &mut Io;

    /// It is over: how many bytes were read, 0, or a negative error number. A thread of librbd's says so, which must not wait.
    fn over(self: Box<Self>, result: i64);
}

/// A request in librbd's words.
enum ImageOperation {
    Read(u64, *mut c_char, usize),
    Write(u64, *const c_char, usize),
    Flush,
    Discard(u64, u64),
    Zero(u64, usize, c_int),
    /// Not one of librbd's.
    Nothing,
}

impl ImageOperation {
    fn of(io: &mut Io) -> Self {
        let slice = |buffer: &mut Buffer, range: &Range<usize>| {
            let slice = &mut buffer[range.clone()];
            (slice.as_mut_ptr().cast::<c_char>(), slice.len())
        };
        match io {
            Io::Read { offset, buffer, range } => {
                let (to, len) = slice(buffer, range);
                Self::Read(*offset, to, len)
            }
            Io::Write { offset, buffer, range, .. } => {
                let (from, len) = slice(buffer, range);
                Self::Write(*offset, from, len)
            }
            Io::Flush => Self::Flush,
            Io::Discard { offset, len } => Self::Discard(*offset, *len),
            Io::Zero { offset, len, punch } => {
                let len = usize::try_from(*len).unwrap_or(usize::MAX);
                Self::Zero(*offset, len, if *punch { 0 } else { THICK })
            }
            Io::Prefetch { .. } | Io::ReadTagged { .. } | Io::WriteTagged { .. } => Self::Nothing,
        }
    }
}

/// The numbers of the clients in the reply to a notification: how many there are; of each its number, its watch's, and how many bytes
/// it answers, and those. What comes after them are those that did not answer.
fn answered(mut reply: &[u8]) -> Vec<u64> {
    fn take<'r, const N: usize>(reply: &mut &'r [u8]) -> Option<&'r [u8; N]> {
        let (taken, rest) = reply.split_first_chunk()?;
        *reply = rest;
        Some(taken)
    }
    let count = take(&mut reply).map_or(0, |count| u32::from_le_bytes(*count));
    let mut next = || {
        let client = u64::from_le_bytes(*take(&mut reply)?);
        take::<8>(&mut reply)?;
        let len = usize::try_from(u32::from_le_bytes(*take(&mut reply)?)).ok()?;
        reply = reply.get(len..)?;
        Some(client)
    };
    (0..count).map_while(|_| next()).collect()
}

/// On a thread of librbd's: the request goes where it is waited for, and nothing else happens.
unsafe extern "C" fn over<F: ImageRequest>(completion: Handle, flight: *mut c_void) {
    // SAFETY: the flight that `start` gave away, which comes back once.
    let flight = unsafe { Box::from_raw(flight.cast::<F>()) };
    // There is one: else nothing was started.
    let Ok(calls) = calls() else { return };
    // SAFETY: it is over, and nobody else has it.
    let result = unsafe {
        let result = (calls.rbd_aio_get_return_value)(completion);
        (calls.rbd_aio_release)(completion);
        result
    };
    flight.over(result as i64);
}

/// On a thread of librbd's, which must not ask for anything.
unsafe extern "C" fn changed(noted: *mut c_void) {
    // SAFETY: the image's, which ends the watching before it goes.
    unsafe { &*noted.cast::<AtomicU64>() }.fetch_add(1, Ordering::Release);
}

/// On a thread of librbd's, which must not wait.
unsafe extern "C" fn begins(asker: *mut c_void) {
    // SAFETY: the image's, which ends the watching before it goes.
    let asker = unsafe { &*asker.cast::<SnapshotWatcher>() };
    let tell = asker.tell.clone();
    // Whoever closes the image may answer at once, and let go of the asker.
    asker.waits.fetch_add(1, Ordering::SeqCst);
    let _ = tell.send(SnapshotEvent::Begins);
}

/// As above.
unsafe extern "C" fn ends(asker: *mut c_void) {
    // SAFETY: as above.
    let _ = unsafe { &*asker.cast::<SnapshotWatcher>() }.tell.send(SnapshotEvent::Ends);
}

/// On the thread that asks.
unsafe extern "C" fn stored(offset: u64, len: usize, exists: c_int, runs: *mut c_void) -> c_int {
    // SAFETY: the list of `Image::stored`, which waits for this.
    let runs = unsafe { &mut *runs.cast::<Vec<Range<u64>>>() };
    if exists != 0 {
        let end = offset.saturating_add(len as u64);
        match runs.last_mut().filter(|last| last.end == offset) {
            Some(last) => last.end = end,
            None => runs.push(offset..end),
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_cut_short_names_whom_it_names() {
        let mut reply = 2_u32.to_le_bytes().to_vec();
        for (client, answer) in [(4121_u64, &b""[..]), (4133, b"words")] {
            reply.extend(client.to_le_bytes());
            reply.extend(7_u64.to_le_bytes());
            reply.extend(u32::try_from(answer.len()).unwrap().to_le_bytes());
            reply.extend(answer);
        }
        // One that did not answer.
        let whole = reply.len();
        reply.extend([1, 0, 0, 0].into_iter().chain([9; 16]));
        assert_eq!(answered(&reply), [4121, 4133]);
        for len in 0..whole {
            assert!([4121, 4133].starts_with(&answered(&reply[..len])) && answered(&reply[..len]).len() < 2);
        }
        assert_eq!(answered(&[0xff; 24]), []);
    }
}
