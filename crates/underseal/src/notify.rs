//! Notifications to the supervisor that started this process, by the protocol of sd_notify(3): a
//! datagram to the socket that NOTIFY_SOCKET names.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use underseal_export::control::Supervised;

/// How long a send waits for a busy supervisor.
const PATIENCE: Duration = Duration::from_secs(10);

static SUPERVISOR: OnceLock<Supervisor> = OnceLock::new();

/// The supervisor of this process.
struct Supervisor {
    path: OsString,
    socket: UnixDatagram,
    /// The watchdog interval, if the supervisor set one.
    watchdog: Option<Duration>,
}

/// Connects to the supervisor, if one is named, while this process may still connect to any socket.
pub(crate) fn start() {
    match Supervisor::find() {
        Ok(Some(supervisor)) => drop(SUPERVISOR.set(supervisor)),
        Ok(None) => {}
        Err(e) => log::warn!("NOTIFY_SOCKET: the supervisor cannot be told anything: {e}"),
    }
}

/// Connects to the supervisor of the process that this one replaces.
pub(crate) fn take_over(supervised: &Supervised) {
    let micros = supervised.watchdog_us;
    let watchdog = (micros > 0).then(|| Duration::from_micros(micros));
    match Supervisor::at(OsStr::new(&supervised.socket), watchdog) {
        Ok(supervisor) => drop(SUPERVISOR.set(supervisor)),
        Err(e) => log::warn!("{}: the supervisor cannot be told anything: {e}", supervised.socket),
    }
}

/// Returns the supervisor of this process, for the process that replaces it.
pub(crate) fn supervised() -> Option<Supervised> {
    let supervisor = SUPERVISOR.get()?;
    let micros = supervisor.watchdog.map_or(0, |limit| u64::try_from(limit.as_micros()).unwrap_or(u64::MAX));
    let socket = supervisor.path.to_str()?.to_owned();
    Some(Supervised { socket, watchdog_us: micros, groups: groups() })
}

/// Returns the control groups of this process, as in /proc/self/cgroup.
pub(crate) fn groups() -> String {
    std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// Reports that another process replaces this one, which ends.
pub(crate) fn handed_over(pid: i32) {
    if let Some(supervisor) = SUPERVISOR.get() {
        supervisor.tell(&format!("MAINPID={pid}"));
    }
}

/// Reports that the volume is open, and its addresses; from then on reports periodically that the
/// process is alive, after `look`, which does not return while a thread hangs.
pub(crate) fn ready(at: &str, look: impl Fn() + Send + 'static) {
    let Some(supervisor) = SUPERVISOR.get() else { return };
    let id = std::process::id();
    let status = at.replace(char::is_control, " ");
    supervisor.tell(&format!("READY=1\nMAINPID={id}\nSTATUS=serving {status}"));
    let Some(limit) = supervisor.watchdog else { return };
    let mut first = true;
    let keep = move || {
        loop {
            look();
            supervisor.tell("WATCHDOG=1");
            // A new supervisor may not have known yet that this process is its child.
            if std::mem::take(&mut first) {
                thread::sleep((limit / 8).min(Duration::from_secs(1)));
                continue;
            }
            // As sd_watchdog_enabled(3) recommends: half the time that is left.
            thread::sleep(limit / 2);
        }
    };
    if let Err(e) = thread::Builder::new().name("watchdog".into()).spawn(keep) {
        log::error!("no thread to tell the watchdog that this process lives: {e}");
    }
}

/// Reports that the process ends, once.
pub(crate) fn stopping() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let Some(supervisor) = SUPERVISOR.get().filter(|_| !TOLD.swap(true, Relaxed)) {
        supervisor.tell("STOPPING=1\nSTATUS=finishing what is in flight");
    }
}

impl Supervisor {
    fn find() -> io::Result<Option<Self>> {
        let Some(path) = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros > 0);
        Self::at(&path, watchdog.map(Duration::from_micros)).map(Some)
    }

    fn at(path: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // Sends wait for a busy supervisor, which would otherwise end the volume. A supervisor that
        // does not listen must not delay the volume.
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { path: path.to_owned(), socket, watchdog })
    }

    fn tell(&self, text: &str) {
        if let Err(e) = self.socket.send(text.as_bytes()) {
            log::warn!("the supervisor was not told {}: {e}", text.lines().next().unwrap_or_default());
        }
    }
}
