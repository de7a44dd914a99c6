//! System calls that may hang for ever, made by processes apart.
//!
//! A lower device, or a file's server, that does not answer keeps the process that opens, stats,
//! syncs or closes it, even from being killed. So the back end asks another process, with a limit
//! to its patience, and goes on without it.
//!
//! ```text
//!   back end   do this, 30 s at most       -> helper    one of a few that wait for work
//!              ETIMEDOUT for the caller
//!              EBUSY for the next ones        ..hangs
//!              takes back a late step       <- done
//! ```
//!
//! A helper that is killed is followed by another one, which does the same again.

mod lower;
mod work;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child as Process, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_dm::{DeviceNumber, Error, Family, LoopStep, LoopWork, LoopWorker, Result};
use underseal_export::control::Line;
use underseal_export::net::Socket;

pub(super) use self::work::{HelperOutcome, HelperWork};
use super::server::lock_memory;
use super::timed_line::TimedLine;
use crate::error::Error as Failure;
use crate::exit::Exit;

/// How long a look at a device may take before it counts as in use.
const LOOK: Duration = Duration::from_secs(2);
/// How long a step may take that writes nothing.
const STEP: Duration = Duration::from_secs(30);
/// How long a device may take to leave its file, which writes the last of it.
const LEAVES: Duration = Duration::from_secs(120);
/// How long writing may take: all that the kernel has in memory, on a slow disk.
const WRITES: Duration = Duration::from_secs(600);
/// How long a helper may take to receive or to send a message.
const SOON: Duration = Duration::from_secs(30);
/// Between two messages.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);
/// How many helpers wait for work at most, and how long more than one do.
const MOST_IDLE: usize = 16;
const IDLE: Duration = Duration::from_secs(10);
/// How many helpers try one thing, where one after the other is killed.
const TRIES: usize = 2;

/// Does one piece of work after the other until the back end is gone.
pub(crate) fn run(lock: bool) -> crate::error::Result<()> {
    // The back end has told the log whether these can be.
    if lock {
        let _ = lock_memory();
    }
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let socket = io::stdin().as_fd().try_clone_to_owned();
    let socket = socket.map_err(|e| Failure::new(Exit::Failed, "stdin cannot be used").because(&e))?;
    let line = Line::new(Socket::from(socket));
    while let Ok(heard) = line.receive::<HelperWork>(Instant::now() + LONG) {
        let (outcome, fds) = heard.message.run(heard.fds);
        let fds_sent: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // The next back end finds the device as it is now.
        if line.send(&outcome, &fds_sent, &[], Instant::now() + SOON).is_err() {
            break;
        }
    }
    Ok(())
}

/// The processes that make system calls which may hang.
#[derive(Clone)]
pub(super) struct SyscallHelpers(Arc<Inner>);

struct Inner {
    program: PathBuf,
    log: PathBuf,
    family: Family,
    idle: Mutex<Vec<(SyscallHelper, Instant)>>,
    /// A helper is there whose memory is locked.
    has_locked: AtomicBool,
    /// The subjects that hang, with the work that follows when they no longer do.
    hangs: Mutex<BTreeMap<String, Vec<HelperWork>>>,
}

/// A process that waits for work, or does some.
struct SyscallHelper {
    line: TimedLine,
    process: Process,
    /// The process stays in memory: it takes a while to start.
    locked: bool,
}

/// The end of a wait for an answer.
enum HeardAnswer {
    Answer(HelperOutcome, Vec<OwnedFd>),
    Hangs(SyscallHelper),
    Killed,
}

impl SyscallHelpers {
    /// `program` is this command, `log` the back end's log.
    pub(super) fn new(program: PathBuf, log: PathBuf, family: Family) -> Self {
        let (idle, has_locked, hangs) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        Self(Arc::new(Inner { program, log, family, idle, has_locked, hangs }))
    }

    /// Does something, and waits for it for so long.
    pub(super) fn run(
        &self,
        work: &HelperWork,
        fds: &[BorrowedFd<'_>],
        within: Duration,
    ) -> Result<(HelperOutcome, Vec<OwnedFd>)> {
        self.still_hangs(work)?;
        for _ in 0..TRIES {
            match self.hear(self.begin(work, fds)?, within) {
                HeardAnswer::Answer(outcome, fds) => return Ok((outcome.accepted()?, fds)),
                HeardAnswer::Hangs(helper) => return Err(self.wait_for(helper, work, within)),
                HeardAnswer::Killed => log::warn!("{work}: the process that did it was killed"),
            }
        }
        if let Some(undoing) = work.undoing() {
            let this = self.clone();
            let undo = move || drop(this.run_late(&undoing));
            drop(thread::Builder::new().name("undoes".into()).spawn(undo));
        }
        Err(Error::new(Errno::IO, format!("{work}: each process that does it is killed")))
    }

    /// Has a helper begin with something.
    fn begin(&self, work: &HelperWork, fds: &[BorrowedFd<'_>]) -> Result<SyscallHelper> {
        // All helpers that waited may have been killed.
        for _ in 0..MOST_IDLE + TRIES {
            let mut helper = self.helper()?;
            if helper.line.send(work, fds, &[]).is_ok() {
                return Ok(helper);
            }
            self.end(helper);
        }
        Err(Error::new(Errno::IO, format!("{work}: no process begins with it")))
    }

    /// Closes a device where that may hang: the last one to close it writes the kernel's pages.
    pub(super) fn close(&self, number: DeviceNumber, file: File) {
        let work = HelperWork::Close { number };
        let begun = self.begin(&work, &[file.as_fd()]);
        // The helper closes it after this process.
        drop(file);
        let Ok(helper) = begun else { return };
        if let HeardAnswer::Hangs(helper) = self.hear(helper, STEP) {
            log::error!("{}", self.wait_for(helper, &work, STEP));
        }
    }

    /// Ends helpers that had nothing to do for a while; the one in locked memory stays, since a
    /// device that is to go on may have the disk that another would come from.
    pub(super) fn trim(&self) {
        let mut idle = self.idle();
        let is_old = |(helper, since): &(SyscallHelper, Instant)| !helper.locked && since.elapsed() > IDLE;
        let (old, young): (Vec<_>, Vec<_>) = std::mem::take(&mut *idle).into_iter().partition(is_old);
        *idle = young;
        drop(idle);
        old.into_iter().for_each(|(helper, _)| self.end(helper));
    }

    /// Refuses work on a subject that hangs. A device is given back when it no longer does.
    fn still_hangs(&self, work: &HelperWork) -> Result<()> {
        let mut hangs = self.hangs();
        let Some(later) = hangs.get_mut(&work.subject()) else { return Ok(()) };
        if matches!(work, HelperWork::Loop(work) if work.step() == LoopStep::GiveBack) {
            later.push(work.clone());
        }
        Err(Error::new(Errno::BUSY, format!("{}: an earlier step has not ended", work.subject())))
    }

    /// A helper that waits for work, or another one.
    fn helper(&self) -> Result<SyscallHelper> {
        if let Some((helper, _)) = self.idle().pop() {
            return Ok(helper);
        }
        let failed = |e: io::Error| Error::system("a process apart cannot be started", &e);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let line = TimedLine::new(ours).map_err(failed)?;
        let mut command = Command::new(&self.0.program);
        if let Ok(log) = File::options().append(true).open(&self.0.log) {
            command.stderr(log);
        }
        // As a table's server is started.
        command.arg0("@underseal").args(["dm", "syscall-helpers"]).process_group(0);
        let locked = !self.0.has_locked.swap(true, Ordering::Relaxed);
        command.args(locked.then_some("--lock"));
        let spawned = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).spawn();
        let process = spawned.map_err(|e| {
            self.0.has_locked.fetch_and(!locked, Ordering::Relaxed);
            failed(e)
        })?;
        self.0.family.add(process.id());
        Ok(SyscallHelper { line, process, locked })
    }

    /// Waits for an answer.
    fn hear(&self, mut helper: SyscallHelper, within: Duration) -> HeardAnswer {
        match helper.line.receive::<HelperOutcome>(Instant::now() + within) {
            Ok(heard) => {
                self.keep(helper);
                HeardAnswer::Answer(heard.message, heard.fds)
            }
            Err(e) if e.kind() == underseal_export::ErrorKind::Timeout => HeardAnswer::Hangs(helper),
            Err(_) => {
                self.end(helper);
                HeardAnswer::Killed
            }
        }
    }

    /// Goes on without a helper that hangs. Why its caller does.
    fn wait_for(&self, helper: SyscallHelper, work: &HelperWork, within: Duration) -> Error {
        self.hangs().insert(work.subject(), Vec::new());
        let (this, waited) = (self.clone(), work.clone());
        let wait = move || this.put_right(helper, &waited);
        if let Err(e) = thread::Builder::new().name("hangs".into()).spawn(wait) {
            self.hangs().remove(&work.subject());
            log::error!("no thread to wait for a process that hangs: {e}");
        }
        let why = format!("{work}: hangs, for {} s by now", within.as_secs());
        log::error!("{why}");
        Error::new(Errno::TIMEDOUT, why)
    }

    /// Takes back a late step, and does the work that has waited for its subject.
    fn put_right(&self, helper: SyscallHelper, work: &HelperWork) {
        let is_done = match self.hear(helper, LONG) {
            HeardAnswer::Answer(outcome, _) => outcome.accepted().inspect_err(|e| log::warn!("{e}")).is_ok(),
            // In the middle of it, perhaps.
            HeardAnswer::Killed => true,
            HeardAnswer::Hangs(_) => false,
        };
        log::warn!("{work}: no longer hangs");
        if let Some(undoing) = work.undoing().filter(|_| is_done) {
            log::warn!("{work}: taken back, since its caller has gone on");
            let _ = self.run_late(&undoing);
        }
        let next = || {
            let mut hangs = self.hangs();
            let next = hangs.get_mut(&work.subject()).and_then(Vec::pop);
            if next.is_none() {
                hangs.remove(&work.subject());
            }
            next
        };
        std::iter::from_fn(next).for_each(|next| drop(self.run_late(&next)));
    }

    /// Does something whose caller has gone on.
    fn run_late(&self, work: &HelperWork) -> Result<()> {
        let done = self.begin(work, &[]).and_then(|helper| match self.hear(helper, LONG) {
            HeardAnswer::Answer(outcome, _) => outcome.accepted().map(drop),
            _ => Err(Error::new(Errno::IO, format!("{work}: the process that did it was killed"))),
        });
        done.inspect_err(|e| log::error!("{e}"))
    }

    fn keep(&self, helper: SyscallHelper) {
        let mut idle = self.idle();
        if idle.len() < MOST_IDLE {
            idle.push((helper, Instant::now()));
        } else {
            drop(idle);
            self.end(helper);
        }
    }

    /// Waits for the end of a helper, which comes when its line is closed.
    fn end(&self, helper: SyscallHelper) {
        let SyscallHelper { line, mut process, locked } = helper;
        drop(line);
        self.0.has_locked.fetch_and(!locked, Ordering::Relaxed);
        let family = self.0.family.clone();
        let wait = move || {
            let pid = process.id();
            let _ = process.wait();
            family.remove(pid);
        };
        if let Err(e) = thread::Builder::new().name("wait".into()).spawn(wait) {
            log::warn!("no thread to wait for the end of a process apart: {e}");
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(SyscallHelper, Instant)>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hangs(&self) -> MutexGuard<'_, BTreeMap<String, Vec<HelperWork>>> {
        self.0.hangs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoopWorker for SyscallHelpers {
    fn take(&self, work: LoopWork) -> Result<bool> {
        let within = match work.step() {
            LoopStep::Look => LOOK,
            LoopStep::Sync => WRITES,
            LoopStep::Detach(_) | LoopStep::GiveBack => LEAVES,
            _ => STEP,
        };
        match self.run(&HelperWork::Loop(work), &[], within)? {
            (HelperOutcome::Done { yes }, _) => Ok(yes),
            _ => Err(nonsense()),
        }
    }
}

pub(super) fn nonsense() -> Error {
    Error::new(Errno::IO, "a process apart says what is not understood")
}
