//! The transport's limit: a file in memory without a cipher, served by fuser's own loop.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};

use super::BenchError;

/// A piece of the memory, which readers share.
const PIECE: usize = 1 << 20;

struct Memory {
    pieces: Vec<RwLock<Box<[u8]>>>,
    attr: FileAttr,
}

/// Serves `size` bytes of memory as the file `path`, until it is unmounted.
///
/// # Errors
/// When the system does not mount.
pub fn serve_fuse_memory(size: u64, path: &Path, threads: usize) -> Result<(), BenchError> {
    let pieces = usize::try_from(size).unwrap_or(usize::MAX).div_ceil(PIECE);
    let memory = Memory {
        // Touched, so that the first measurement does not pay for the pages.
        pieces: (0..pieces).map(|_| RwLock::new(vec![1; PIECE].into_boxed_slice())).collect(),
        attr: attr(size),
    };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("memory".into()), MountOption::DefaultPermissions];
    config.n_threads = Some(threads);
    config.clone_fd = true;
    fuser::mount(memory, path, &config)
        .map_err(|e| BenchError::because("cannot serve memory through FUSE", e))
}

impl Memory {
    /// Calls `with` for each piece of a range: the piece's number, the range in it, and the place
    /// in the whole range.
    fn pieces_of(offset: u64, len: usize, mut with: impl FnMut(usize, std::ops::Range<usize>, usize)) {
        let (mut at, mut done) = (usize::try_from(offset).unwrap_or(usize::MAX), 0);
        while done < len {
            let from = at % PIECE;
            let part = (PIECE - from).min(len - done);
            with(at / PIECE, from..from + part, done);
            (at, done) = (at + part, done + part);
        }
    }
}

impl Filesystem for Memory {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // The capabilities that the server under test requests.
        let wanted = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(256);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::from_secs(1), &self.attr);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = offset.saturating_add(size.into()).min(self.attr.size);
        let len = usize::try_from(end.saturating_sub(offset)).unwrap_or(0);
        let from = usize::try_from(offset).unwrap_or(0) % PIECE;
        if let Some(piece) = self.pieces.get(usize::try_from(offset).unwrap_or(usize::MAX) / PIECE)
            && from + len <= PIECE
        {
            // Directly from the memory, like every aligned request.
            return reply.data(&piece.read().unwrap_or_else(PoisonError::into_inner)[from..from + len]);
        }
        let mut data = vec![0; len];
        Self::pieces_of(offset, len, |piece, range, at| {
            let piece = self.pieces[piece].read().unwrap_or_else(PoisonError::into_inner);
            data[at..at + range.len()].copy_from_slice(&piece[range]);
        });
        reply.data(&data);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > self.attr.size) {
            return reply.error(Errno::ENOSPC);
        }
        Self::pieces_of(offset, data.len(), |piece, range, at| {
            let mut piece = self.pieces[piece].write().unwrap_or_else(PoisonError::into_inner);
            piece[range.clone()].copy_from_slice(&data[at..at + range.len()]);
        });
        reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn attr(size: u64) -> FileAttr {
    FileAttr {
        ino: INodeNo(1),
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0o600,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
