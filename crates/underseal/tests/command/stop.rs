//! How a server ends.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Place, Ran, Server, eventually, exists, is_running, server_signal};

#[test]
fn every_ending_signal_stops_it_cleanly() {
    let place = Place::with_volume();
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT, Signal::HUP] {
        let server = Server::start(&place, &["--pid-file", "pid"]);
        assert_eq!(place.read("pid"), format!("{}\n", server.pid()).into_bytes());
        server.signal(signal);
        let ran = server.wait();
        assert_eq!(ran.code, Some(0), "{signal:?}: {}", ran.stderr);
        assert!(!exists(&place.path("nbd")) && !exists(&place.path("pid")), "{signal:?}");
    }
}

#[test]
fn acknowledged_writes_survive_a_stop_in_their_midst() {
    let place = Place::with_volume();
    let server = Server::start(&place, &[]);
    // Counts what is acknowledged, until the server goes.
    let script = "
n = 0
try:
    while True:
        h.pwrite(n.to_bytes(8, 'little') * 512, n % 4096 * 4096)
        n += 1
        if n == 500: print('under way', flush=True)
except nbd.Error:
    print(n)
";
    let mut client = place.nbdsh(server.uri(), script).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "under way\n");
    server.stop();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    client.wait().unwrap();
    let acknowledged: u64 = rest.trim().parse().unwrap();
    let disk = place.unlock("read", "disk", &[]).bytes;
    for n in acknowledged.saturating_sub(4096)..acknowledged {
        let at = usize::try_from(n % 4096 * 4096).unwrap();
        let there = u64::from_le_bytes(disk[at..at + 8].try_into().unwrap());
        // One more may be on the disk than was answered.
        assert!(there == n || there == acknowledged, "write {n} of {acknowledged} is lost: {there}");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let place = Place::with_volume();
    let server = Server::start(&place, &["--pid-file", "pid"]);
    // A client that asks for much and takes no answer keeps the server from finishing.
    let script = "
buffers = [nbd.Buffer(1 << 20) for _ in range(64)]
for buffer in buffers: h.aio_pread(buffer, 0)
print('asked', flush=True)
import time; time.sleep(60)
";
    let mut client = place.nbdsh(server.uri(), script).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut BufReader::new(client.stdout.as_mut().unwrap()), &mut line).unwrap();
    assert_eq!(line, "asked\n");

    server.signal(Signal::TERM);
    eventually("it stopped listening", || !exists(&place.path("nbd")));
    let started = Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_running(server.pid()), "it waits for what is in flight");
    // A terminal that closes says so more than once: no reason to lose anything.
    server.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_running(server.pid()));
    server.signal(Signal::TERM);
    let ran = server.wait();
    assert_eq!(ran.code, Some(1));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(ran.stderr.contains("stopped without waiting"), "{}", ran.stderr);
    assert!(!exists(&place.path("pid")));
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn a_last_flush_that_fails_ends_with_an_error() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse for a disk that fails");
        return;
    }
    let place = Place::with_volume();
    let disk = FailingDisk::new(&place, "disk");
    let open = ["open", "mount/image", "--passphrase-file", "pass", "--nbd", "unix:nbd"];
    let mut server = place.command(&open);
    let server = server.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the socket", || exists(&place.path("nbd")));
    place.noise("noise", 1 << 20);
    place.tool("nbdcopy", &["noise", "nbd+unix:///?socket=nbd"]);
    std::fs::write(place.path("broken"), "").unwrap();
    server_signal(server.id(), Signal::TERM);
    Ran::from(server.wait_with_output().unwrap()).fails(1, "the last flush: ");
    drop(disk);
}

/// A file's contents at `mount/image`, whose flushes fail as soon as there is a file `broken`.
struct FailingDisk<'a> {
    place: &'a Place,
    nbdfuse: Child,
}

impl<'a> FailingDisk<'a> {
    fn new(place: &'a Place, file: &str) -> Self {
        std::fs::create_dir(place.path("mount")).unwrap();
        let (disk, broken) = (place.text(file), place.text("broken"));
        let size = std::fs::metadata(place.path(file)).unwrap().len();
        let nbdfuse = Command::new("nbdfuse")
            .args(["mount/image", "--command", "nbdkit", "-s", "eval"])
            .arg(format!("get_size=echo {size}"))
            .arg(format!("pread=dd if={disk} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"))
            .arg(format!("pwrite=dd of={disk} seek=$4 conv=notrunc oflag=seek_bytes status=none"))
            .args(["can_write=exit 0", "can_flush=exit 0"])
            .arg(format!("flush=if [ -e {broken} ]; then echo EIO >&2; exit 1; fi"))
            .current_dir(place.path(""))
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdfuse (package libnbd-bin) is needed for the tests");
        let this = Self { place, nbdfuse };
        eventually("the mount", || {
            std::fs::metadata(place.path("mount/image")).is_ok_and(|file| file.len() == size)
        });
        this
    }
}

impl Drop for FailingDisk<'_> {
    fn drop(&mut self) {
        let unmount = Command::new("fusermount3").arg("-u").arg(self.place.path("mount")).status();
        let unmounted = unmount.is_ok_and(|status| status.success());
        // A second panic would hide the first.
        assert!(unmounted || std::thread::panicking(), "the mount stays behind");
        let _ = self.nbdfuse.wait();
    }
}
