//! clevis with a tang server over loopback.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use crate::support::volume::underseal;
use crate::support::{output, run, tool};
use crate::token::disk::Disk;
use underseal_testing::{PATIENCE, wait_until};

/// A tang server of this test's own.
struct Tang {
    server: Child,
    url: String,
}

impl Tang {
    fn start(disk: &Disk) -> Self {
        let keys = disk.file("tang");
        std::fs::create_dir(&keys).unwrap();
        run(tool("/usr/libexec/tangd-keygen").arg(&keys));
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut listen = tool("systemd-socket-activate");
        listen.args(["--inetd", "--accept", "--listen", &address, "/usr/libexec/tangd"]).arg(&keys);
        let server = listen.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_until("tang listens", PATIENCE, || TcpStream::connect(&address).is_ok());
        Self { server, url: format!("http://{address}") }
    }
}

impl Drop for Tang {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn clevis_reads_what_we_bound_and_we_open_what_clevis_bound() {
    let disk = Disk::new();
    let tang = Tang::start(&disk);
    let config = format!("{{\"url\":\"{}\"}}", tang.url);
    // Enrolling needs --trust where no terminal can ask whether to trust the server's key.
    assert!(!output(disk.enroll().args(["clevis", "tang", &config])).status.success());
    assert_eq!(disk.list().as_array().unwrap().len(), 0);
    run(disk.enroll().args(["clevis", "tang", &config, "--trust"]));
    disk.opens(disk.read().arg("--token-only")).unwrap();
    let mut pass = tool("clevis");
    pass.args(["luks", "pass", "-s", "1", "-d"]).arg(&disk.image).env("no_proxy", "127.0.0.1");
    let passphrase = run(&mut pass);
    let given = disk.scratch.file("given", passphrase.as_bytes());
    run(tool("cryptsetup")
        .args(["open", "--test-passphrase", "--key-slot", "1", "--key-file"])
        .arg(&given)
        .arg(&disk.image));
    assert!(run(tool("clevis").args(["luks", "list", "-d"]).arg(&disk.image)).contains("1: tang"));

    let theirs = Disk::new();
    let sss = format!("{{\"t\":1,\"pins\":{{\"tang\":[{config}]}}}}");
    for (pin, config) in [("tang", &config), ("sss", &sss)] {
        let mut bind = tool("clevis");
        bind.args(["luks", "bind", "-y", "-k"]).arg(theirs.file("pass")).arg("-d").arg(&theirs.image);
        run(bind.args([pin, config]).env("no_proxy", "127.0.0.1"));
    }
    for token in ["0", "1"] {
        theirs.opens(theirs.read().args(["--token-only", "--token-id", token])).unwrap();
    }
    // Without the tang server the token fails, and the passphrase still opens the volume.
    drop(tang);
    let (status, said) = disk.opens(disk.read().arg("--token-only")).unwrap_err();
    assert!(status == 1 && said.contains("clevis"), "{said}");
    disk.opens(disk.read().arg("--passphrase-file").arg(disk.file("pass"))).unwrap();
}

/// `clevis luks edit` and `regen` ask whether a passphrase opens the slot that clevis has, too.
#[test]
fn under_cryptsetups_name_a_passphrase_that_is_given_is_tried_alone() {
    let disk = Disk::new();
    let tang = Tang::start(&disk);
    let config = format!("{{\"url\":\"{}\"}}", tang.url);
    run(disk.enroll().args(["clevis", "tang", &config, "--trust"]));
    let opens = |options: &[&str]| {
        let mut front = underseal();
        front.arg0("cryptsetup").args(["open", "--test-passphrase", "--key-slot", "1"]).args(options);
        front.arg(&disk.image).stdin(std::fs::File::open(disk.file("pass")).unwrap());
        output(&mut front).status.code()
    };
    assert_eq!(opens(&[]), Some(2), "the passphrase is that of slot 0");
    for named in [&["--token-id", "0"][..], &["--token-type", "clevis"], &["--token-only"]] {
        assert_eq!(opens(named), Some(0), "{named:?}");
    }
}
