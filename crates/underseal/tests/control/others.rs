use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::operator::{Operator, Ran};
use crate::support::mounts::skip;
use crate::support::nbd::Client;
use crate::support::tool;
use crate::support::tools::{PATIENCE, wait_until};

#[test]
fn another_user_is_refused_and_the_volume_goes_on() {
    let operator = Operator::new();
    if !rustix::process::geteuid().is_root() {
        return skip("another_user_is_refused", "becoming another user needs root");
    }
    let (_, server) = operator.open(&[]);
    // The binary's own directory may be closed to others.
    let binary = operator.scratch.path("underseal");
    std::fs::copy(env!("CARGO_BIN_EXE_underseal"), &binary).unwrap();
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(operator.scratch.folder(), 0o755);
    let socket = operator.directory().join("image.sock");
    let as_nobody = |words: &str| {
        let mut command = tool("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&binary)
            .args(words.split(' '));
        command.env("UNDERSEAL_RUNTIME_DIR", operator.directory()).current_dir("/");
        Ran::from(command.output().expect("setpriv(1), of util-linux, is needed for the tests"))
    };
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
