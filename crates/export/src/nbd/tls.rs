//! The server's side of TLS: certificates from files, and the handshake after STARTTLS.
//!
//! File names in a directory are those that qemu and nbdkit use: `server-cert.pem`,
//! `server-key.pem`, and for verifying clients `ca-cert.pem` and, if it exists, `ca-crl.pem`.

use std::{
    fmt,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Instant,
};

use rustls::{
    RootCertStore, ServerConfig, ServerConnection,
    crypto::ring,
    pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
};

use super::{TlsUse, crl};
use crate::net::{Deadlined, Socket};
use crate::{Error, ErrorKind, Result};

/// The paths of the certificates and keys (PEM).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, with the chain above it.
    pub certificate: PathBuf,
    /// The server's private key.
    pub key: PathBuf,
    /// If given, a client must present a certificate that one of these signed.
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked client certificates, one for every CA that signs for clients: clients of a
    /// CA without a list are refused. An expired list is refused at start; when a list expires
    /// later, all clients are refused.
    pub client_crl: Option<PathBuf>,
}

impl TlsFiles {
    /// The usual file names in a directory. With `verify_clients`, clients need a certificate that
    /// `ca-cert.pem` signed. Only a directory without the name `ca-crl.pem` has no list: a link
    /// whose target cannot be reached names a list that cannot be read.
    ///
    /// # Errors
    /// [`ErrorKind::Certificate`] when the directory does not reveal whether it has a list.
    pub fn in_directory(directory: &Path, verify_clients: bool) -> Result<Self> {
        let crl = directory.join("ca-crl.pem");
        let has_list = match crl.symlink_metadata() {
            _ if !verify_clients => false,
            Ok(_) => true,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(e) => return Err(unusable(&crl, "cannot be looked up", e)),
        };
        Ok(Self {
            certificate: directory.join("server-cert.pem"),
            key: directory.join("server-key.pem"),
            client_ca: verify_clients.then(|| directory.join("ca-cert.pem")),
            client_crl: has_list.then_some(crl),
        })
    }
}

/// Certificates, ready to use. Clones share them, and [`reload`](Self::reload) replaces them for
/// all clones.
#[derive(Clone)]
pub struct TlsConfig(Arc<RwLock<LoadedFiles>>);

/// The contents of the files, and the list of revoked certificates among them.
struct LoadedFiles {
    config: Arc<ServerConfig>,
    client_crl: Option<PathBuf>,
}

impl TlsConfig {
    /// Reads the files. TLS 1.2 and 1.3, without resumption: NBD connections are few and long.
    ///
    /// # Errors
    /// [`ErrorKind::Certificate`] names the file.
    pub fn load(files: &TlsFiles) -> Result<Self> {
        Ok(Self(Arc::new(RwLock::new(Self::read(files)?))))
    }

    /// Reads the files again: new connections use the new contents. After an error the earlier
    /// contents stay in use. A list of revoked certificates stays required: a file that is being
    /// replaced must not admit the clients that it revokes.
    ///
    /// # Errors
    /// `Certificate`, as [`load`](Self::load), and when clients were checked against a list and
    /// `files` has none.
    pub fn reload(&self, files: &TlsFiles) -> Result<()> {
        let read = Self::read(files)?;
        let mut present = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let (Some(list), None, Some(_)) = (&present.client_crl, &files.client_crl, &files.client_ca) {
            let context = format!(
                "{}: the list of revoked certificates is gone: put it back, replace it by a list that revokes none, or start \
                 the server again to go without",
                list.display()
            );
            return Err(Error::new(ErrorKind::Certificate, context));
        }
        *present = read;
        Ok(())
    }

    fn read(files: &TlsFiles) -> Result<LoadedFiles> {
        let chain = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|source| unusable(&files.key, "is no private key in PEM", source))?;
        warn_of_readable_key(&files.key);
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|source| {
                Error::new(ErrorKind::Certificate, "TLS has no usable version").with_source(source)
            })?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => builder.with_client_cert_verifier(client_verifier(ca, files.client_crl.as_deref())?),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|source| {
            let context =
                format!("{} and {} do not fit together", files.certificate.display(), files.key.display());
            Error::new(ErrorKind::Certificate, context).with_source(source)
        })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(LoadedFiles { config: Arc::new(config), client_crl: files.client_crl.clone() })
    }

    /// Runs the TLS handshake on a socket, within a deadline.
    pub(crate) fn accept(&self, socket: &Socket, deadline: Instant) -> Result<ServerConnection> {
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::InvalidData => {
                Error::new(ErrorKind::Protocol, "the TLS handshake failed").with_source(source)
            }
            _ => source.into(),
        };
        let config = self.0.read().unwrap_or_else(PoisonError::into_inner).config.clone();
        let mut session =
            ServerConnection::new(config).map_err(|error| failed(std::io::Error::other(error)))?;
        while session.is_handshaking() {
            let (read, _) = session.complete_io(&mut Deadlined { socket, deadline }).map_err(failed)?;
            if read == 0 && session.is_handshaking() {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
        }
        Ok(session)
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConfig([redacted])")
    }
}

/// How connections use TLS.
#[derive(Debug, Clone, Default)]
pub enum TlsMode {
    /// Never.
    #[default]
    Off,
    /// If the client asks for it.
    Offered(TlsConfig),
    /// Always: other options are refused before STARTTLS.
    Required(TlsConfig),
}

impl TlsMode {
    pub(crate) fn policy(&self) -> TlsUse {
        match self {
            Self::Off => TlsUse::Off,
            Self::Offered(_) => TlsUse::Offered,
            Self::Required(_) => TlsUse::Required,
        }
    }

    pub(crate) fn config(&self) -> Option<&TlsConfig> {
        match self {
            Self::Off => None,
            Self::Offered(config) | Self::Required(config) => Some(config),
        }
    }
}

fn client_verifier(
    ca: &Path,
    list: Option<&Path>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots
            .add(certificate)
            .map_err(|source| unusable(ca, "holds a certificate that cannot sign", source))?;
    }
    let mut verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()));
    if let Some(path) = list {
        let lists = read_all::<CertificateRevocationListDer<'static>>(path, "list of revoked certificates")?;
        let too_old = lists.iter().filter_map(|list| crl::next_update(list)).find(crl::Moment::is_past);
        if let Some(due) = too_old {
            let context = format!(
                "{}: the list of revoked certificates does not hold since {}: make a new one, or remove the file and start the server to go without",
                path.display(),
                due.shown
            );
            return Err(Error::new(ErrorKind::Certificate, context));
        }
        // A list that expires while it is in use admits no client.
        verifier =
            verifier.with_crls(lists).only_check_end_entity_revocation().enforce_revocation_expiration();
    }
    verifier.build().map_err(|source| unusable(list.unwrap_or(ca), "cannot verify clients", source))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    read_all(path, "certificate")
}

/// Reads all items of one kind in a file. A file without any is an error: an empty file must not
/// disable a check.
fn read_all<T: PemObject>(path: &Path, kind: &str) -> Result<Vec<T>> {
    let found: Vec<T> = T::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| unusable(path, &format!("no {kind} in PEM can be read"), source))?;
    if found.is_empty() {
        return Err(Error::new(
            ErrorKind::Certificate,
            format!("{}: holds no {kind} in PEM", path.display()),
        ));
    }
    Ok(found)
}

/// Warns of a private key that other users can read, as nbdkit and sshd do. It is only a warning:
/// the key's directory may be closed to them.
fn warn_of_readable_key(path: &Path) {
    let readable = std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o077 != 0);
    if readable {
        log::warn!("{}: the private key is open to other users; chmod 600 it", path.display());
    }
}

fn unusable(path: &Path, why: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Certificate, format!("{}: {why}", path.display())).with_source(source)
}
