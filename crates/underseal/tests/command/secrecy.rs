//! Where secrets must not be.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use crate::command::common::{CHEAP, PASSPHRASE, Place, Ran, Server, is_root, server_signal};

#[test]
fn a_serving_process_shows_no_secret() {
    if !is_root() {
        return;
    }
    let place = Place::with_volume();
    let server = Server::start(&place, &["-vvv"]);
    place.tool("nbdinfo", &[server.uri()]);
    let proc = |name: &str| std::fs::read(format!("/proc/{}/{name}", server.pid())).unwrap();
    for name in ["cmdline", "environ"] {
        assert!(!contains(&proc(name), PASSPHRASE.as_bytes()), "{name}");
    }
    let limits = String::from_utf8(proc("limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    let said = server.stop();
    assert!(!said.contains(PASSPHRASE), "the log");
}

#[test]
fn the_passphrase_is_nowhere_in_memory_and_the_key_on_locked_pages_only() {
    if !is_root() {
        return;
    }
    let place = Place::with_volume();
    std::fs::write(place.path("exact"), PASSPHRASE).unwrap();
    let dump = [
        "luksDump",
        "-q",
        "--dump-volume-key",
        "--volume-key-file",
        "volume.key",
        "--key-file",
        "exact",
        "disk",
    ];
    place.tool("cryptsetup", &dump);
    let key = place.read("volume.key");
    assert_eq!(key.len(), 64);

    let server = Server::start(&place, &[]);
    // A client whose requests were served just now, by a thread that is still there.
    let script =
        "h.pwrite(bytes(1 << 20), 0); h.pread(1 << 20, 0); h.pwrite(bytes(4096), 0); h.pread(4096, 0)
print('served', flush=True); import sys; sys.stdin.read()";
    let mut client = place.nbdsh(server.uri(), script);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "served\n");
    let mappings = mappings(server.pid());
    let memory = File::open(format!("/proc/{}/mem", server.pid())).unwrap();
    let mut key_pages = 0;
    for ((start, end), flags) in mappings {
        let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
        // Guard pages and the kernel's own cannot be read.
        if memory.read_exact_at(&mut bytes, start).is_err() {
            continue;
        }
        assert!(
            !contains(&bytes, PASSPHRASE.as_bytes()),
            "the passphrase is at {start:x} to {end:x}: {flags}"
        );
        // The first round keys are the two halves of the volume key.
        for half in [&key[..32], &key[32..]] {
            if contains(&bytes, half) {
                key_pages += 1;
                assert!(flags.contains(" lo") && flags.contains(" dd"), "{start:x} to {end:x}: {flags}");
            }
        }
    }
    assert!(key_pages >= 2, "the search finds what is there");
    drop(client.stdin.take());
    assert!(client.wait().unwrap().success());
    server.stop();
}

/// The writable mappings of a process, with their flags.
fn mappings(pid: u32) -> BTreeMap<(u64, u64), String> {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut found = BTreeMap::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(range) = current.take() {
                found.insert(range, flags.to_owned());
            }
        } else if let Some((range, rest)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
            && rest.as_bytes().get(1) == Some(&b'w')
        {
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            current = Some((number(start), number(end)));
        }
    }
    found
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(haystack, needle).is_some()
}

#[test]
fn other_processes_of_the_same_user_cannot_look_in() {
    if !is_root() {
        return;
    }
    // A user other than root, in a directory and with a binary that this user can reach.
    let place = Place::with_volume();
    let nobody = 65534;
    // cp makes the copy: a file that is open for writing in this process, and so for a moment in
    // all processes that other tests start, cannot be executed.
    place.tool("cp", &[env!("CARGO_BIN_EXE_underseal"), "underseal"]);
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["", "disk", "pass"] {
        std::os::unix::fs::chown(place.path(name), Some(nobody), Some(nobody)).unwrap();
    }
    let id = nobody.to_string();
    let mut child = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "./underseal", "open", "disk"])
        .args(["--passphrase-file", "pass", "--nbd", "unix:nbd"])
        .current_dir(place.path(""))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The socket is there before, when a signal still interrupts the opening.
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("is open"), "{line}");
    let about = std::fs::metadata(format!("/proc/{}/status", child.id())).unwrap();
    let mut other = Command::new("setpriv");
    other.args(["--reuid", &id, "--regid", &id, "--clear-groups", "cat"]);
    let look = other.arg(format!("/proc/{}/environ", child.id())).output().unwrap();
    server_signal(child.id(), rustix::process::Signal::TERM);
    assert!(child.wait().unwrap().success());
    assert_eq!(about.uid(), 0, "a process that cannot be dumped belongs to root");
    assert!(!look.status.success(), "its environment can be read by others");
}

/// Kernels before 6.4 say the page size and more to libc at the start, and later in
/// /proc/self/auxv only, which is root's file in a protected process.
#[test]
fn a_user_of_an_older_kernel_is_served() {
    if !is_root() {
        return;
    }
    let place = Place::with_volume();
    place.tool("cp", &[env!("CARGO_BIN_EXE_underseal"), "underseal"]);
    for name in ["", "disk", "pass"] {
        std::os::unix::fs::chown(place.path(name), Some(65534), Some(65534)).unwrap();
    }
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The first of the calls protects the process; the next one would ask the kernel.
    let mut old = Command::new("strace");
    old.args(["-f", "-u", "nobody", "-o", "/dev/null", "-e", "inject=prctl:error=EINVAL:when=2+"]);
    old.args(["./underseal", "read", "disk", "--passphrase-file", "pass", "--length", "512"]);
    let ran = Ran::from(old.current_dir(place.path("")).output().unwrap());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn memory_that_cannot_be_locked_is_told_once() {
    let place = Place::new();
    // Root may lock any memory, unless it lacks the capability. A format needs no ring, whose
    // memory counts as locked too.
    let may = rustix::process::geteuid().is_root();
    let drop = if may { "setpriv --bounding-set=-ipc_lock" } else { "env" };
    let format = ["format", "disk", "--size", "32M", "--passphrase-file", "pass"];
    let format = [&[env!("CARGO_BIN_EXE_underseal")], &format[..], &CHEAP[..]].concat().join(" ");
    let script = format!("ulimit -l 0; exec {drop} {format}");
    let ran = Command::new("sh").args(["-c", &script]).current_dir(place.path("")).output().unwrap();
    let ran = Ran::from(ran);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("cannot be locked").count(), 1, "{}", ran.stderr);
}
