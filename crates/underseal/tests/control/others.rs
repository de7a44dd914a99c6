use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::Uid;
use rustix::thread::set_thread_uid;

use crate::control::operator::{Operator, Ran};
use crate::support::mounts::skip;
use crate::support::nbd::Client;
use crate::support::tool;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};

const NOBODY: u32 = 65534;

/// A user other than the one that runs the tests, and other than `nobody`.
const SOMEBODY: u32 = 1234;

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A copy of the binary that all users can run: its own directory may be closed to them.
fn for_everybody(operator: &Operator) -> PathBuf {
    let binary = operator.scratch.path("underseal");
    std::fs::copy(env!("CARGO_BIN_EXE_underseal"), &binary).unwrap();
    open(operator.scratch.folder(), 0o755);
    binary
}

fn as_nobody(binary: &Path, operator: &Operator, words: &str) -> Ran {
    let mut command = tool("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary).args(words.split(' '));
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory()).current_dir("/");
    Ran::from(command.output().expect("setpriv(1), of util-linux, is needed for the tests"))
}

#[test]
fn a_server_that_may_lock_no_memory_for_its_requests_does_not_start() {
    let operator = Operator::new();
    if !rustix::process::geteuid().is_root() {
        return skip("a_server_that_may_lock_no_memory", "becoming another user needs root");
    }
    let volume = Volume::luks2(&operator.scratch, "20M");
    let binary = for_everybody(&operator);
    std::fs::create_dir(operator.directory()).unwrap();
    open(&operator.directory(), 0o700);
    for file in [&volume.image, &volume.passphrase, &operator.directory()] {
        chown(file, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let [program, image, passphrase] = [&binary, &volume.image, &volume.passphrase].map(|path| text(path));
    let words = format!("--memlock=0:0 {program} open {image} --passphrase-file {passphrase} --daemon");
    let ran = as_nobody(Path::new("prlimit"), &operator, &words);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("RLIMIT_MEMLOCK") && ran.out.is_empty(), "{ran:?}");
}

#[test]
fn another_user_is_refused_and_the_volume_goes_on() {
    let operator = Operator::new();
    if !rustix::process::geteuid().is_root() {
        return skip("another_user_is_refused", "becoming another user needs root");
    }
    let (_, server) = operator.open(&[]);
    let binary = for_everybody(&operator);
    let socket = operator.directory().join("image.sock");
    let as_nobody = |words: &str| as_nobody(&binary, &operator, words);
    // The directory keeps others out; without it, the socket's mode; without that, the server.
    for (directory, file, why) in [
        (0o700, 0o600, "Permission denied"),
        (0o755, 0o600, "Permission denied"),
        (0o755, 0o666, "may not control"),
    ] {
        open(&operator.directory(), directory);
        open(&socket, file);
        for words in
            ["status image", "policy image workers", "suspend image", "message image key wipe", "close image"]
        {
            let ran = as_nobody(words);
            assert_eq!(ran.code, Some(1), "{words}: {ran:?}");
            assert!(ran.err.contains(why), "{words}: {ran:?}");
        }
    }
    assert_eq!(operator.does("policy image"), "adaptive\n");
    Client::connect(&server.socket()).unwrap().write(0, &[1; 4096]).unwrap();
    let log = server.stop();
    assert!(log.contains("user 65534"), "{log}");
}

/// The next process would run with its arguments, as root.
#[test]
fn root_takes_over_no_volume_of_another_user() {
    let operator = Operator::new();
    if !rustix::process::geteuid().is_root() {
        return skip("root_takes_over_no_volume", "becoming another user needs root");
    }
    let volume = Volume::luks2(&operator.scratch, "20M");
    let binary = for_everybody(&operator);
    let folder = operator.directory();
    std::fs::create_dir(&folder).unwrap();
    for path in [&folder, &volume.image, &volume.passphrase] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    open(&folder, 0o700);
    let passphrase = text(&volume.passphrase);
    let socket = format!("unix:{}", text(&folder.join("nbd")));
    let words = ["open", text(&volume.image), "--passphrase-file", passphrase, "--nbd", &socket];
    let ran =
        as_nobody(&binary, &operator, &format!("{} --name image --hand-over --daemon", words.join(" ")));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let server = operator.pid();
    operator.is_refused("upgrade image", 1, "image is another user's");
    assert_eq!(operator.pid(), server);
    let ran = as_nobody(&binary, &operator, "upgrade image");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_ne!(operator.pid(), server);
    operator.does("close image");
}

#[test]
fn nonsense_and_silence_harm_nobody() {
    let operator = Operator::new();
    let (_, server) = operator.open(&[]);
    let connect = || {
        let socket = UnixStream::connect(operator.directory().join("image.sock")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    };
    let long = vec![b'x'; 100_000];
    for (said, answer) in [
        (&b"GET / HTTP/1.1\r\n"[..], "not a request"),
        (b"{}\n", "not a request"),
        (b"{\"version\":7,\"request\":\"status\"}\n", "version 1"),
        (b"{\"version\":1,\"request\":{\"set-key\":{\"size\":99999999}}}\n", "at most"),
        (&long, "4096"),
    ] {
        let mut socket = connect();
        let _ = socket.write_all(said);
        let mut heard = [0; 512];
        let len = socket.read(&mut heard).unwrap_or(0);
        let heard = String::from_utf8_lossy(&heard[..len]);
        // A long one may have been cut off before the answer was read.
        assert!(heard.contains(answer) || (said.len() > 4096 && len == 0), "{heard}");
    }
    // Many that say nothing, and one that dribbles: the socket is full, the volume is not.
    let silent: Vec<_> = (0..16).map(|_| connect()).collect();
    let mut slow = connect();
    let _ = slow.write_all(b"{");
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [1; 4096]);
    drop(silent);
    drop(slow);
    wait_until("the control socket has room", PATIENCE, || operator.run("status image").code == Some(0));
    drop(client);
    server.stop();
}

/// Listens as `uid` and answers each of `clients` with `reply`; returns the requests.
fn listen_as(uid: u32, socket: &Path, clients: usize, reply: Vec<u8>) -> JoinHandle<Vec<Vec<u8>>> {
    let (listening, listens) = mpsc::channel();
    let socket = socket.to_owned();
    let thread = thread::spawn(move || {
        // Linux changes the user of this thread only.
        set_thread_uid(Uid::from_raw(uid)).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        open(&socket, 0o777);
        listening.send(()).unwrap();
        let serve = |_| {
            let (mut client, _) = listener.accept().unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut said = vec![0; 4096];
            let len = client.read(&mut said).unwrap();
            said.truncate(len);
            let _ = client.write_all(&reply);
            said
        };
        (0..clients).map(serve).collect()
    });
    listens.recv().unwrap();
    thread
}

#[test]
fn whoever_owns_the_folder_gets_no_key_and_no_word() {
    let operator = Operator::new();
    if !rustix::process::geteuid().is_root() {
        return skip("whoever_owns_the_folder", "becoming another user needs root");
    }
    let binary = for_everybody(&operator);
    let folder = operator.directory();
    std::fs::create_dir(&folder).unwrap();
    open(&folder, 0o755);
    chown(&folder, Some(SOMEBODY), None).unwrap();
    let key = operator.scratch.file("key", &[b'7'; 128]);
    open(&key, 0o644);
    let set_key = format!("message image key set --key-file {}", text(&key));
    let asked = [&set_key, "status image", "close image"];
    let refused = br#"{"version":1,"reply":{"refused":{"kind":"failed","message":"no"}}}"#;
    let server =
        listen_as(SOMEBODY, &folder.join("image.sock"), asked.len() + 1, [&refused[..], b"\n"].concat());
    for words in asked {
        let ran = as_nobody(&binary, &operator, words);
        assert_eq!(ran.code, Some(1), "{words}: {ran:?}");
        assert!(ran.err.contains("its server is user 1234's"), "{words}: {ran:?}");
    }
    // Root may look at the volumes of all users.
    operator.is_refused("status image", 1, "image: no");
    let said = server.join().unwrap();
    assert!(said[..3].iter().all(Vec::is_empty), "{said:?}");
    assert!(!said[3].is_empty());
}

#[test]
fn what_a_server_says_cannot_steer_the_terminal() {
    let operator = Operator::new();
    let (_, server) = operator.open(&[]);
    let mut status = operator.status("image");
    server.stop();
    let evil = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}";
    for field in ["name", "image", "policy"] {
        status[field] = evil.into();
    }
    status["addresses"] = vec![evil].into();
    let answer = |reply: serde_json::Value| {
        (serde_json::json!({ "version": 1, "reply": reply }).to_string() + "\n").into_bytes()
    };
    let socket = operator.directory().join("image.sock");
    let own = rustix::process::geteuid().as_raw();
    for (reply, asked) in [
        (
            serde_json::json!({ "status": status }),
            &["status image", "list", "policy image", "top --once --interval 1"][..],
        ),
        (
            serde_json::json!({ "refused": { "kind": "failed", "message": evil, "remedy": evil } }),
            &["status image", "list"],
        ),
    ] {
        // `top` asks twice.
        let clients = asked.iter().map(|words| 1 + usize::from(words.starts_with("top"))).sum();
        let server = listen_as(own, &socket, clients, answer(reply));
        for words in asked {
            let ran = operator.run(words);
            let shown = ran.out + &ran.err;
            assert!(shown.contains("owned"), "{words}: {shown:?}");
            let steers = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
            assert!(!shown.contains(steers), "{words}: {shown:?}");
        }
        server.join().unwrap();
        std::fs::remove_file(&socket).unwrap();
    }
}
