//! How a server ends.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::command::common::{Place, Server, eventually, exists, is_running};
use crate::support::mounts::{NbdFuse, cannot_fuse, skip};

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
    // The script counts acknowledged writes until the server ends.
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
        // The disk may have one write more than was answered.
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
# The first answer shows that the server has the requests.
import select; select.select([h.aio_get_fd()], [], [])
print('asked', flush=True)
import time; time.sleep(600)
";
    let mut client = place.nbdsh(server.uri(), script).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut BufReader::new(client.stdout.as_mut().unwrap()), &mut line).unwrap();
    assert_eq!(line, "asked\n");

    server.signal(Signal::TERM);
    eventually("it stopped listening", || !exists(&place.path("nbd")));
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_running(server.pid()), "it waits for what is in flight");
    // A closing terminal sends SIGHUP more than once: the server still waits.
    server.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_running(server.pid()));
    server.signal(Signal::TERM);
    let ran = server.wait();
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("stopped without waiting"), "{}", ran.stderr);
    assert!(!exists(&place.path("pid")));
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn a_last_flush_that_fails_ends_with_an_error() {
    if let Some(reason) = cannot_fuse() {
        return skip("a disk that fails", reason);
    }
    let place = Place::with_volume();
    let disk = failing_disk(&place, "disk");
    let server = Server::start_image(&place, "mount/image", &["--nbd", "unix:nbd"]);
    place.noise("noise", 1 << 20);
    place.tool("nbdcopy", &["noise", server.uri()]);
    std::fs::write(place.path("broken"), "").unwrap();
    server.signal(Signal::TERM);
    server.wait().fails(8, "the last flush: ");
    disk.unmount();
}

/// A file's contents at `mount/image`, whose flushes fail as soon as there is a file `broken`.
fn failing_disk(place: &Place, file: &str) -> NbdFuse {
    let (disk, broken) = (place.text(file), place.text("broken"));
    let size = std::fs::metadata(place.path(file)).unwrap().len();
    let eval = [
        format!("get_size=echo {size}"),
        format!("pread=dd if={disk} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"),
        format!("pwrite=dd of={disk} seek=$4 conv=notrunc oflag=seek_bytes status=none"),
        "can_write=exit 0".into(),
        "can_flush=exit 0".into(),
        format!("flush=if [ -e {broken} ]; then echo EIO >&2; exit 1; fi"),
    ];
    let nbdkit = ["[", "nbdkit", "--exit-with-parent", "eval"].map(String::from);
    let command = nbdkit.into_iter().chain(eval).chain(["]".into()]);
    NbdFuse::mount(&place.path("mount/image"), &[], &command.collect::<Vec<_>>())
}
