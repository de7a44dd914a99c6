//! TLS, with certificates made by certtool.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::command::common::{Place, Server};

/// Certificates under the names that qemu and nbdkit look for in a directory.
pub(crate) fn certificates(place: &Place) {
    std::fs::create_dir(place.path("pki")).unwrap();
    std::fs::write(place.path("ca.info"), "cn = test authority\nca\ncert_signing_key\n").unwrap();
    std::fs::write(place.path("server.info"), "cn = localhost\ndns_name = localhost\ntls_www_server\n")
        .unwrap();
    std::fs::write(place.path("client.info"), "cn = client\ntls_www_client\n").unwrap();
    for name in ["ca", "server", "client"] {
        let path = place.path(&format!("pki/{name}-key.pem"));
        let key = place.tool("certtool", &["--generate-privkey", "--key-type", "ecdsa"]);
        std::fs::write(place.path("theirs.pem"), key).unwrap();
        // GnuTLS pads some private keys as signed numbers: the manual page's remedy.
        place.tool("openssl", &["pkey", "-in", "theirs.pem", "-out", &path.display().to_string()]);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let ca = ["--generate-self-signed", "--load-privkey", "pki/ca-key.pem", "--template", "ca.info"];
    std::fs::write(place.path("pki/ca-cert.pem"), place.tool("certtool", &ca)).unwrap();
    for name in ["server", "client"] {
        let (key, template) = (format!("pki/{name}-key.pem"), format!("{name}.info"));
        let sign = [
            "--generate-certificate",
            "--load-ca-certificate",
            "pki/ca-cert.pem",
            "--load-ca-privkey",
            "pki/ca-key.pem",
            "--load-privkey",
            &key,
            "--template",
            &template,
        ];
        std::fs::write(place.path(&format!("pki/{name}-cert.pem")), place.tool("certtool", &sign)).unwrap();
    }
}

#[test]
fn tls_is_required_where_there_are_certificates() {
    let place = Place::with_volume();
    certificates(&place);
    let noise = place.noise("noise", 1 << 20);
    let server = Server::start_command(&place, &["--nbd", "tcp:127.0.0.1:0", "--tls-certificates", "pki"]);
    let port = server.uri().rsplit_once(':').unwrap().1.trim_end_matches('/').to_owned();
    assert!(server.uri().starts_with("nbds://"), "{}", server.uri());
    let secure = format!("nbds://localhost:{port}/?tls-certificates={}", place.text("pki"));
    place.tool("nbdcopy", &["noise", &secure]);
    let plain = Command::new("nbdinfo").arg(format!("nbd://localhost:{port}/")).output().unwrap();
    assert!(!plain.status.success(), "plain text is turned away");
    server.stop();
    assert!(place.unlock("read", "disk", &["--length", "1M"]).bytes == noise);
}

#[test]
fn certificates_are_read_again_on_sighup() {
    let place = Place::with_volume();
    certificates(&place);
    // SIGHUP is ignored from the start, as under nohup: a terminal may run this test.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_underseal"), "open", "disk"]);
    command.args(["--passphrase-file", "pass", "--tls-certificates", "pki", "--tls-verify-peer"]);
    command.current_dir(place.path(""));
    let server = crate::support::Server::start_command(command, &[]);
    let uri = format!(
        "nbds+unix:///?socket={}&tls-hostname=localhost&tls-certificates={}",
        server.socket().display(),
        place.text("pki")
    );
    let connects = || Command::new("nbdinfo").arg(&uri).output().unwrap().status.success();
    assert!(connects());
    let list = |days: &str| {
        let made = [
            "--generate-crl",
            "--load-ca-privkey",
            "pki/ca-key.pem",
            "--load-ca-certificate",
            "pki/ca-cert.pem",
            "--load-certificate",
            "pki/client-cert.pem",
            "--template",
            "crl.info",
        ];
        std::fs::write(place.path("crl.info"), format!("crl_next_update = {days}\ncrl_number = 1\n"))
            .unwrap();
        let list = place.tool("certtool", &made);
        std::fs::write(place.path("fresh.pem"), list).unwrap();
        // The list is replaced by a rename, as tools do.
        std::fs::rename(place.path("fresh.pem"), place.path("pki/ca-crl.pem")).unwrap();
    };
    let hang_up = |says: &str, times: usize| {
        server.signal(rustix::process::Signal::HUP);
        crate::command::common::eventually(says, || server.log().matches(says).count() == times);
    };
    list("1");
    assert!(connects(), "it is not read yet");
    hang_up("are read again, for new connections", 1);
    assert!(!connects(), "it is revoked");
    std::fs::write(place.path("pki/ca-crl.pem"), "none").unwrap();
    hang_up("with the certificates from before", 1);
    assert!(!connects(), "as before");
    std::fs::remove_file(place.path("pki/ca-crl.pem")).unwrap();
    hang_up("ca-crl.pem: the list of revoked certificates is gone", 1);
    assert!(!connects(), "as before");
    server.stop();
}

#[test]
fn clients_without_a_certificate_are_turned_away_where_they_are_verified() {
    let place = Place::with_volume();
    certificates(&place);
    // A stranger knows the authority, and has nothing that it signed.
    std::fs::create_dir(place.path("stranger")).unwrap();
    std::fs::copy(place.path("pki/ca-cert.pem"), place.path("stranger/ca-cert.pem")).unwrap();
    let args = ["--nbd", "tcp:127.0.0.1:0", "--tls-certificates", "pki", "--tls-verify-peer"];
    let server = Server::start_command(&place, &args);
    let port = server.uri().rsplit_once(':').unwrap().1.trim_end_matches('/').to_owned();
    let as_who = |who: &str| {
        let uri = format!("nbds://localhost:{port}/?tls-certificates={}", place.text(who));
        Command::new("nbdinfo").arg(uri).output().unwrap().status.success()
    };
    assert!(as_who("pki"));
    assert!(!as_who("stranger"));
    server.stop();
}
