//! `open`, with the clients that people have.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::Value;

use crate::command::common::{Place, Ran, Server, eventually, exists};
use crate::support::mounts::skip;

fn export_of(place: &Place, uri: &str) -> Value {
    let info: Value = serde_json::from_str(&place.tool("nbdinfo", &["--json", uri])).unwrap();
    info["exports"][0].clone()
}

#[test]
fn an_export_says_what_it_can_do() {
    let place = Place::with_volume();
    let server = Server::start(&place, &["--export-name", "a b", "--description", "my disk"]);
    assert!(server.uri().contains("/a%20b?"), "{}", server.uri());
    let export = export_of(&place, server.uri());
    for can in ["can_flush", "can_fua", "can_zero", "can_fast_zero", "can_cache", "can_df", "can_multi_conn"]
    {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["can_trim"], false, "discards only if allowed");
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["export-size"], 16 << 20);
    assert_eq!(export["block_size_minimum"], 4096);
    assert_eq!(export["block_size_maximum"], 32 << 20);
    let list = place.tool("nbdinfo", &["--list", "--json", server.uri()]);
    assert!(list.contains("my disk") && list.contains("a b"), "{list}");
    server.stop();

    let server = Server::start(&place, &["--allow-discards"]);
    assert_eq!(export_of(&place, server.uri())["can_trim"], true);
    server.stop();

    let server = Server::start(&place, &["--read-only"]);
    let export = export_of(&place, server.uri());
    assert_eq!((&export["is_read_only"], &export["can_trim"]), (&Value::Bool(true), &Value::Bool(false)));
    let refused =
        std::process::Command::new("nbdcopy").arg(place.path("pass")).arg("--").arg(server.uri()).output();
    assert!(!refused.unwrap().status.success());
    server.stop();
}

#[test]
fn without_a_door_it_is_nbd_on_a_socket_in_the_runtime_folder() {
    let places = [Place::new(), Place::new()];
    places.iter().for_each(|place| place.format("doorless", &["--size", "32M"]));
    let servers = places.each_ref().map(|place| Server::start_image(place, "doorless", &[]));
    let sockets = servers.each_ref().map(|server| server.uri().split_once("socket=").unwrap().1.to_owned());
    assert!(sockets[0].ends_with("/doorless.nbd") && sockets[1].ends_with("/doorless-2.nbd"), "{sockets:?}");
    for (place, server) in places.iter().zip(servers) {
        assert_eq!(export_of(place, server.uri())["export-size"], 16 << 20);
        server.stop();
    }
    for socket in sockets {
        assert!(std::fs::symlink_metadata(&socket).is_err(), "{socket} is left behind");
    }
}

#[test]
fn sockets_are_for_those_who_were_named() {
    let place = Place::with_volume();
    let group = rustix::process::getegid().as_raw().to_string();
    let args = ["--vhost-user", "vm", "--socket-mode", "660", "--socket-group", &group];
    let server = Server::start(&place, &args);
    for socket in ["nbd", "vm"] {
        let about = std::fs::metadata(place.path(socket)).unwrap();
        assert_eq!(about.permissions().mode() & 0o777, 0o660, "{socket}");
    }
    server.stop();
    let refused = place.run(&["open", "disk", "--nbd", "unix:nbd", "--socket-mode", "680"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("an octal number"), "{}", refused.stderr);
}

#[test]
fn clients_read_back_what_others_wrote() {
    let place = Place::with_volume();
    let noise = place.noise("noise", 16 << 20);
    for wheres in ["unix:nbd", "tcp:127.0.0.1:0", "tcp:[::1]:0"] {
        if wheres.contains("::1") && std::net::TcpListener::bind("[::1]:0").is_err() {
            skip(wheres, "this machine has no IPv6");
            continue;
        }
        let server = Server::start_command(&place, &["--nbd", wheres]);
        let uri = server.uri();
        place.tool("nbdcopy", &["noise", uri]);
        place.tool("nbdcopy", &[uri, "back"]);
        assert!(place.read("back") == noise, "{wheres}");
        place.tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", "noise", uri]);
        let io = [
            "-f",
            "raw",
            "-c",
            "write -P 0xab 64k 128k",
            "-c",
            "write -z 1M 64k",
            "-c",
            "flush",
            "-c",
            "read -vP 0xab 68k 4k",
            "-c",
            "read -P 0 1M 64k",
            uri,
        ];
        place.tool("qemu-io", &io);
        let script = "h.pwrite(b'\\x11' * 8192, 8192, nbd.CMD_FLAG_FUA); h.zero(4096, 16384); h.flush(); \
                      assert h.pread(8192, 8192) == b'\\x11' * 8192; assert h.pread(4096, 16384) == bytes(4096)";
        Ran::from(place.nbdsh(uri, script).output().unwrap()).succeeds();
        server.stop();

        let mut expected = noise.clone();
        expected[64 << 10..192 << 10].fill(0xab);
        expected[1 << 20..(1 << 20) + (64 << 10)].fill(0);
        expected[8192..16384].fill(0x11);
        expected[16384..20480].fill(0);
        assert!(
            place.unlock("read", "disk", &[]).bytes == expected,
            "{wheres}: what is left when it has stopped"
        );
    }
}

#[test]
fn several_sockets_serve_one_volume() {
    let place = Place::with_volume();
    let server = Server::start_command(
        &place,
        &["--nbd", "unix:one", "--nbd", "unix:two", "--nbd", "tcp:127.0.0.1:0"],
    );
    assert_eq!(server.uris.len(), 3);
    for uri in &server.uris {
        place.tool("nbdinfo", &["--size", uri]);
    }
    server.stop();
    assert!(!exists(&place.path("one")) && !exists(&place.path("two")));
}

#[test]
fn a_detached_header_and_direct_io_serve_as_well() {
    let place = Place::new();
    place.format("disk", &["--size", "16M", "--header", "head"]);
    let noise = place.noise("noise", 16 << 20);
    let server = Server::start(&place, &["--header", "head", "--direct"]);
    place.tool("nbdcopy", &["noise", server.uri()]);
    place.tool("nbdcopy", &[server.uri(), "back"]);
    server.stop();
    assert!(place.read("back") == noise);
    assert!(place.unlock("read", "disk", &["--header", "head"]).bytes == noise);
}

#[test]
fn a_socket_is_for_its_owner_only_and_a_dead_one_is_replaced() {
    let place = Place::with_volume();
    // Bound and dropped: the file stays, and no process listens.
    drop(UnixListener::bind(place.path("nbd")).unwrap());
    assert!(exists(&place.path("nbd")));
    // A process that another test starts at this moment may inherit the listener for a short time.
    eventually("nobody listens", || UnixStream::connect(place.path("nbd")).is_err());
    let server = Server::start(&place, &[]);
    assert_eq!(std::fs::metadata(place.path("nbd")).unwrap().permissions().mode() & 0o777, 0o600);
    place.tool("nbdinfo", &[server.uri()]);

    place.format("second", &["--size", "32M"]);
    place.unlock("open", "second", &["--nbd", "unix:nbd"]).fails(1, "another server listens there");
    place.tool("nbdinfo", &[server.uri()]);
    server.stop();
    assert!(!exists(&place.path("nbd")));
}

#[test]
fn a_filesystem_lives_on_it() {
    let place = Place::with_volume();
    place.tool("truncate", &["-s", "16M", "ext4"]);
    std::fs::create_dir(place.path("tree")).unwrap();
    place.noise("tree/file", 1 << 20);
    place.tool("mkfs.ext4", &["-q", "-d", "tree", "ext4"]);
    let server = Server::start(&place, &[]);
    place.tool("nbdcopy", &["ext4", server.uri()]);
    place.tool("nbdcopy", &[server.uri(), "back"]);
    server.stop();
    place.tool("e2fsck", &["-fn", "back"]);
    place.tool("debugfs", &["-R", "dump /file out", "back"]);
    assert!(place.read("out") == place.read("tree/file"));
}
