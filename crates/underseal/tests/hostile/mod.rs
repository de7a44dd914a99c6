//! Hostile code inside each kind of server: what docs/sandbox.md says that it cannot do is refused,
//! and the server goes on.
//!
//! ```text
//!   inject.rs   makes a thread of a running server execute system calls
//!   rows.rs     the table: each attempt, and the exports at which it works
//!   files.rs    the table's row of files
//!   rings.rs    rings, of its own and the helper's, and all their operations
//!   older.rs    kernels that know less of Landlock
//! ```
//!
//! A row that is refused is one that fails with `EPERM` or `EACCES`. Rows that work show that the
//! calls are really made.

mod files;
mod inject;
mod older;
mod rings;
mod rows;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::command::common::{Place, Server as TcpServer};
use crate::command::tls::certificates;
use crate::hostile::files::FILES;
use crate::hostile::inject::Inside;
use crate::hostile::older::OlderKernel;
use crate::hostile::rows::{Around, CAPABILITIES, ExportKind, ITSELF, NETWORK, PROCESSES, Row};
use crate::rbd::cluster::Image;
use crate::support::mounts::{cannot_fuse, skip, unmount_stale};
use crate::support::nbd::Client;
use crate::support::volume::{CHEAP_PBKDF2, Volume, text, underseal};
use crate::support::{Scratch, Server, run, tool};
use crate::ublk::tasks::{guest, script};

/// A server, and what it is given.
struct Given<'g> {
    pid: u32,
    door: ExportKind,
    /// The image, or a file in the encrypted folder.
    own: &'g Path,
    log: PathBuf,
    certificates: Option<PathBuf>,
    /// The thread: the beginning of its name.
    thread: &'g str,
    /// The kernel has Landlock.
    landlock: bool,
}

impl<'g> Given<'g> {
    fn new(server: &Server, door: ExportKind, own: &'g Path, log: PathBuf) -> Self {
        Self { pid: server.id(), door, own, log, certificates: None, thread: "", landlock: true }
    }

    /// Tries all rows in this process, and says all that is not as it should be.
    fn is_attacked(&self) {
        let door = self.door;
        let mut around = Around::new(door, self.own.to_owned(), self.log.clone(), self.certificates.clone());
        let mut inside = Inside::of(self.pid, self.thread);
        let mut wrong = Vec::new();
        let files: &[Row] = if self.landlock || door == ExportKind::Tree { FILES } else { &[] };
        for row in [CAPABILITIES, files, NETWORK, PROCESSES, ITSELF].into_iter().flatten() {
            let answer = (row.try_it)(&mut inside, &around);
            inside.forget();
            let as_said = match answer {
                Ok(_) => row.works.contains(&door),
                Err(Errno::PERM | Errno::ACCESS) => row.at_most || !row.works.contains(&door),
                // From its root folder no path leads there.
                Err(Errno::NOENT | Errno::ROFS) => door == ExportKind::Tree && !row.works.contains(&door),
                Err(_) => false,
            };
            if !as_said {
                wrong.push(format!("{door:?}: {}: {answer:?}", row.what));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        rings::are_restricted(&mut inside, door != ExportKind::Tree, door == ExportKind::Ublk);
        drop(inside);
        around.is_untouched();
    }
}

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "only root traces a process that keeps secrets");
    }
    root
}

/// The volume's server still serves those who come, and those who were there.
fn serves(server: &Server, before: &mut Client) {
    let mut after = Client::connect(&server.socket()).unwrap();
    after.write(4096, &[7; 4096]).unwrap();
    after.flush().unwrap();
    assert_eq!(before.read(4096, 4096).unwrap(), [7; 4096]);
}

#[test]
fn code_in_an_nbd_server() {
    if !is_root("hostile") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let log = scratch.path("log");
    let server = Server::start(&volume, &["--log-file", text(&log)]);
    let mut client = Client::connect(&server.socket()).unwrap();
    Given::new(&server, ExportKind::Nbd, &volume.image, log).is_attacked();
    serves(&server, &mut client);
    server.stop();
}

#[test]
fn code_in_a_server_of_a_mount() {
    if !is_root("hostile") {
        return;
    }
    if let Some(reason) = cannot_fuse() {
        return skip("hostile", reason);
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (disk, log) = (scratch.file("disk", b""), scratch.path("log"));
    let server = Server::start(&volume, &["--fuse", text(&disk), "--log-file", text(&log)]);
    let mut client = Client::connect(&server.socket()).unwrap();
    Given::new(&server, ExportKind::Fuse, &volume.image, log).is_attacked();
    serves(&server, &mut client);
    assert_eq!(fs::read(&disk).unwrap()[4096..8192], [7; 4096]);
    server.stop();
}

#[test]
fn code_in_a_server_of_machines() {
    if !is_root("hostile") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (machine, log) = (scratch.path("machine"), scratch.path("log"));
    let options = ["--vhost-user", text(&machine), "--log-file", text(&log), "--hand-over"];
    let server = Server::start(&volume, &options);
    let mut client = Client::connect(&server.socket()).unwrap();
    Given::new(&server, ExportKind::VhostUser, &volume.image, log).is_attacked();
    serves(&server, &mut client);
    server.stop();
}

/// The server of an encrypted folder. It is ended, and unmounted, however a test ends.
struct Mounted {
    child: Child,
    at: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        unmount_stale(&self.at);
    }
}

/// Mounts an encrypted folder, and attacks its server.
/// A folder that all programs inherit which are started from now on.
fn inherited_folder() -> File {
    let folder = File::open("/").unwrap();
    rustix::io::fcntl_setfd(&folder, rustix::io::FdFlags::empty()).unwrap();
    folder
}

fn files_are_attacked(level: Option<u32>) {
    let scratch = Scratch::new();
    let _folder = inherited_folder();
    let [lower, at] = ["lower", "mnt"].map(|name| scratch.path(name));
    for folder in [&lower, &at] {
        fs::create_dir(folder).unwrap();
    }
    let null = (FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3));
    mknodat(CWD, lower.join("null"), null.0, null.1, null.2).unwrap();
    File::open(lower.join("null")).unwrap();
    let (passphrase, log) = (scratch.file("pass", b"correct horse"), scratch.path("log"));
    let mut command = underseal();
    command.args(["ecryptfs", "mount", text(&lower), text(&at), "--passphrase-file", text(&passphrase)]);
    command.args(["--log-file", text(&log)]);
    let _older = level.map(|level| OlderKernel::around(&mut command, level));
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut mounted = Mounted { child, at: at.clone() };
    let mut lines = BufReader::new(mounted.child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(" is mounted on ")));
    fs::write(at.join("plain"), "before").unwrap();
    // Written below it, so that there is nothing that the mount has open.
    fs::write(lower.join("own"), "x").unwrap();
    let given = Given {
        pid: mounted.child.id(),
        door: ExportKind::Tree,
        own: &tree_of(mounted.child.id(), &lower).join("own"),
        log,
        certificates: None,
        thread: "ecryptfs",
        landlock: level.is_none_or(|level| level > 1),
    };
    given.is_attacked();
    let main = Given { thread: "underseal", ..given };
    fs::write(lower.join("own"), "x").unwrap();
    main.is_attacked();
    assert_eq!(fs::read_to_string(at.join("plain")).unwrap(), "before");
    fs::write(at.join("plain"), "after").unwrap();
    assert_eq!(fs::read_to_string(at.join("plain")).unwrap(), "after");
    assert!(File::open(at.join("null")).is_err(), "the mount is nodev");
    let umount = Command::new("umount").arg(&lower).output().unwrap();
    assert!(!umount.status.success(), "nothing is mounted there");
    kill_process(Pid::from_child(&mounted.child), Signal::TERM).unwrap();
    assert!(mounted.child.wait().unwrap().success());
}

/// The folder that a server has open, as that reaches it.
fn tree_of(pid: u32, lower: &Path) -> PathBuf {
    let lower = fs::metadata(lower).unwrap();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|fd| fd.unwrap());
    let is_it = |fd: &fs::DirEntry| {
        fs::metadata(fd.path()).is_ok_and(|about| (about.dev(), about.ino()) == (lower.dev(), lower.ino()))
    };
    let fd = open.into_iter().find(is_it).expect("it has its folder open");
    Path::new("/proc/self/fd").join(fd.file_name())
}

#[test]
fn code_in_a_server_of_files() {
    if !is_root("hostile") {
        return;
    }
    if let Some(reason) = cannot_fuse() {
        return skip("hostile", reason);
    }
    files_are_attacked(None);
}

#[test]
fn code_in_servers_on_kernels_with_less_landlock() {
    if !is_root("hostile") {
        return;
    }
    let _folder = inherited_folder();
    for level in 0..7 {
        let scratch = Scratch::new();
        let volume = Volume::luks2(&scratch, "48M");
        let log = scratch.path("log");
        let mut command = volume.command("open");
        let _older = OlderKernel::around(&mut command, level);
        let server = Server::start_command(command, &["--log-file", text(&log)]);
        let mut client = Client::connect(&server.socket()).unwrap();
        let landlock = level > 0;
        assert_eq!(fs::read_to_string(&log).unwrap().contains("lacks Landlock"), !landlock);
        Given { landlock, ..Given::new(&server, ExportKind::Nbd, &volume.image, log) }.is_attacked();
        serves(&server, &mut client);
        server.stop();
    }
    if let Some(reason) = cannot_fuse() {
        return skip("hostile", reason);
    }
    // Before level 2 a mount has none.
    (0..7).for_each(|level| files_are_attacked(Some(level)));
}

#[test]
fn code_in_a_server_with_certificates() {
    if !is_root("hostile") {
        return;
    }
    let place = Place::with_volume();
    certificates(&place);
    let options = ["--nbd", "tcp:127.0.0.1:0", "--tls-certificates", "pki", "--log-file", "log"];
    let server = TcpServer::start_command(&place, &options);
    let port = server.uri().rsplit_once(':').unwrap().1.trim_end_matches('/').to_owned();
    let uri = format!("nbds://localhost:{port}/?tls-certificates={}", place.text("pki"));
    let comes = || place.tool("nbdinfo", &["--size", &uri]);
    let before = comes();
    let given = Given {
        pid: server.pid(),
        door: ExportKind::Tls,
        own: &place.path("disk"),
        log: place.path("log"),
        certificates: Some(place.path("pki/server-cert.pem")),
        thread: "",
        landlock: true,
    };
    given.is_attacked();
    server.signal(Signal::HUP);
    assert_eq!(comes(), before);
    server.stop();
}

#[test]
fn code_in_a_server_over_another_server() {
    if !is_root("hostile") {
        return;
    }
    let scratch = Scratch::new();
    let below = Volume::luks2(&scratch, "64M");
    let lower = Server::start(&below, &[]);
    let above = Volume { image: lower.uri().into(), ..below.clone() };
    let mut format = underseal();
    // The lower volume is full of noise: nothing was written through it yet.
    format.arg("format").arg(&above.image).args(["-q", "--force"]).args(CHEAP_PBKDF2);
    run(format.arg("--passphrase-file").arg(&above.passphrase));
    let log = scratch.path("log");
    let server = Server::start(&above, &["--log-file", text(&log)]);
    let mut client = Client::connect(&server.socket()).unwrap();
    Given::new(&server, ExportKind::Lower, &below.image, log).is_attacked();
    serves(&server, &mut client);
    server.stop();
    lower.stop();
}

#[test]
fn code_in_a_server_over_a_cluster() {
    if !is_root("hostile") {
        return;
    }
    let Some((scratch, _image, volume)) = Image::with_volume(64, &[]) else { return };
    let log = scratch.path("log");
    let server = Server::start(&volume, &["--log-file", text(&log)]);
    let mut client = Client::connect(&server.socket()).unwrap();
    // The server's threads, and the library's.
    for thread in ["", "msgr-worker"] {
        Given { thread, ..Given::new(&server, ExportKind::Cluster, &volume.passphrase, log.clone()) }
            .is_attacked();
    }
    serves(&server, &mut client);
    server.stop();
}

#[test]
fn code_in_a_server_of_a_block_device() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let mut guest = guest(&scratch);
    let tests = std::env::current_exe().unwrap();
    let task = format!(
        "serve /run/image hostile --log-file /run/log\nmount -t tmpfs tmp /tmp\n\
         HOSTILE=$server {} --exact hostile::child_in_a_machine --ignored --nocapture\n\
         dd if=/dev/underseal/hostile of=/dev/null bs=1M count=4 iflag=direct\nstop\numount /tmp",
        text(&tests)
    );
    guest.task("hostile", &script(&volume, &task));
    guest.boot();
}

#[test]
#[ignore = "runs in the machine of the test above"]
fn child_in_a_machine() {
    let given = Given {
        pid: std::env::var("HOSTILE").unwrap().parse().unwrap(),
        door: ExportKind::Ublk,
        own: Path::new("/run/image"),
        log: "/run/log".into(),
        certificates: None,
        thread: "",
        landlock: true,
    };
    given.is_attacked();
}

#[test]
fn code_in_a_server_of_a_user() {
    const USER: u32 = 65534;
    if !is_root("hostile") {
        return;
    }
    let (scratch, place) = (Scratch::new(), Scratch::new());
    let volume = Volume::luks2(&scratch, "48M");
    let program = scratch.path("underseal");
    fs::copy(env!("CARGO_BIN_EXE_underseal"), &program).unwrap();
    for path in [scratch.folder(), place.folder(), &volume.image, &volume.passphrase] {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let mut command = tool("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program).arg("open");
    command.arg(&volume.image).arg("--passphrase-file").arg(&volume.passphrase).current_dir("/");
    command.env("UNDERSEAL_RUNTIME_DIR", scratch.path("run"));
    let log = scratch.path("log");
    let server = Server::start_command_in(place, command, &["--log-file", text(&log)]);
    let mut client = Client::connect(&server.socket()).unwrap();
    Given::new(&server, ExportKind::Nbd, &volume.image, log).is_attacked();
    serves(&server, &mut client);
    server.stop();
}
