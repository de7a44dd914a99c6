//! Shared memory whose file another process can truncate at any moment.
//!
//! An access to a missing page raises SIGBUS, which ends a process with all volumes it serves. Here
//! the signal's handler replaces the whole mapping by empty memory, and the mapping is
//! [lost](Watch::is_lost) from then on: rings in it stop, and data copied out of it is discarded.

#![expect(unsafe_code, reason = "a guest's memory, and SIGBUS when it goes")]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::FileType;
use vm_memory::{FileOffset, MmapRegion};

use super::broken;

/// The magic number of hugetlbfs (linux/magic.h).
const HUGETLBFS: rustix::fs::FsWord = 0x958458f6;
/// The most mappings at a time, of all servers of the process.
const MOST: usize = 1024;

/// The range of a mapping, for the handler. The slot is unused while its length is 0.
struct Place {
    taken: AtomicBool,
    /// Odd while `start` and `len` change. Only the slot's owner changes them.
    version: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
}

impl Place {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    fn set(&self, start: usize, len: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.len.store(len, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns start and length of one mapping, or `None` while the slot changes: a changing slot
    /// is not the mapping that this thread has accessed.
    fn get(&self) -> Option<(usize, usize)> {
        self.get_during(|| {})
    }

    /// Reads as `get`, and runs `other` between the two loads.
    fn get_during(&self, other: impl FnOnce()) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        other();
        let len = self.len.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (version.is_multiple_of(2) && version == self.version.load(Ordering::Relaxed)).then_some((start, len))
    }
}

static PLACES: [Place; MOST] = [const { Place::new() }; MOST];

/// The previous action for the signal.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping's slot among the watched ones. It is dropped before the mapping.
pub(super) struct Watch(&'static Place);

impl Watch {
    /// Returns true when a page was missing at an access; the whole mapping is empty since.
    pub(super) fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.set(0, 0);
        self.0.taken.store(false, Ordering::Release);
    }
}

/// Maps `len` bytes of a file. Fails when the file is shorter, or the system refuses.
pub(super) fn map(
    file: File,
    offset: u64,
    len: usize,
    what: &str,
) -> vhost::vhost_user::Result<(Watch, MmapRegion)> {
    let failed = |why: String| broken(format!("{what} cannot be mapped: {why}"));
    let stat = rustix::fs::fstat(&file).map_err(|e| failed(e.to_string()))?;
    let end = offset.checked_add(len as u64).ok_or_else(|| failed("it is too long".into()))?;
    if FileType::from_raw_mode(stat.st_mode).is_file() && end > u64::try_from(stat.st_size).unwrap_or(0) {
        return Err(failed(format!("its file ends before byte {end}")));
    }
    let file_system = rustix::fs::fstatfs(&file).map_err(|e| failed(e.to_string()))?;
    let page = file_system.f_bsize as u64;
    // The kernel maps whole huge pages: the handler could not replace a part of one, nor could the
    // mapping be taken away again.
    if file_system.f_type == HUGETLBFS && !(offset.is_multiple_of(page) && end.is_multiple_of(page)) {
        return Err(failed(format!("its file has pages of {page} bytes, and a part of one is no region")));
    }
    listen().map_err(|e| failed(e.to_string()))?;
    let mapped =
        MmapRegion::from_file(FileOffset::new(file, offset), len).map_err(|e| failed(e.to_string()))?;
    let free = PLACES.iter().find(|place| !place.taken.swap(true, Ordering::AcqRel));
    let place = free.ok_or_else(|| failed("there are too many".into()))?;
    place.lost.store(false, Ordering::Release);
    place.set(mapped.as_ptr() as usize, len);
    Ok((Watch(place), mapped))
}

/// Installs the signal's handler, once.
fn listen() -> io::Result<()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all fields of the structure may be zero; the handler below has the signature that
    // SA_SIGINFO asks for.
    let done = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = on_bus_error as *const () as usize;
        // The handler runs on the thread's signal stack if it has one, as the previous handler.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, action, before.as_mut_ptr())
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and the kernel has filled it in.
    let _ = BEFORE.set(unsafe { before.assume_init() });
    Ok(())
}

/// Handles the signal with atomics and system calls only: it may interrupt any code.
extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid structure; for this signal it has an
    // address.
    let at = unsafe { (*info).si_addr() } as usize;
    for place in &PLACES {
        let Some((start, len)) = place.get() else { continue };
        if at.checked_sub(start).is_some_and(|offset| offset < len) {
            place.lost.store(true, Ordering::Release);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: the range is one of our mappings, which stays until its place is given back;
            // only volatile accesses are made to it, which find zeros instead of what is gone.
            let there = unsafe { libc::mmap(start as *mut libc::c_void, len, protection, flags, -1, 0) };
            if there != libc::MAP_FAILED {
                return;
            }
        }
    }
    // Another address: the previous action is restored, and applies when the instruction is
    // repeated.
    let before = BEFORE.get().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the action is the one that the kernel returned, or null, which changes nothing.
    unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_huge_page_is_not_mapped() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

        let file = match memfd_create("huge", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB) {
            Ok(file) => File::from(file),
            Err(e) => {
                return underseal_testing::skip("a_part_of_a_huge_page", &format!("no huge pages: {e}"));
            }
        };
        let page = rustix::fs::fstatfs(&file).unwrap().f_bsize as u64;
        ftruncate(&file, 2 * page).unwrap();
        for (offset, len) in [(0, 4096), (page, 4096)] {
            let refused = map(file.try_clone().unwrap(), offset, len, "memory").err().unwrap();
            assert!(refused.to_string().contains(&format!("pages of {page} bytes")), "{refused}");
        }
    }

    #[test]
    fn a_start_is_never_seen_with_the_length_of_another_mapping() {
        let place = Place::new();
        let (first, second) = ((0x1000, 0x1000), (0x9000, 0x10_0000));
        place.set(first.0, first.1);
        assert_eq!(place.get(), Some(first));
        let replaced = || {
            place.set(0, 0);
            place.set(second.0, second.1);
        };
        assert_eq!(place.get_during(replaced), None);
        assert_eq!(place.get(), Some(second));
    }
}
