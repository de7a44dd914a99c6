//! Sockets that another program opened and hands over: systemd, and libnbd's tools.

use std::os::unix::net::UnixStream;
use std::process::Stdio;

use serde_json::Value;

use crate::command::common::{Place, Ran, eventually, server_signal};

#[test]
fn a_socket_of_systemds_is_served() {
    let place = Place::with_volume();
    let listen = format!("--listen={}", place.text("nbd"));
    for nbd in [&["--nbd", "systemd"][..], &[]] {
        let mut activate = std::process::Command::new("systemd-socket-activate");
        activate.arg(&listen).arg(env!("CARGO_BIN_EXE_underseal"));
        activate.args(["open", "disk", "--passphrase-file", "pass"]).args(nbd).current_dir(place.path(""));
        let child = activate
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("systemd-socket-activate (package systemd) is needed for the tests");
        // The first connection starts the server in the place of the one that listens.
        eventually("the socket", || UnixStream::connect(place.path("nbd")).is_ok());
        assert_eq!(place.tool("nbdinfo", &["--size", "nbd+unix:///?socket=nbd"]).trim(), "16777216");
        server_signal(child.id(), rustix::process::Signal::TERM);
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
        // The program that made the socket owns its file: the server leaves it there.
        std::fs::remove_file(place.path("nbd")).unwrap();
    }
}

#[test]
fn libnbds_tools_start_a_server_of_their_own() {
    let place = Place::with_volume();
    let server = [env!("CARGO_BIN_EXE_underseal"), "open", "disk", "--passphrase-file", "pass"];
    let info = place.tool("nbdinfo", &[&["--json", "--", "["], &server[..], &["]"]].concat());
    let info: Value = serde_json::from_str(&info).expect("nothing but nbdinfo's own output");
    assert_eq!(info["exports"][0]["export-size"], 16 << 20);
    place.noise("noise", 16 << 20);
    place.tool("nbdcopy", &[&["--", "noise", "["], &server[..], &["]"]].concat());
    eventually("the server's end", || place.unlock("read", "disk", &[]).bytes == place.read("noise"));
}
