//! Refused lower devices, and the error messages.

use crate::nbd_lower::backing::Backing;
use crate::support::volume::{CHEAP_PBKDF2, underseal};
use crate::support::{Scratch, run};

fn fails(args: &[&str]) -> (i32, String) {
    crate::support::fails(underseal().args(args))
}

#[test]
fn addresses_that_are_none_are_usage_errors() {
    for (uri, part) in [
        ("nbds://host/export", "TLS"),
        ("nbd+unix:///export", "socket is missing"),
        ("nbd:///export", "host is missing"),
        ("nbd+vsock://1/export", "schemes"),
        ("nbd://host/?reconnect-delay=soon", "seconds"),
    ] {
        for command in ["info", "read", "format"] {
            let output = if command == "read" { &["-o", "/dev/null"][..] } else { &[] };
            let (status, said) = fails(&[&[command, uri], output].concat());
            assert_eq!(status, 2, "{command} {uri}: {said}");
            assert!(said.contains(part), "{command} {uri}: {said}");
        }
    }
}

#[test]
fn servers_that_do_not_give_the_export_are_told_of() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(
        &scratch,
        &["--filter=exportname", "memory", "8M", "exportname-strict=true", "exportname=disk"],
    );
    let (_, said) = fails(&["info", &lower.uri("").replace("///?", "///other?")]);
    assert!(said.contains("export \"other\"") || said.contains("no export"), "{said}");
    let (_, said) = fails(&["info", &lower.uri("").replace("///?", "///disk?")]);
    assert!(said.contains("no LUKS header"), "{said}");
    let (_, said) = fails(&["info", &lower.uri("").replace("lower", "nowhere")]);
    assert!(said.contains("cannot connect: No such file"), "{said}");
    // A socket on which no process listens.
    let stale = scratch.path("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let (_, said) = fails(&["info", &format!("nbd+unix:///?socket={}", stale.display())]);
    assert!(said.contains("Connection refused"), "{said}");
}

#[test]
fn what_a_servers_export_is_not_is_said() {
    let scratch = Scratch::new();
    let read_only = Backing::nbdkit(&scratch, &["-r", "memory", "8M"]);
    let (_, said) = fails(&["format", &read_only.uri("")]);
    assert!(said.contains("read-only"), "{said}");
    drop(read_only);
    let lower = Backing::nbdkit(&scratch, &["memory", "32M"]);
    let (status, said) = fails(&["format", &lower.uri(""), "--size", "10M"]);
    assert!(status == 2 && said.contains("is settled there"), "{said}");
    let (status, said) = fails(&["read", &lower.uri(""), "--direct", "-o", "/dev/null"]);
    assert!(status == 2 && said.contains("--direct"), "{said}");
    let passphrase = scratch.file("pass", b"secret");
    let mut format = underseal();
    format
        .args(["format", "-q", &lower.uri("")])
        .args(CHEAP_PBKDF2)
        .arg("--passphrase-file")
        .arg(&passphrase);
    run(&mut format);
    let (status, said) =
        fails(&["format", &lower.uri(""), "--passphrase-file", passphrase.to_str().unwrap()]);
    assert!(status == 2 && said.contains("a LUKS2 volume"), "{said}");
}
