//! A thread that serves requests: maps requests to calls.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use underseal_device::Buffer;
use underseal_fuse::wire::{self, Body, InHeader, RequestArgs, VALID, device_from_wire, op};
use underseal_fuse::{EntryRequest, FuseChannel, HomeProcessors, ReceivedRequest, RingEntries};

use super::attributes::AttributeChange;
use super::cached::Patience;
use super::entries::{FileCreation, LookupEntry};
use super::inbox::RequestBuffer;
use super::pages::PageMemory;
use super::rings::Returned;
use super::slow::{Slow, SlowRequest, SlowRequests};
use super::{Answer, Fs, LARGEST, caller, identity};
use crate::file::{ShortWrite, WritePlace};

/// The way of a reply.
#[derive(Clone)]
pub(super) enum ReplyPath {
    Channel(Arc<FuseChannel>),
    /// Through the thread that has the request in an entry of its ring.
    Ring(Arc<Returned>, u32),
}

impl ReplyPath {
    fn reply(&self, unique: u64, answer: Answer<&[u8]>) -> io::Result<()> {
        match self {
            Self::Channel(channel) => channel.reply(unique, answer),
            Self::Ring(returned, number) => {
                returned.send(*number, answer.map(<[u8]>::to_vec));
                Ok(())
            }
        }
    }
}

/// A thread that serves requests.
pub(super) struct FsWorker {
    fs: Arc<Fs>,
    back: ReplyPath,
    /// The queue of slow requests. `None` for a thread that serves all requests itself.
    slow: Option<Slow>,
    inbox: RequestBuffer,
    /// Memory for decrypting contents, and for parts of extents.
    scratch: PageMemory,
    /// Memory for all other replies.
    out: Vec<u8>,
    /// A request's own memory, used instead of `scratch` in a read, and instead of the inbox's data
    /// in a write.
    lent: Option<Buffer>,
}

/// The reply to a request.
enum Reply {
    /// The contents of `out`.
    Out,
    /// A part of `scratch`, or of the request's own memory.
    Data(Range<usize>),
    /// No reply.
    Nothing,
    /// The request may take long; a thread for slow requests replies.
    Later,
}

impl FsWorker {
    pub(super) fn new(fs: Arc<Fs>, back: ReplyPath, slow: Option<Slow>) -> Self {
        let scratch = PageMemory::new(LARGEST as usize + 2 * crate::EXTENT);
        let inbox = RequestBuffer::new(LARGEST as usize);
        Self { fs, back, slow, inbox, scratch, out: Vec::new(), lent: None }
    }

    /// Serves slow requests until no threads are left that receive any.
    ///
    /// Fails when the kernel accepts no replies.
    pub(super) fn run_slow(&mut self, requests: SlowRequests) -> io::Result<()> {
        for request in requests {
            self.back = request.back;
            self.inbox.put(&[&request.bytes]);
            self.serve(request.bytes.len())?;
        }
        Ok(())
    }

    /// Serves until the mount is gone.
    ///
    /// Fails when the kernel accepts no replies, or sends no requests.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let ReplyPath::Channel(channel) = self.back.clone() else { return Ok(()) };
        loop {
            let len = match channel.receive(&mut self.inbox.room())? {
                ReceivedRequest::Request(len) => len,
                ReceivedRequest::Nothing => continue,
                ReceivedRequest::Ended => return Ok(()),
            };
            self.serve(len)?;
        }
    }

    fn serve(&mut self, len: usize) -> io::Result<()> {
        let Some((unique, answer)) = self.handle(len) else { return Ok(()) };
        let answer = match &answer {
            Ok(Reply::Nothing) => return Ok(()),
            Ok(Reply::Out) => Ok(self.out.as_slice()),
            Ok(Reply::Data(range)) => Ok(&self.scratch[range.clone()]),
            Ok(Reply::Later) => {
                let bytes = self.inbox.request(len).to_vec();
                return self.send_slow(SlowRequest { back: self.back.clone(), bytes });
            }
            Err(e) => Err(*e),
        };
        self.back.reply(unique, answer)
    }

    /// Serves the request of `len` bytes in the inbox. A malformed request, which the kernel does
    /// not send, has no answer.
    fn handle(&mut self, len: usize) -> Option<(u64, Answer<Reply>)> {
        let (header, _) = InHeader::read(self.inbox.request(len)).ok()?;
        self.out.clear();
        let answer = match header.opcode {
            _ if !self.admits(&header) => Err(Errno::ACCESS),
            op::WRITE => self.write(&header, len),
            _ => self.dispatch(&header, len),
        };
        Some((header.unique, answer))
    }

    /// Serves a request in an entry of a ring. The reply replaces its payload. Returns the reply's
    /// length, or `None` when another thread replies later, through `returned`.
    pub(super) fn serve_entry(
        &mut self,
        entries: &mut RingEntries,
        number: u32,
        home: &mut HomeProcessors,
        returned: &Arc<Returned>,
    ) -> io::Result<Option<Answer<usize>>> {
        let parts: EntryRequest<'_> = match entries.parts(number) {
            Ok(parts) => parts,
            Err(e) => return Ok(Some(Err(e))),
        };
        home.begins(&parts);
        let len = parts.header.len() + parts.arguments.len() + parts.payload.len();
        if len > self.inbox.len() {
            return Ok(Some(Err(Errno::IO)));
        }
        let opcode = parts.header.get(4..8).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes);
        let (is_write, is_read) = (opcode == Some(op::WRITE), opcode == Some(op::READ));
        // A write's bytes are encrypted in their place.
        self.inbox.put(&[parts.header, parts.arguments, if is_write { &[] } else { parts.payload }]);
        let data = parts.payload.len();
        if is_write || is_read {
            self.lent = entries.take_whole(number);
        }
        let answer = self.handle(len);
        let mut lent = self.lent.take();
        let sent = match answer {
            Some((_, Ok(Reply::Later))) => {
                let mut bytes = self.inbox.request(len).to_vec();
                if let (true, Some(lent)) = (is_write, &lent) {
                    let front = len - data;
                    bytes[front..].copy_from_slice(&lent[..data]);
                }
                let back = ReplyPath::Ring(returned.clone(), number);
                self.send_slow(SlowRequest { back, bytes })?;
                None
            }
            Some((_, Ok(Reply::Data(range)))) => {
                if let Some(lent) = &mut lent {
                    lent.copy_within(range.clone(), 0);
                }
                Some(Ok(range.len()))
            }
            Some((_, Ok(Reply::Out | Reply::Nothing))) => {
                let out = &self.out;
                let payload = match &mut lent {
                    Some(lent) => Some(&mut lent[..]),
                    None => entries.payload(number),
                };
                let room = payload.and_then(|payload| payload.get_mut(..out.len()));
                Some(room.ok_or(Errno::IO).map(|room| room.copy_from_slice(out)).map(|()| out.len()))
            }
            Some((_, Err(e))) => Some(Err(e)),
            None => Some(Err(Errno::IO)),
        };
        if let Some(whole) = lent {
            entries.put_back_whole(number, whole);
        }
        Ok(sent)
    }

    fn send_slow(&mut self, request: SlowRequest) -> io::Result<()> {
        let (fs, back) = (self.fs.clone(), request.back.clone());
        let start = move |requests| {
            let mut worker = Self::new(fs, back, None);
            thread::Builder::new().name("ecryptfs-slow".into()).spawn(move || {
                identity::detach()?;
                worker.run_slow(requests)
            })
        };
        self.slow.as_ref().map_or(Ok(()), |slow| slow.send(request, start))
    }

    /// Returns true when the caller has access at all. The kernel's own requests for open files
    /// have no caller.
    fn admits(&self, header: &InHeader) -> bool {
        let without_caller = matches!(
            header.opcode,
            op::READ
                | op::WRITE
                | op::READDIR
                | op::READDIRPLUS
                | op::FLUSH
                | op::FSYNC
                | op::FSYNCDIR
                | op::FORGET
                | op::BATCH_FORGET
                | op::RELEASE
                | op::RELEASEDIR
                | op::INTERRUPT
                | op::DESTROY
        );
        without_caller || header.uid == 0 || self.fs.owner.is_none_or(|owner| owner == header.uid)
    }

    fn write(&mut self, header: &InHeader, len: usize) -> Answer<Reply> {
        let (_, mut args) = InHeader::read(self.inbox.request(len))?;
        let (handle, offset, size, flags) = (args.u64()?, args.u64()?, args.u32()? as usize, args.u32()?);
        args.skip(8)?;
        let opened = OFlags::from_bits_retain(args.u32()?);
        args.skip(4)?;
        args.take(size)?;
        let file = self.fs.handles.file(handle)?;
        let appends = opened.contains(OFlags::APPEND) && flags & wire::WRITE_CACHE == 0;
        let place = if appends {
            self.fs.place_to_append(header.node, offset, opened)?
        } else {
            WritePlace::At(offset)
        };
        let grows = || place == WritePlace::At(offset) && file.grows_far(offset);
        if self.slow.is_some() && (file.is_busy() || grows()) {
            return Ok(Reply::Later);
        }
        let is_over = || caller::is_dying(header.pid);
        let data = match &mut self.lent {
            Some(lent) => &mut lent[..],
            None => self.inbox.data(),
        };
        let short = match flags & wire::WRITE_CACHE {
            0 => ShortWrite::Counted,
            _ => ShortWrite::Failed,
        };
        let written = file.write(place, size, data, &mut self.scratch, short, &is_over);
        let written = match written {
            Ok(written) => written,
            Err(e) => return Err(self.fs.tell(&*self.fs.nodes.get(header.node)?, "write", &e)),
        };
        if flags & wire::WRITE_KILL_SUIDGID != 0 {
            file.kill_suid()?;
        }
        Body(&mut self.out).written(u32::try_from(written).unwrap_or(u32::MAX));
        Ok(Reply::Out)
    }

    fn dispatch(&mut self, header: &InHeader, len: usize) -> Answer<Reply> {
        let Self { fs, inbox, scratch, out, lent, .. } = self;
        let later = self.slow.is_some();
        if later && fs.may_wait_for_names(header.opcode, len) {
            return Ok(Reply::Later);
        }
        let patience = if later { Patience::Refuse } else { Patience::Wait };
        let (_, mut args) = InHeader::read(inbox.request(len))?;
        let args = &mut args;
        let node = header.node;
        if matches!(header.opcode, op::OPEN | op::CREATE | op::TMPFILE | op::OPENDIR) {
            fs.handles.has_room(header.uid)?;
        }
        match header.opcode {
            op::LOOKUP => match fs.lookup(node, args.name()?, patience) {
                Ok(Some(found)) => entry(out, &found),
                Ok(None) => return Ok(Reply::Later),
                // Worth remembering, too.
                Err(Errno::NOENT) => {
                    Body(out).no_entry();
                }
                Err(e) => return Err(e),
            },
            op::FORGET => {
                fs.nodes.forget(node, args.u64()?);
                return Ok(Reply::Nothing);
            }
            op::BATCH_FORGET => {
                let count = args.u32()?;
                args.skip(4)?;
                for _ in 0..count {
                    fs.nodes.forget(args.u64()?, args.u64()?);
                }
                return Ok(Reply::Nothing);
            }
            op::GETATTR => match fs.getattr(node, patience)? {
                Some(stat) => _ = Body(out).attributes(&(&stat).into(), VALID),
                None => return Ok(Reply::Later),
            },
            op::SETATTR => {
                let change = AttributeChange::read(args)?;
                if later && change.sets_size() {
                    return Ok(Reply::Later);
                }
                let stat = fs.setattr(node, &change, &|| caller::is_dying(header.pid))?;
                Body(out).attributes(&(&stat).into(), VALID);
            }
            op::READLINK => *out = fs.readlink(node)?,
            op::SYMLINK => {
                let name = args.name()?;
                entry(out, &fs.symlink(header, name, args.name()?)?);
            }
            op::MKNOD => {
                let (mode, device, umask) = (args.u32()?, args.u32()?, args.u32()?);
                args.skip(4)?;
                entry(
                    out,
                    &fs.mknod(header, args.name()?, &FileCreation { mode, umask }, device_from_wire(device))?,
                );
            }
            op::MKDIR => {
                let make = FileCreation { mode: args.u32()?, umask: args.u32()? };
                entry(out, &fs.mkdir(header, args.name()?, &make)?);
            }
            op::UNLINK => fs.unlink(header, args.name()?, AtFlags::empty())?,
            op::RMDIR => fs.unlink(header, args.name()?, AtFlags::REMOVEDIR)?,
            op::RENAME | op::RENAME2 => {
                let folder = args.u64()?;
                let flags = if header.opcode == op::RENAME { 0 } else { args.u32()? };
                args.skip(if header.opcode == op::RENAME { 0 } else { 4 })?;
                let name = args.name()?;
                fs.rename(header, name, (folder, args.name()?), flags)?;
            }
            op::LINK => {
                let old = args.u64()?;
                entry(out, &fs.link(header, old, args.name()?)?);
            }
            op::OPEN => {
                let (flags, more) = (args.u32()?, args.u32()?);
                let cuts = OFlags::from_bits_retain(flags).contains(OFlags::TRUNC);
                if later && cuts {
                    return Ok(Reply::Later);
                }
                match fs.open(node, flags, more & wire::OPEN_KILL_SUIDGID != 0, header.uid, patience)? {
                    Some((handle, flags)) => _ = Body(out).opened(handle, flags),
                    None => return Ok(Reply::Later),
                }
            }
            op::CREATE => return Self::create(fs, header, args, out),
            op::TMPFILE => {
                let (flags, mode, umask) = (OFlags::from_bits_retain(args.u32()?), args.u32()?, args.u32()?);
                let (found, file) =
                    fs.tmpfile(header, &FileCreation { mode, umask }, flags.contains(OFlags::EXCL))?;
                entry(out, &found);
                let (handle, flags) = fs.opened_new(&found.node, file, flags, header.uid);
                Body(out).opened(handle, flags);
            }
            op::READ => {
                let (handle, offset, size) = (args.u64()?, args.u64()?, args.u32()?.min(LARGEST));
                let file = fs.handles.file(handle)?;
                if later && file.is_busy() {
                    return Ok(Reply::Later);
                }
                let memory = match lent {
                    Some(lent) => &mut lent[..],
                    None => &mut scratch[..],
                };
                let read = file.read(offset, size as usize, memory);
                return match read {
                    Ok(range) => Ok(Reply::Data(range)),
                    Err(e) => Err(fs.tell(&*fs.nodes.get(node)?, "read", &e)),
                };
            }
            op::STATFS => fs.statfs(node, out)?,
            op::RELEASE => fs.release(node, args.u64()?),
            op::RELEASEDIR => fs.handles.close(args.u64()?),
            op::FLUSH => {}
            op::FSYNC | op::FSYNCDIR | op::FALLOCATE if later => return Ok(Reply::Later),
            op::FSYNC => {
                let (handle, flags) = (args.u64()?, args.u32()?);
                let synced = fs.handles.file(handle)?.sync(flags & wire::FSYNC_DATA != 0);
                if let Err(e) = synced {
                    return Err(fs.tell(&*fs.nodes.get(node)?, "fsync", &e));
                }
            }
            op::OPENDIR => {
                let folder = fs.open_folder(node)?;
                Body(out).opened(fs.handles.add_folder(folder, header.uid), 0);
            }
            op::READDIR | op::READDIRPLUS => {
                let (handle, offset, size) = (args.u64()?, args.u64()?, args.u32()?.min(LARGEST));
                let folder = fs.handles.folder(handle)?;
                fs.read_folder(&folder, offset, size as usize, header.opcode == op::READDIRPLUS, out)?;
            }
            op::FSYNCDIR => fs.handles.folder(args.u64()?)?.sync()?,
            op::SETXATTR => {
                let (size, flags, more) = (args.u32()?, args.u32()?, args.u32()?);
                args.skip(4)?;
                let name = args.name()?;
                let value = args.take(size as usize)?;
                fs.setxattr(node, name, value, flags, more & wire::ACL_KILL_SGID != 0)?;
            }
            op::GETXATTR => {
                let room = args.u32()?;
                args.skip(4)?;
                fs.getxattr(node, args.name()?, room, out)?;
            }
            op::LISTXATTR => {
                let room = args.u32()?;
                fs.listxattr(node, out)?;
                fit(out, room)?;
            }
            op::REMOVEXATTR => fs.removexattr(node, args.name()?)?,
            op::FALLOCATE => {
                let (handle, offset, size, mode) = (args.u64()?, args.u64()?, args.u64()?, args.u32()?);
                let is_over = || caller::is_dying(header.pid);
                let file = fs.handles.file(handle)?;
                if let Err(e) = file.allocate(offset, size, mode, &is_over) {
                    return Err(fs.tell(&*fs.nodes.get(node)?, "fallocate", &e));
                }
                // The kernel has no flag for it here, as it has for writes and cuts.
                if header.uid != 0 {
                    file.kill_suid()?;
                }
            }
            op::LSEEK => {
                let (handle, offset, whence) = (args.u64()?, args.u64()?, args.u32()?);
                let hole = match whence {
                    3 => false,
                    4 => true,
                    _ => return Err(Errno::INVAL),
                };
                let file = fs.handles.file(handle)?;
                if later && file.is_busy() {
                    return Ok(Reply::Later);
                }
                let at = file.seek(offset, hole).map_err(|e| e.errno)?;
                Body(out).u64(at);
            }
            // Long calls check themselves whether the caller is dying; other signals have no
            // effect.
            op::INTERRUPT => return Ok(Reply::Nothing),
            op::DESTROY => {}
            _ => return Err(Errno::NOSYS),
        }
        Ok(Reply::Out)
    }

    fn create(fs: &Fs, header: &InHeader, args: &mut RequestArgs<'_>, out: &mut Vec<u8>) -> Answer<Reply> {
        let (flags, mode, umask) = (OFlags::from_bits_retain(args.u32()?), args.u32()?, args.u32()?);
        // The flags of opening.
        args.skip(4)?;
        let name = args.name()?;
        match fs.create_new(header, name, &FileCreation { mode, umask }) {
            Ok((found, file)) => {
                entry(out, &found);
                let (handle, flags) = fs.opened_new(&found.node, file, flags, header.uid);
                Body(out).opened(handle, flags);
            }
            // Created in the lower folder since the kernel's last lookup. The kernel checks no
            // permissions for a file that it takes for a new one: it looks the name up again.
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                if let Ok(Some(found)) = fs.lookup(header.node, name, Patience::Refuse) {
                    fs.nodes.forget(found.node.id, 1);
                }
                return Err(Errno::STALE);
            }
            Err(e) => return Err(e),
        }
        Ok(Reply::Out)
    }
}

fn entry(out: &mut Vec<u8>, found: &LookupEntry) {
    Body(out).entry(found.node.id, &(&found.stat).into());
}

/// Replies with a value if it fits, or with its size if only the size was requested.
fn fit(out: &mut Vec<u8>, room: u32) -> Answer<()> {
    let len = u32::try_from(out.len()).map_err(|_| Errno::TOOBIG)?;
    match room {
        0 => {
            out.clear();
            Body(out).u32(len).u32(0);
            Ok(())
        }
        _ if len > room => Err(Errno::RANGE),
        _ => Ok(()),
    }
}
