//! A table server, as the back end sees it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child as Process, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_cipher::Key;
use underseal_dm::records::Line as TableLine;
use underseal_dm::{Error, Family, Given, GrantedKeys, Messaged, Result, Served, Table, UblkDisk};

use super::disks::ServedDisk;
use super::key_words::{digits, key_digits, with_key};
use super::known::RememberedTable;
use super::lowers::{Claim, Lowers, beneath};
use super::orders::{Answer, CarriedPlace, LayerWords, Order};
use super::timed_line::TimedLine;
use super::{SERVER_SOCKET, owner};

/// How long a server may take for a quick order, and for one that waits for the disk.
const SOON: Duration = Duration::from_secs(30);
/// How long a server without a back end may take to answer.
const APPEARING: Duration = Duration::from_secs(5);
const FLUSHES: Duration = Duration::from_secs(600);

/// A process that serves one table.
pub(super) struct Child {
    line: Mutex<TimedLine>,
    process: Mutex<Option<Process>>,
    pid: u32,
    family: Family,
    /// The devices that the table uses, which the server has open, too.
    claims: Vec<Arc<Claim>>,
    /// The facts that the server keeps for the next back end.
    known: Mutex<Option<RememberedTable>>,
    /// The table's disk.
    disk: Mutex<Option<ServedDisk>>,
}

impl Child {
    /// Starts a server.
    pub(super) fn start(program: &Path, log: &Path, claims: Vec<Arc<Claim>>, family: Family) -> Result<Self> {
        let failed = |e: io::Error| Error::system("a table's server cannot be started", &e);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(program);
        // The server's messages go to the back end's log.
        if let Ok(log) = File::options().append(true).open(log) {
            command.stderr(log);
        }
        // At a shutdown systemd spares processes whose name begins with `@` (its
        // ROOT_STORAGE_DAEMONS).
        command
            .arg0("@underseal")
            .args(["dm", "table-server"])
            // Signals of a terminal, if the back end ever has one, must not reach the server.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null());
        let process = command.spawn().map_err(failed)?;
        let pid = process.id();
        family.add(pid);
        let line = Mutex::new(TimedLine::new(ours).map_err(failed)?);
        let (process, known) = (Mutex::new(Some(process)), Mutex::default());
        Ok(Self { line, process, pid, family, claims, known, disk: Mutex::default() })
    }

    /// Adopts the server of a file or a disk whose back end is gone. Returns whether its table is
    /// suspended.
    pub(super) fn adopt(
        file: &Path,
        disk: Option<(u32, u64)>,
        lowers: &Lowers,
        family: Family,
    ) -> Result<(Self, bool)> {
        let stream = Self::reach(file)?;
        let pid = rustix::net::sockopt::socket_peercred(&stream)
            .map_err(|e| Error::system("a table's server is not known", &e.into()))?
            .pid;
        let mut line = TimedLine::new(stream).map_err(|e| Error::system(file.display(), &e))?;
        let failed = left_server(file);
        let heard = line.ask(&Order::Adopt, &[], &[], Instant::now() + APPEARING).map_err(&failed)?;
        let Answer::Adopted { suspended } = heard.message else { return Err(nonsense()) };
        let memory = |e: underseal_cipher::Error| Error::new(Errno::NOMEM, e.to_string());
        let mut kept = Key::zeroed(usize::try_from(heard.bytes).unwrap_or(usize::MAX)).map_err(memory)?;
        line.read(kept.as_mut_bytes()).map_err(&failed)?;
        let known = RememberedTable::parse(&kept)?;
        let claims = lowers.adopt(heard.fds)?;
        let pid = u32::try_from(pid.as_raw_nonzero().get()).unwrap_or_default();
        family.add(pid);
        let (line, process) = (Mutex::new(line), Mutex::new(None));
        let (known, no_disk) = (Mutex::new(Some(known)), Mutex::default());
        let this = Self { line, process, pid, family, claims, known, disk: no_disk };
        disk.map_or(Ok(()), |(id, identity)| this.watch(id, identity))?;
        Ok((this, suspended))
    }

    /// Connects to the server of a file whose back end is gone: it waits at a socket beside the
    /// file, which may not exist yet.
    fn reach(file: &Path) -> Result<UnixStream> {
        let socket = file.with_file_name(SERVER_SOCKET);
        let begun = Instant::now();
        loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => return Ok(stream),
                Err(e) if begun.elapsed() > APPEARING || owner::lives(file) == Some(false) => {
                    return Err(Error::new(Errno::NXIO, format!("{}: {e}", socket.display())));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Asks the server of a file whose back end is gone to unmount, flush and end, and waits for
    /// its end.
    pub(super) fn end_left(file: &Path) -> Result<()> {
        let line = TimedLine::new(Self::reach(file)?);
        let mut line = line.map_err(|e| Error::system(file.display(), &e))?;
        let failed = left_server(file);
        let answer = line.ask(&Order::End, &[], &[], Instant::now() + APPEARING).map_err(&failed)?.message;
        let until = Instant::now() + APPEARING;
        while owner::lives(file) == Some(true) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        match answer {
            Answer::Done => Ok(()),
            Answer::Refused { why, .. } => {
                log::error!("{}: {why}", file.display());
                Ok(())
            }
            _ => Err(nonsense()),
        }
    }

    /// Sends the server the facts for the next back end.
    pub(super) fn remember(&self, known: RememberedTable) -> Result<()> {
        let text = known.print();
        *self.known() = Some(known);
        match self.ask_with(&Order::Remember, &[], &[text.as_bytes()], SOON)? {
            (Answer::Done, _) => Ok(()),
            _ => Err(nonsense()),
        }
    }

    /// Returns the table of an existing device.
    pub(super) fn table(self: &Arc<Self>) -> Result<(Table, bool)> {
        let known = self.known();
        let known = known.as_ref().ok_or_else(nonsense)?;
        let lines = known.lines.iter().map(TableLine::copy).collect::<Result<_>>()?;
        let table = Table {
            lines,
            deps: known.deps.clone(),
            beneath: beneath(&self.claims),
            room: known.room,
            served: self.clone(),
        };
        Ok((table, known.read_only))
    }

    /// Gives the server another key, or none, together with the line's new parameters: the next
    /// back end knows both or neither.
    fn change_key(&self, order: &Order, word: &str, start: u64, params: &Key) -> Result<()> {
        let memory = |e: underseal_cipher::Error| Error::new(Errno::NOMEM, e.to_string());
        let changed = Key::new(params.as_bytes()).map_err(memory)?;
        let mut known = self.known();
        let known = known.as_mut().ok_or_else(nonsense)?;
        let mut line = known.lines.iter_mut().find(|line| line.start == start);
        let before = line.as_mut().map(|line| std::mem::replace(&mut line.params, changed));
        let text = known.print();
        match self.ask_with(order, &[], &[word.as_bytes(), text.as_bytes()], SOON) {
            Ok((Answer::Done, _)) => Ok(()),
            refused => {
                let line = known.lines.iter_mut().find(|line| line.start == start);
                line.into_iter().zip(before).for_each(|(line, before)| line.params = before);
                refused.and(Err(nonsense()))
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<RememberedTable>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the server to open its table. Returns the table's logical block size in bytes, and the
    /// layers of its lines.
    pub(super) fn open(
        &self,
        order: &Order,
        text: &str,
        devices: &[&File],
    ) -> Result<(u32, Vec<Option<LayerWords>>)> {
        let fds: Vec<_> = devices.iter().map(|file| file.as_fd()).collect();
        match self.ask_with(order, &fds, &[text.as_bytes()], FLUSHES)? {
            (Answer::Opened { block, layers }, _) => Ok((block, layers)),
            _ => Err(nonsense()),
        }
    }

    /// Has it go on once it hears of that, after an order that it has not answered in time.
    fn go_on_later(&self, order: &Order, refusal: &Error) {
        if refusal.errno() == Errno::TIMEDOUT
            && let Err(e) = self.line().send(order, &[], &[])
        {
            log::error!("a table's server does not hear that it goes on: {e}");
        }
    }

    fn ask(&self, order: &Order, patience: Duration) -> Result<()> {
        match self.ask_with(order, &[], &[], patience)? {
            (Answer::Done, _) => Ok(()),
            _ => Err(nonsense()),
        }
    }

    fn ask_with(
        &self,
        order: &Order,
        fds: &[BorrowedFd<'_>],
        bytes: &[&[u8]],
        patience: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>)> {
        let mut line = self.line();
        let gone = |e: underseal_export::Error| {
            let why = underseal_error::with_causes(&e).to_string();
            let hangs = matches!(e.kind(), underseal_export::ErrorKind::Timeout);
            let errno = if hangs { Errno::TIMEDOUT } else { Errno::IO };
            Error::new(errno, format!("a table's server does not answer: {why}"))
        };
        let heard = line.ask(order, fds, bytes, Instant::now() + patience).map_err(gone)?;
        match heard.message {
            Answer::Refused { errno, why } => Err(Error::new(Errno::from_raw_os_error(errno), why)),
            answer => Ok((answer, heard.fds)),
        }
    }

    fn line(&self) -> MutexGuard<'_, TimedLine> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches over the disk that the server has.
    fn watch(&self, id: u32, identity: u64) -> Result<()> {
        let socket = self.line().socket();
        let socket = socket.map_err(|e| Error::system("a table's server cannot be watched", &e))?;
        *self.disk() = Some(ServedDisk::watch(id, identity, socket));
        Ok(())
    }

    fn disk(&self) -> MutexGuard<'_, Option<ServedDisk>> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of a process that is about to end by itself.
    fn wait(&self) {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut process) = process else { return };
        let (family, pid) = (self.family.clone(), self.pid);
        let wait = move || {
            let _ = process.wait();
            family.remove(pid);
        };
        // A thread waits, for otherwise the ended process stays as a zombie.
        if let Err(e) = std::thread::Builder::new().name("wait".into()).spawn(wait) {
            log::warn!("no thread to wait for the end of a table's server: {e}");
        }
    }
}

impl Drop for Child {
    /// A server that was asked to end ends by itself; a server that shows no file yet ends when its
    /// connection is closed.
    fn drop(&mut self) {
        self.wait();
    }
}

impl Served for Child {
    fn show(&self, file: &Path) -> Result<()> {
        self.ask(&Order::Show { file: file.into() }, SOON)
    }

    fn show_disk(&self, disk: &UblkDisk) -> Result<()> {
        self.ask(&Order::ShowDisk { disk: disk.clone() }, SOON)?;
        self.watch(disk.id, disk.identity)
    }

    fn hide_disk(&self) -> Result<()> {
        if let Some(disk) = &*self.disk() {
            disk.let_go();
        }
        let hidden = self.ask(&Order::HideDisk, FLUSHES);
        let Some(disk) = self.disk().take() else { return hidden };
        match hidden {
            // The disk's server was killed.
            Err(e) if e.errno() == Errno::IO => {
                let stopped = disk.stop();
                if stopped.is_err() {
                    *self.disk() = Some(disk);
                }
                stopped
            }
            Err(e) => {
                let (id, identity) = disk.is();
                self.watch(id, identity).and(Err(e))
            }
            Ok(()) => Ok(()),
        }
    }

    fn give(&self) -> Result<Given> {
        let given = self.ask_with(&Order::Give, &[], &[], FLUSHES);
        match given.inspect_err(|e| self.go_on_later(&Order::Keep, e))? {
            (Answer::Given { place, turn }, mut fds) => {
                let device = fds.pop();
                if let Some(disk) = &*self.disk() {
                    disk.let_go();
                }
                let place = serde_json::to_string(&(place, turn)).map_err(|_| nonsense())?;
                Ok(Given { device, place })
            }
            _ => Err(nonsense()),
        }
    }

    fn keep(&self) -> Result<()> {
        let disk = self.disk().take();
        let kept = self.ask(&Order::Keep, SOON);
        let Some(disk) = disk else { return kept };
        match kept {
            // The disk's server was killed, and the next one has failed.
            Err(e) if e.errno() == Errno::IO => {
                if let Err(worse) = disk.stop() {
                    log::error!("{worse}");
                }
                *self.disk() = Some(disk);
                Err(e)
            }
            kept => {
                let (id, identity) = disk.is();
                self.watch(id, identity).and(kept)
            }
        }
    }

    fn leave(&self) {
        if let Err(e) = self.ask(&Order::Leave, SOON) {
            log::error!("{e}");
        }
        self.wait();
    }

    fn take(&self, Given { device, place }: Given) -> Result<()> {
        let (place, turn): (CarriedPlace, u64) = serde_json::from_str(&place).map_err(|_| nonsense())?;
        let disk = match &place {
            CarriedPlace::Mount(_) => None,
            CarriedPlace::Disk { place, .. } => Some((place.id, place.identity)),
        };
        let fds: Vec<_> = device.iter().map(AsFd::as_fd).collect();
        match self.ask_with(&Order::Take { place, turn }, &fds, &[], FLUSHES)? {
            (Answer::Done, _) => disk.map_or(Ok(()), |(id, identity)| self.watch(id, identity)),
            _ => Err(nonsense()),
        }
    }

    fn suspend(&self) -> Result<()> {
        let suspended = self.ask(&Order::Suspend, FLUSHES);
        suspended.inspect_err(|e| self.go_on_later(&Order::Resume { anyway: false }, e))
    }

    fn resume(&self) -> Result<()> {
        self.ask(&Order::Resume { anyway: false }, SOON)
    }

    fn release(&self) {
        if let Err(e) = self.ask(&Order::Resume { anyway: true }, SOON) {
            log::error!("{e}");
        }
    }

    fn delay(&self, is_up: bool) {
        let delays = |known: &RememberedTable| known.lines.iter().any(|line| line.target == "delay");
        if self.known().as_ref().is_some_and(delays)
            && let Err(e) = self.ask(&Order::Resume { anyway: !is_up }, SOON)
        {
            log::error!("{e}");
        }
    }

    fn message(&self, line: &TableLine, words: &str, keys: &GrantedKeys) -> Result<Messaged> {
        let no = |why: &str| Error::new(Errno::INVAL, why);
        if line.target != "crypt" {
            return Err(no("Target type does not support messages"));
        }
        // The name of a key may have spaces in it.
        let mut parts = words.trim().splitn(3, ' ');
        let mut word = || parts.next().unwrap_or_default();
        let is = |word: &str, name: &str| word.eq_ignore_ascii_case(name);
        let changed = |order: Order, word: &str, key: Option<&str>| {
            let params = with_key(line.params(), key)?;
            self.change_key(&order, word, line.start, &params)?;
            Ok(Messaged { params: Some(params), ..Messaged::default() })
        };
        match (word(), word(), word()) {
            (key, wipe, "") if is(key, "key") && is(wipe, "wipe") => changed(Order::WipeKey, "", None),
            (key, set, word) if is(key, "key") && is(set, "set") && !word.is_empty() => {
                let is_hex = word == "-" || word.chars().all(|c| c.is_ascii_hexdigit());
                if word.len() == key_digits(line.params())? && !is_hex && !word.starts_with(':') {
                    // The kernel behaves in the same way: it has begun to set the key when it finds
                    // that out.
                    let wiped = changed(Order::WipeKey, "", None)?;
                    return Ok(Messaged { failed: Some(no("the key is no hex")), ..wiped });
                }
                let digits = digits(word, keys)?;
                changed(Order::SetKey { word: digits.len() }, &digits, Some(word))
            }
            _ => Err(no("unrecognised message received.")),
        }
    }

    fn status(&self) -> Result<Vec<String>> {
        match self.ask_with(&Order::Status, &[], &[], APPEARING)? {
            (Answer::Status { lines }, _) => Ok(lines),
            _ => Err(nonsense()),
        }
    }

    fn end(&self) -> Result<()> {
        if let Some(disk) = &*self.disk() {
            disk.let_go();
        }
        let ended = self.ask(&Order::End, FLUSHES);
        self.wait();
        ended
    }
}

fn left_server(file: &Path) -> impl Fn(underseal_export::Error) -> Error {
    move |e| {
        let why = underseal_error::with_causes(&e).to_string();
        Error::new(Errno::IO, format!("{}: {why}", file.display()))
    }
}

pub(super) fn nonsense() -> Error {
    Error::new(Errno::IO, "a table's server sent an unexpected message")
}
