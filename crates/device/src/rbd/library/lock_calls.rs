//! Calls for an image's exclusive lock, its owners and the clients that have it open.

#![expect(unsafe_code, reason = "librbd's C functions")]

use std::ffi::{CStr, CString};
use std::ptr;
use std::time::Duration;

use rustix::io::Errno;

use super::image::Image;
use super::{EXCLUSIVE, Watcher, answer};
use crate::rbd::quiet::BlockedSignals;

impl Image {
    /// Takes the exclusive lock, until the image is closed. Waits for the lock of a dead owner.
    pub(in crate::rbd) fn lock(&self) -> std::result::Result<(), Errno> {
        let _quiet = BlockedSignals::begin();
        // SAFETY: the image is open.
        answer(unsafe { (self.calls.rbd_lock_acquire)(self.handle, EXCLUSIVE) }).map(drop)
    }

    /// Takes the lock from the client at this address, and shuts that client out: its pending
    /// requests are not carried out any more.
    pub(in crate::rbd) fn break_lock(&self, address: &str) -> std::result::Result<(), Errno> {
        let address = CString::new(address).map_err(|_| Errno::INVAL)?;
        let _quiet = BlockedSignals::begin();
        // SAFETY: the image is open; the string is only read.
        answer(unsafe { (self.calls.rbd_lock_break)(self.handle, EXCLUSIVE, address.as_ptr()) }).map(drop)
    }

    /// The address of the lock's owner, as the cluster reports it now: the [list](Self::lockers) of
    /// owners may be old. `None` for an image without an owner.
    pub(in crate::rbd) fn owner(&self) -> std::result::Result<Option<String>, Errno> {
        let (mut mode, mut owners, mut count) = (0, [ptr::null_mut(); 4], 4);
        // SAFETY: the image is open; the call writes at most `count` owners, and their number.
        let asked = answer(unsafe {
            let to = owners.as_mut_ptr();
            (self.calls.rbd_lock_get_owners)(self.handle, &raw mut mode, to, &raw mut count)
        });
        match asked {
            Err(Errno::NOENT) => return Ok(None),
            asked => asked?,
        };
        let of = owners.first().filter(|owner| count > 0 && !owner.is_null());
        // SAFETY: the pointer is a string, until it is cleaned up below.
        let owner = of.map(|owner| unsafe { CStr::from_ptr(*owner) }.to_string_lossy().into_owned());
        // SAFETY: the list comes from librbd, and is cleaned up once.
        unsafe { (self.calls.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(owner)
    }

    /// Has the cluster refuse requests of the client at this address for a time (`ceph osd
    /// blocklist add`). An entry that is there stays as it is.
    pub(in crate::rbd) fn shut_out(&self, address: &str, time: Duration) -> std::result::Result<(), Errno> {
        // An IP address with a port, and a number: nothing that JSON escapes.
        if !address.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:/[]%-".contains(&byte)) {
            return Err(Errno::INVAL);
        }
        let seconds = time.as_secs();
        // The monitors of Ceph before 16 know it by its older name.
        let add = |verb: &str| {
            let text = format!(
                r#"{{"prefix":"osd {verb}","{verb}op":"add","addr":"{address}","expire":{seconds}.0}}"#
            );
            self.command(&CString::new(text).map_err(|_| Errno::INVAL)?)
        };
        add("blocklist").or_else(|e| if e == Errno::INVAL { add("blacklist") } else { Err(e) })
    }

    /// Sends a command to the monitors.
    fn command(&self, text: &CStr) -> std::result::Result<(), Errno> {
        let (mut output, mut len) = (ptr::null_mut(), 0);
        let (mut status, mut status_len) = (ptr::null_mut(), 0);
        let mut words = [text.as_ptr()];
        let _quiet = BlockedSignals::begin();
        // SAFETY: the cluster is connected; the command is only read, and the call writes addresses
        // and lengths of the two answers.
        let done = answer(unsafe {
            (self.calls.rados_mon_command)(
                self.pool.cluster.handle,
                words.as_mut_ptr(),
                words.len(),
                ptr::null(),
                0,
                &raw mut output,
                &raw mut len,
                &raw mut status,
                &raw mut status_len,
            )
        });
        for memory in [output, status] {
            if !memory.is_null() {
                // SAFETY: the memory comes from librados, and is not used any more.
                unsafe { (self.calls.rados_buffer_free)(memory) };
            }
        }
        done.map(drop)
    }

    /// The owners of the lock: names of clients, and their addresses.
    pub(in crate::rbd) fn lockers(&self) -> Vec<(String, String)> {
        const ROOM: usize = 4096;
        let mut texts = [(); 4].map(|()| vec![0_u8; ROOM]);
        let mut lens = [ROOM; 4];
        let mut exclusive = 0;
        let [tag, clients, cookies, addresses] = &mut texts;
        let [of_tag, of_clients, of_cookies, of_addresses] = &mut lens;
        // SAFETY: each buffer has the length that is passed for it; the call writes the used
        // lengths.
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
        // The words follow each other, each with a zero at its end.
        let words = |text: &[u8]| -> Vec<String> {
            text.split(|byte| *byte == 0)
                .take(count)
                .map(|word| String::from_utf8_lossy(word).into())
                .collect()
        };
        words(clients).into_iter().zip(words(addresses)).collect()
    }

    /// The addresses of the clients that have the image open, those included that stopped answering
    /// less than half a minute ago.
    pub(in crate::rbd) fn watchers(&self) -> std::result::Result<Vec<String>, Errno> {
        const ROOM: usize = 64;
        let mut watchers = [Watcher { address: ptr::null_mut(), id: 0, cookie: 0 }; ROOM];
        let mut count = ROOM;
        // SAFETY: the image is open; the call writes at most `count` watchers, and their number.
        answer(unsafe {
            (self.calls.rbd_watchers_list)(self.handle, watchers.as_mut_ptr(), &raw mut count)
        })?;
        let there = watchers.iter().take(count).filter(|watcher| !watcher.address.is_null());
        // SAFETY: each pointer is a string, until the list is cleaned up below.
        let address = |of: &Watcher| unsafe { CStr::from_ptr(of.address) }.to_string_lossy().into_owned();
        let addresses = there.map(address).collect();
        // SAFETY: the list comes from librbd, and is cleaned up once.
        unsafe { (self.calls.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        Ok(addresses)
    }
}
