//! STARTTLS, with a rustls client and with certificates made by openssl.

use std::{io::Write, path::Path, sync::Arc};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tempfile::TempDir;
use underseal_export::{
    ErrorKind,
    nbd::{
        Server, ServerConfig, TlsConfig, TlsFiles, TlsMode,
        protocol::{RequestType, option, option_reply as reply},
    },
    net::{Endpoint, listen},
};

use crate::{
    client::{Client, FLAGS, go, message, request},
    fixture::{MemoryDisk, Served, Stream, config, disk, make_certificates, run},
};

type Secured = Client<StreamOwned<ClientConnection, Box<dyn Stream>>>;

struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        make_certificates(directory.path());
        Self(directory)
    }

    fn server(&self, verify_clients: bool) -> TlsConfig {
        TlsConfig::load(&TlsFiles::in_directory(self.0.path(), verify_clients).unwrap()).unwrap()
    }

    fn client(&self, shows_certificate: bool) -> ClientConfig {
        self.client_of(shows_certificate, rustls::ALL_VERSIONS)
    }

    fn client_of(
        &self,
        shows_certificate: bool,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ClientConfig {
        let path = |name: &str| self.0.path().join(name);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(path("ca-cert.pem")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        if shows_certificate {
            let chain = vec![CertificateDer::from_pem_file(path("client-cert.pem")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(path("client-key.pem")).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        }
    }

    fn secure(&self, client: Client<Box<dyn Stream>>, shows_certificate: bool) -> Secured {
        secure_with(client, self.client(shows_certificate))
    }
}

/// Asks for TLS on a connection and continues over it.
fn secure_with(mut client: Client<Box<dyn Stream>>, config: ClientConfig) -> Secured {
    assert_eq!(client.verdict(option::STARTTLS, b"").unwrap(), reply::ACK);
    let session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    Client(StreamOwned::new(session, client.0))
}

#[test]
fn tls_1_2_and_1_3_are_spoken() {
    let certificates = Certificates::new();
    let config = ServerConfig { tls: TlsMode::Required(certificates.server(true)), ..config() };
    let served = Served::unix(config, MemoryDisk::default());
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut client = secure_with(served.client(), certificates.client_of(true, &[version]));
        client.go("disk").unwrap();
        assert!(client.read(0, 1 << 20).unwrap() == disk());
        assert_eq!(client.0.conn.protocol_version(), Some(version.version));
    }
}

#[test]
fn everything_after_starttls_is_tls_and_nothing_is_lost_on_the_way() {
    let certificates = Certificates::new();
    let config = ServerConfig { tls: TlsMode::Required(certificates.server(false)), ..config() };
    for served in
        [Served::unix(config.clone(), MemoryDisk::default()), Served::tcp(config, MemoryDisk::default())]
    {
        let mut plain = served.client();
        assert_eq!(plain.verdict(option::LIST, b"").unwrap(), reply::ERR_TLS_REQD);
        let mut client = certificates.secure(plain, false);
        assert_eq!(client.verdict(option::STARTTLS, b"").unwrap(), reply::ERR_INVALID);
        // The last option and the first request are in one record.
        let read = request(RequestType::Read, 512, 512);
        client.0.write_all(&[message(option::GO, &go("disk", &[])), read].concat()).unwrap();
        while client.reply().unwrap().kind != reply::ACK {}
        assert_eq!(client.read_reply(512).unwrap()[..8], 1_u64.to_be_bytes());
        assert!(client.read(0, 1 << 20).unwrap() == disk());
        client.0.write_all(&request(RequestType::Disconnect, 0, 0)).unwrap();
        // close_notify: the end is clean, not cut.
        assert_eq!(std::io::Read::read(&mut client.0, &mut [0]).unwrap(), 0);
    }
}

#[test]
fn client_without_a_certificate_is_turned_away_where_one_is_wanted() {
    let certificates = Certificates::new();
    let config = ServerConfig { tls: TlsMode::Required(certificates.server(true)), ..config() };
    let served = Served::unix(config, MemoryDisk::default());
    certificates.secure(served.client(), true).go("disk").unwrap();
    assert!(certificates.secure(served.client(), false).go("disk").is_err());
    // A certificate of another CA is refused, as none is.
    let others = Certificates::new();
    let mut client = others.client(true);
    client.dangerous().set_certificate_verifier(Arc::new(Trusting));
    assert!(secure_with(served.client(), client).go("disk").is_err());
}

#[test]
fn revoked_client_is_turned_away() {
    let certificates = Certificates::new();
    let directory = certificates.0.path();
    revoke_client(directory);
    let config = ServerConfig { tls: TlsMode::Required(certificates.server(true)), ..config() };
    let served = Served::unix(config, MemoryDisk::default());
    assert!(certificates.secure(served.client(), true).go("disk").is_err());
}

#[test]
fn plain_options_behind_starttls_are_no_options() {
    // An attacker in the middle who sends options ahead of the client's TLS would otherwise speak
    // in the client's name.
    let certificates = Certificates::new();
    let config = ServerConfig { tls: TlsMode::Offered(certificates.server(false)), ..config() };
    let served = Served::unix(config, MemoryDisk::default());
    let mut client = served.client();
    client
        .0
        .write_all(&[message(option::STARTTLS, b""), message(option::GO, &go("disk", &[]))].concat())
        .unwrap();
    assert_eq!(client.reply().unwrap().kind, reply::ACK);
    // The server sends a TLS alert and ends, without a reply to GO.
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut client.0, &mut rest);
    assert!(rest.len() < 20 && rest.first().is_none_or(|&kind| kind == 21), "{rest:x?}");
}

#[test]
fn client_that_stalls_in_the_tls_handshake_is_closed_in_time() {
    let certificates = Certificates::new();
    let config = ServerConfig {
        tls: TlsMode::Required(certificates.server(false)),
        handshake_timeout: crate::limits::HANDSHAKE,
        ..config()
    };
    let served = Served::unix(config, MemoryDisk::default());
    let mut client = served.client();
    assert_eq!(client.verdict(option::STARTTLS, b"").unwrap(), reply::ACK);
    // The record's head is sent, and its body is not.
    client.0.write_all(&[22, 3, 1, 0x40, 0]).unwrap();
    assert!(client.is_closed());
}

#[test]
fn required_tls_may_face_the_network_and_offered_tls_may_not() {
    let certificates = Certificates::new();
    let everywhere: Endpoint = "tcp:0.0.0.0:0".parse().unwrap();
    let server = |tls| {
        let config = ServerConfig { tls, ..config() };
        Server::new(config, listen(&everywhere).unwrap(), Arc::new(MemoryDisk::default()))
    };
    assert!(server(TlsMode::Required(certificates.server(false))).is_ok());
    let error = server(TlsMode::Offered(certificates.server(false))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Plaintext);
}

#[test]
fn unusable_files_are_named() {
    let certificates = Certificates::new();
    let directory = certificates.0.path();
    let good = TlsFiles::in_directory(directory, true).unwrap();
    std::fs::write(directory.join("empty.pem"), "").unwrap();
    std::fs::write(directory.join("broken.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap();
    let (empty, broken, none) =
        (directory.join("empty.pem"), directory.join("broken.pem"), directory.join("none"));
    let table = [
        (TlsFiles { certificate: none.clone(), ..good.clone() }, "none"),
        (TlsFiles { certificate: empty.clone(), ..good.clone() }, "empty.pem"),
        (TlsFiles { certificate: broken, ..good.clone() }, "broken.pem"),
        (TlsFiles { key: none, ..good.clone() }, "none"),
        (TlsFiles { key: good.certificate.clone(), ..good.clone() }, "server-cert.pem"),
        (TlsFiles { key: directory.join("client-key.pem"), ..good.clone() }, "client-key.pem"),
        (TlsFiles { client_ca: Some(empty), ..good.clone() }, "empty.pem"),
        (TlsFiles { client_crl: Some(good.key.clone()), ..good.clone() }, "server-key.pem"),
    ];
    for (files, named) in table {
        let Err(error) = TlsConfig::load(&files) else { panic!("{files:?} was taken") };
        assert_eq!(error.kind(), ErrorKind::Certificate);
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn nbdinfo_reads_over_tls_and_fails_without() {
    let certificates = Certificates::new();
    let config = ServerConfig { tls: TlsMode::Required(certificates.server(true)), ..config() };
    let served = Served::tcp(config, MemoryDisk::default());
    let directory = certificates.0.path().to_str().unwrap();
    let uri = format!("nbds://localhost:{}/disk?tls-certificates={directory}", served.port());
    let described = run("nbdinfo", &["--json", &uri]);
    assert!(described.contains("\"TLS\": true"), "{described}");
    assert!(described.contains("\"export-size\": 1048576"), "{described}");
    let copy = certificates.0.path().join("copy");
    run("nbdcopy", &[&uri, copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == disk());

    let plain = format!("nbd://localhost:{}/disk", served.port());
    let output = std::process::Command::new("nbdinfo").arg(plain).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(
        Client::greet(served.connect(), FLAGS).unwrap().verdict(99, b"").unwrap(),
        reply::ERR_TLS_REQD
    );
}

#[test]
fn qemu_img_connects_over_tls() {
    let certificates = Certificates::new();
    let config = ServerConfig { tls: TlsMode::Required(certificates.server(true)), ..config() };
    let served = Served::tcp(config, MemoryDisk::default());
    let credentials =
        format!("tls-creds-x509,id=t,endpoint=client,dir={}", certificates.0.path().to_str().unwrap());
    let image = format!("driver=nbd,host=localhost,port={},export=disk,tls-creds=t", served.port());
    let described =
        run("qemu-img", &["info", "--output=json", "--object", &credentials, "--image-opts", &image]);
    assert!(described.contains("\"virtual-size\": 1048576"), "{described}");
}

#[test]
fn a_list_that_does_not_hold_any_more_is_refused_with_its_date() {
    let certificates = Certificates::new();
    let directory = certificates.0.path();
    let good = TlsFiles::in_directory(directory, true).unwrap();
    let config = TlsConfig::load(&good).unwrap();
    revoke_client_until(directory, " -crl_lastupdate 20240101000000Z -crl_nextupdate 20250131000000Z");
    let files = TlsFiles::in_directory(directory, true).unwrap();
    let Err(error) = TlsConfig::load(&files) else { panic!("the list was taken") };
    assert_eq!(error.kind(), ErrorKind::Certificate);
    let error = error.to_string();
    assert!(error.contains("ca-crl.pem: ") && error.contains("2025-01-31 00:00:00 UTC"), "{error}");
    // An expired list is refused by `reload`, too; the earlier contents stay in use.
    assert!(config.reload(&files).is_err());
    let served = Served::unix(
        ServerConfig { tls: TlsMode::Required(config.clone()), ..self::config() },
        MemoryDisk::default(),
    );
    let connects = || certificates.secure(served.client(), true).go("disk").is_ok();
    assert!(connects());
    // A valid list applies to later connections.
    revoke_client(directory);
    config.reload(&files).unwrap();
    assert!(!connects());
}

#[test]
fn a_list_that_cannot_be_reached_lets_no_client_in() {
    let certificates = Certificates::new();
    let directory = certificates.0.path();
    let without = TlsFiles::in_directory(directory, true).unwrap();
    revoke_client(directory);
    let (list, kept) = (directory.join("ca-crl.pem"), directory.join("kept.pem"));
    std::fs::rename(&list, &kept).unwrap();
    let names = || TlsFiles::in_directory(directory, true);
    let load = || names().and_then(|files| TlsConfig::load(&files));
    let link = |target: &str| {
        drop(std::fs::remove_file(&list));
        std::os::unix::fs::symlink(target, &list).unwrap();
    };
    link("kept.pem");
    let config = load().unwrap();
    let served = Served::unix(
        ServerConfig { tls: TlsMode::Required(config.clone()), ..self::config() },
        MemoryDisk::default(),
    );
    let connects = || certificates.secure(served.client(), true).go("disk").is_ok();
    assert!(!connects());
    for target in ["away.pem", "ca-crl.pem", "server-key.pem/list"] {
        link(target);
        let Err(error) = load() else { panic!("a link to {target} was taken for no list") };
        assert_eq!(error.kind(), ErrorKind::Certificate);
        assert!(error.to_string().contains("ca-crl.pem: "), "{error}");
        assert!(names().and_then(|files| config.reload(&files)).is_err(), "{target}");
        assert!(!connects(), "{target}");
    }
    // A list that was in use stays required. A directory that never had one goes without.
    std::fs::remove_file(&list).unwrap();
    let error = names().and_then(|files| config.reload(&files)).unwrap_err().to_string();
    assert!(error.contains("ca-crl.pem: the list of revoked certificates is gone"), "{error}");
    assert!(!connects());
    assert_eq!(names().unwrap(), without);
    load().unwrap().reload(&without).unwrap();
    // A name that is below no directory is an error, too.
    let error = TlsFiles::in_directory(&kept, true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Certificate);
}

#[test]
fn a_list_that_gets_too_old_lets_nobody_in() {
    let certificates = Certificates::new();
    let directory = certificates.0.path();
    let in_seconds = format!(" -crl_lastupdate 20240101000000Z -crl_nextupdate {}", moment_in(15));
    revoke_until(directory, None, &in_seconds);
    let tls = TlsConfig::load(&TlsFiles::in_directory(directory, true).unwrap()).unwrap();
    let served =
        Served::unix(ServerConfig { tls: TlsMode::Required(tls), ..config() }, MemoryDisk::default());
    let connects = || certificates.secure(served.client(), true).go("disk").is_ok();
    let turned_away = underseal_testing::within(underseal_testing::PATIENCE, || !connects());
    assert!(turned_away);
}

/// Returns the time `seconds` from now, in openssl's form.
fn moment_in(seconds: u32) -> String {
    run("date", &["-u", "-d", &format!("+{seconds} seconds"), "+%Y%m%d%H%M%SZ"]).trim().to_owned()
}

/// Revokes the client's certificate: makes `ca-crl.pem`.
fn revoke_client(directory: &Path) {
    revoke_client_until(directory, "");
}

fn revoke_client_until(directory: &Path, until: &str) {
    revoke_until(directory, Some("client-cert.pem"), until);
}

/// Makes `ca-crl.pem`, with a certificate or none.
fn revoke_until(directory: &Path, revoked: Option<&str>, until: &str) {
    std::fs::write(directory.join("index"), "").unwrap();
    std::fs::write(directory.join("crlnumber"), "01\n").unwrap();
    std::fs::write(
        directory.join("ca.conf"),
        "[ca]\ndefault_ca=d\n[d]\ndatabase=index\ncrlnumber=crlnumber\ndefault_md=sha256\ndefault_crl_days=2\n",
    )
    .unwrap();
    let revoke = revoked.map(|certificate| format!("-revoke {certificate}"));
    for arguments in revoke.into_iter().chain([format!("-gencrl -out ca-crl.pem{until}")]) {
        let ca = "openssl ca -config ca.conf -cert ca-cert.pem -keyfile ca-key.pem";
        run("sh", &["-c", &format!("cd '{}' && {ca} {arguments}", directory.display())]);
    }
}

/// A verifier that accepts any server.
#[derive(Debug)]
struct Trusting;

impl rustls::client::danger::ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
