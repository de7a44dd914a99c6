//! `dm run --supervise`: the device mapper for programs that make system calls themselves: static
//! ones and those in Go.
//!
//! ```text
//!   begin      the command, before it is run: starts a supervisor, installs the filter
//!     |- filter    the system calls that the kernel asks about
//!     |  listener
//!   run        the supervisor: a process that answers until the last program is gone
//!     |- notice    one system call: its caller's memory, the answer
//!     |- lanes     the threads that answer: some for each user, since callers' memory may hang
//!     +- answers   the opening of the node, its ioctls, /proc/devices, links in sysfs
//! ```
//!
//! The kernel runs a call itself where the supervisor permits that. A program that changes a path
//! after the supervisor has read it gains nothing: the kernel checks its rights.

mod answers;
mod filter;
mod lanes;
mod notice;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use underseal_dm::server::user_of_thread;

use self::answers::Answers;
use self::lanes::Lanes;
use self::notice::Notice;
use super::backend;
use crate::error::{Error, Result};
use crate::exit::Exit;

/// The byte that the supervisor sends when it listens, and when it has the listener.
const READY: &str = "!";

/// Starts a supervisor of this process and all its children. This process has no threads.
pub(crate) fn begin(folder: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::new(Exit::Failed, "no supervisor can be started").because(&e);
    let program = std::env::current_exe().map_err(failed)?;
    let (mut ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(["dm", "supervisor", "--folder"]).arg(folder).env_remove("LD_PRELOAD");
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    drop(command);
    let mut said = String::new();
    let read = child.stdout.take().map(|mut out| out.read_to_string(&mut said));
    // The started process has become a daemon by now.
    let status = child.wait().map_err(failed)?;
    read.transpose().map_err(failed)?;
    if !status.success() || said != READY {
        return Err(Error::new(Exit::Failed, "the supervisor could not begin"));
    }
    let listener = filter::install().map_err(|e| {
        Error::new(Exit::Failed, "the kernel asks no supervisor about system calls").because(&e)
    })?;
    send(&ours, &listener).map_err(failed)?;
    ours.read_exact(&mut [0]).map_err(failed)
}

fn send(socket: &UnixStream, listener: &OwnedFd) -> io::Result<()> {
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(READY.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let fds = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.ok_or_else(|| io::Error::other("no listener came"))
}

/// Supervises, in the background, the process that sends the listener over the socket on stdin.
pub(crate) fn run(folder: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::new(Exit::Failed, "there is nobody to supervise").because(&e);
    let child = crate::daemon::fork()?;
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let mut socket = UnixStream::from(socket);
    let answers = Answers::new(folder)?;
    crate::logging::to_file(&backend::log_file(folder))?;
    child.detach_saying(READY)?;
    let listener = receive(&socket).map_err(failed)?;
    socket.write_all(READY.as_bytes()).map_err(failed)?;
    drop(socket);
    supervise(listener.into(), answers).map_err(failed)
}

/// Has calls answered until no supervised program is left. This thread touches neither the memory
/// nor the descriptors of a caller: those may belong to a file whose server does not answer.
fn supervise(listener: Arc<OwnedFd>, answers: Answers) -> io::Result<()> {
    let answers = Arc::new(answers);
    let at_work = answers.clone();
    let own = rustix::process::geteuid().as_raw();
    let lanes = Lanes::new(own, move |notice| at_work.answer(notice))?;
    loop {
        let mut polled = [PollFd::new(&*listener, PollFlags::IN)];
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let ready = polled[0].revents();
        if !ready.contains(PollFlags::IN) {
            // A thread that still waits for a program's memory keeps its process from ending.
            answers.leave();
            return Ok(());
        }
        // A caller that has ended has no user.
        if let Some(notice) = Notice::receive(&listener)?
            && let Some(user) = user_of_thread(notice.thread)
        {
            lanes.give(user, notice);
        }
    }
}

/// Returns true when the kernel can ask a supervisor; the call has no other effect.
pub(crate) fn is_possible() -> bool {
    filter::is_possible()
}
