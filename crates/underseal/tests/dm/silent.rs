//! A file whose server never answers a read, nor the flush at the close of a descriptor.

use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use underseal_fuse::wire::{Attr, Body, InHeader, VALID, op};
use underseal_fuse::{FuseSession, Init, MountSettings, Point, ReceivedRequest};

use crate::support::Scratch;

/// The time after which the file's users get errors, where a test has gone wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// A file of 4 KiB, which all users may open. Dropping it ends its requests with errors.
pub(crate) struct SilentFile {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl SilentFile {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let path = scratch.file("silent", b"");
        let options = MountSettings {
            name: "silent".into(),
            subtype: "silent",
            read_only: false,
            allow_other: true,
            others: Vec::new(),
        };
        let init = Init { wanted: 0, needed: 0, since: "", max_write: 1 << 16, max_background: 64 };
        let point = Arc::new(Point::open(&path).unwrap());
        let session = FuseSession::mount(&point, &options, &init).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, at) = (is_over.clone(), path.clone());
        let server = thread::spawn(move || {
            serve(&session, &ends);
            // The connection is aborted, busy or not.
            let _ = unmount(&at, UnmountFlags::FORCE);
            session.close();
        });
        Self { path, is_over, server: Some(server) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SilentFile {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.server.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || thread::panicking());
    }
}

/// Answers until the test is over, or for [`PATIENCE`].
fn serve(session: &FuseSession, is_over: &AtomicBool) {
    let channel = session.channel(false).unwrap();
    let mut memory = vec![0; 1 << 17];
    let until = Instant::now() + PATIENCE;
    while !is_over.load(Ordering::Relaxed) && Instant::now() < until {
        let len = match channel.receive(&mut [IoSliceMut::new(&mut memory)]).unwrap() {
            ReceivedRequest::Request(len) => len,
            ReceivedRequest::Nothing => {
                thread::sleep(Duration::from_millis(5));
                continue;
            }
            ReceivedRequest::Ended => return,
        };
        let (header, _) = InHeader::read(&memory[..len]).unwrap();
        let mut reply = Vec::new();
        let mut body = Body(&mut reply);
        match header.opcode {
            op::READ | op::FLUSH | op::FORGET | op::BATCH_FORGET | op::INTERRUPT => continue,
            op::GETATTR => {
                let attr = Attr { ino: 1, size: 4096, mode: 0o100_444, nlink: 1, ..Attr::default() };
                body.attributes(&attr, VALID);
            }
            op::OPEN => {
                body.opened(1, 0);
            }
            op::RELEASE => {}
            _ => {
                channel.reply(header.unique, Err(Errno::NOSYS)).unwrap();
                continue;
            }
        }
        channel.reply(header.unique, Ok(&reply)).unwrap();
    }
}
