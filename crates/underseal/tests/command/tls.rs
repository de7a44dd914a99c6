//! TLS, with certificates made by certtool.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::{Place, Server};

/// What qemu and nbdkit would find in such a directory.
fn certificates(place: &Place) {
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
