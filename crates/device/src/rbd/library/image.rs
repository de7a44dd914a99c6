//! An open image, and its calls of the library.

#![expect(unsafe_code, reason = "librbd's C functions")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::notify_reply::clients_that_answered;
use super::{Calls, Handle, Pool, Setting, THICK, answer, calls};
use crate::rbd::quiet::BlockedSignals;
use crate::rbd::snapshots::SnapshotEvent;
use crate::{Buffer, Io};

/// An open image. All queues share it: each image that is opened would be another owner of its
/// lock.
pub(in crate::rbd) struct Image {
    pub(super) handle: Handle,
    pub(super) calls: &'static Calls,
    pub(super) watch: Option<u64>,
    /// The number of changes of the image's header, which a thread of librbd counts during the
    /// watch.
    pub(super) changes: Arc<AtomicU64>,
    /// The receiver of snapshot messages, during the watch.
    pub(super) asked: Option<Box<SnapshotWatcher>>,
    pub(super) pool: Pool,
}

/// The receiver of snapshot messages, and the state of the watch.
pub(super) struct SnapshotWatcher {
    tell: mpsc::Sender<SnapshotEvent>,
    watch: AtomicU64,
    /// The number of snapshots for which librbd waits for a pause.
    waits: AtomicU32,
}

// SAFETY: librbd allows concurrent calls on one image from any thread; nothing else is behind the
// pointers.
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
        // SAFETY: the image is open; the call writes the number.
        answer(unsafe { of(self.handle, &raw mut number) }).map(|_| number)
    }

    /// Returns the values in force of these options for this image, set by this program, the pool
    /// or the image. `None`: librbd has no option of this name.
    pub(in crate::rbd) fn settings<const N: usize>(
        &self,
        names: [&CStr; N],
    ) -> std::result::Result<[Option<String>; N], Errno> {
        // Ceph 16 has a hundred options.
        const MOST: c_int = 1 << 14;
        let mut count: c_int = 1 << 10;
        let settings = loop {
            let mut settings: Vec<Setting> = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
            // SAFETY: the image is open; the call writes at most `count` entries, and their number.
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
        // SAFETY: the call wrote `count` entries.
        unsafe { settings.set_len(usize::try_from(count).unwrap_or(0)) };
        let found = names.map(|name| {
            // SAFETY: the names and values are strings until they are cleaned up below.
            let one = settings.iter().find(|one| unsafe { CStr::from_ptr(one.name) } == name)?;
            // SAFETY: as above.
            Some(unsafe { CStr::from_ptr(one.value) }.to_string_lossy().into_owned())
        });
        // SAFETY: the list comes from librbd, and is cleaned up once.
        unsafe { (self.calls.rbd_config_image_list_cleanup)(settings.as_mut_ptr(), count) };
        Ok(found)
    }

    /// The image's id, which no other image ever gets: digits and Latin characters.
    pub(in crate::rbd) fn id(&self) -> std::result::Result<String, Errno> {
        let mut id = [0_u8; 256];
        // SAFETY: the call writes at most the buffer's length, with a zero at the end.
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

    /// Returns the numbers of the clients that have the image open for writing and answer,
    /// including this one.
    ///
    /// The clients get a notification that the image's header may have changed, which each answers,
    /// and which changes nothing.
    pub(in crate::rbd) fn present(&self, patience: Duration) -> std::result::Result<Vec<u64>, Errno> {
        let header = CString::new(format!("rbd_header.{}", self.id()?)).map_err(|_| Errno::IO)?;
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        let (mut reply, mut len) = (ptr::null_mut(), 0);
        let _quiet = BlockedSignals::begin();
        // SAFETY: the pool is open; nothing is sent, and the call writes the reply's address and
        // length.
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
            // SAFETY: the reply has `len` bytes, until it is freed below.
            let present = clients_that_answered(unsafe { std::slice::from_raw_parts(reply.cast(), len) });
            // SAFETY: the memory comes from librados, and is not used any more.
            unsafe { (self.calls.rados_buffer_free)(reply) };
            present
        };
        match notified {
            // Some clients have not answered: a dead one is among them for half a minute.
            Ok(_) | Err(Errno::TIMEDOUT) => Ok(present),
            Err(e) => Err(e),
        }
    }

    /// Starts to count changes of the image's header.
    pub(in crate::rbd) fn watch(&mut self) -> std::result::Result<(), Errno> {
        let (mut watch, noted) = (0, Arc::as_ptr(&self.changes).cast_mut().cast());
        let _quiet = BlockedSignals::begin();
        // SAFETY: `changes` stays in place until `drop` has ended the watch.
        answer(unsafe { (self.calls.rbd_update_watch)(self.handle, &raw mut watch, changed, noted) })?;
        self.watch = Some(watch);
        Ok(())
    }

    /// The number of changes of the image's header since the watch began.
    pub(in crate::rbd) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Starts to report snapshots, which wait for [`rests`](Self::rests).
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
        // SAFETY: `asker` stays in place until `drop` has ended the watch; the call writes the
        // number.
        answer(unsafe { (self.calls.rbd_quiesce_watch)(self.handle, begins, ends, to, &raw mut watch) })?;
        asker.watch.store(watch, Ordering::SeqCst);
        self.asked = Some(asker);
        Ok(())
    }

    /// Answers the program that makes a snapshot: requests are paused, or cannot be.
    pub(in crate::rbd) fn rests(&self, rests: std::result::Result<(), Errno>) {
        let Some(asker) = &self.asked else { return };
        let one_less = |waits: u32| waits.checked_sub(1);
        if asker.waits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            let result = rests.map_or_else(|e| -e.raw_os_error(), |()| 0);
            let watch = asker.watch.load(Ordering::SeqCst);
            // SAFETY: the image is open, and librbd waits for this call.
            unsafe { (self.calls.rbd_quiesce_complete)(self.handle, watch, result) };
        }
    }

    /// Ends the reports of snapshots. A snapshot that waits meanwhile fails: librbd would wait for
    /// ever.
    pub(in crate::rbd) fn watch_no_snapshots(&mut self) {
        let this = &*self;
        let Some(asker) = &this.asked else { return };
        let watch = asker.watch.load(Ordering::SeqCst);
        let unwatch = || {
            // SAFETY: the image is open, and the watch is ended once.
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

    /// The stored runs of a range, in whole objects.
    pub(in crate::rbd) fn stored(&self, range: Range<u64>) -> std::result::Result<Vec<Range<u64>>, Errno> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let len = range.end.saturating_sub(range.start);
        // SAFETY: `stored` gets the list, which has no other user until the call returns; a null
        // pointer means the time since the image was made.
        answer(unsafe {
            let to = ptr::from_mut(&mut runs).cast();
            (self.calls.rbd_diff_iterate2)(self.handle, ptr::null(), range.start, len, 1, 1, stored, to)
        })?;
        Ok(runs)
    }

    /// Starts a request. librbd owns the memory until a thread of librbd calls `over`. Returns the
    /// request with the error when it was not begun.
    pub(in crate::rbd) fn start<F: ImageRequest>(
        &self,
        mut flight: Box<F>,
    ) -> std::result::Result<(), (Box<F>, Errno)> {
        let what = ImageOperation::of(flight.io());
        let mut completion = ptr::null_mut();
        let flight = Box::into_raw(flight);
        // SAFETY: the call writes the handle; `over` gets the request back.
        let made =
            unsafe { (self.calls.rbd_aio_create_completion)(flight.cast(), over::<F>, &raw mut completion) };
        let started = answer(made).and_then(|_| {
            // SAFETY: the image is open. The request owns the memory, and stays in place until
            // `over` gets it: so the memory is valid and has no other user, and
            // `ImageOperation::of` took it from the request's own slices.
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
                // SAFETY: no request was begun with the completion, so `over` is not called.
                unsafe { (self.calls.rbd_aio_release)(completion) };
            })
        });
        // SAFETY: the pointer was taken out of its box above, and was not passed on.
        started.map(drop).map_err(|e| (unsafe { Box::from_raw(flight) }, e))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.watch_no_snapshots();
        // SAFETY: the image is open, and the handle has no other user. Both calls wait until no
        // callback runs any more.
        unsafe {
            if let Some(watch) = self.watch {
                (self.calls.rbd_update_unwatch)(self.handle, watch);
            }
            (self.calls.rbd_close)(self.handle);
        }
    }
}

/// A request in librbd, with its memory.
pub(in crate::rbd) trait ImageRequest: Send + 'static {
    /// The request's operation and memory.
    fn io(&mut self) -> &mut Io;

    /// Takes the request back at its end: the number of bytes read, 0, or a negative error number.
    /// A thread of librbd calls this, and must not wait.
    fn over(self: Box<Self>, result: i64);
}

/// A request in the form of librbd's calls.
enum ImageOperation {
    Read(u64, *mut c_char, usize),
    Write(u64, *const c_char, usize),
    Flush,
    Discard(u64, u64),
    Zero(u64, usize, c_int),
    /// An operation that librbd does not have.
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

/// Called by a thread of librbd: sends the request to its channel, and does nothing else.
unsafe extern "C" fn over<F: ImageRequest>(completion: Handle, flight: *mut c_void) {
    // SAFETY: `start` gave the request away, and gets it back once.
    let flight = unsafe { Box::from_raw(flight.cast::<F>()) };
    // The libraries are loaded: otherwise no request was started.
    let Ok(calls) = calls() else { return };
    // SAFETY: the completion is over, and has no other user.
    let result = unsafe {
        let result = (calls.rbd_aio_get_return_value)(completion);
        (calls.rbd_aio_release)(completion);
        result
    };
    flight.over(result as i64);
}

/// Called by a thread of librbd, which must not call librbd.
unsafe extern "C" fn changed(noted: *mut c_void) {
    // SAFETY: the image owns the counter, and ends the watch before it is dropped.
    unsafe { &*noted.cast::<AtomicU64>() }.fetch_add(1, Ordering::Release);
}

/// Called by a thread of librbd, which must not wait.
unsafe extern "C" fn begins(asker: *mut c_void) {
    // SAFETY: the image owns the watcher, and ends the watch before it is dropped.
    let asker = unsafe { &*asker.cast::<SnapshotWatcher>() };
    let tell = asker.tell.clone();
    // A thread that closes the image may answer at once, and drop the watcher.
    asker.waits.fetch_add(1, Ordering::SeqCst);
    let _ = tell.send(SnapshotEvent::Begins);
}

/// As above.
unsafe extern "C" fn ends(asker: *mut c_void) {
    // SAFETY: as above.
    let _ = unsafe { &*asker.cast::<SnapshotWatcher>() }.tell.send(SnapshotEvent::Ends);
}

/// Called by the thread that asks.
unsafe extern "C" fn stored(offset: u64, len: usize, exists: c_int, runs: *mut c_void) -> c_int {
    // SAFETY: the list belongs to `Image::stored`, which waits for this call.
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
