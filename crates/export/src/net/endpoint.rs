//! The address that a server listens on, as text.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::{Error, ErrorKind, Result};

/// `unix:PATH` or `tcp:HOST:PORT` (an IPv6 address in brackets).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// A TCP port of every address the host's name has.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port; 0 lets the kernel choose.
        port: u16,
    },
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::BadEndpoint, format!("{text:?}: {why}"));
        match text.split_once(':') {
            Some(("unix", "")) => Err(bad("the socket's path is missing; write unix:PATH")),
            Some(("unix", path)) if path.contains('\0') => Err(bad("a path holds no NUL")),
            // An absolute path, for readers in other directories, and for a server that becomes a
            // daemon.
            Some(("unix", path)) => std::path::absolute(path)
                .map(Self::Unix)
                .map_err(|error| bad("the current directory is gone").with_source(error)),
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').ok_or_else(|| {
                    bad("the port is missing; write tcp:HOST:PORT (NBD's own port is 10809)")
                })?;
                let port = port.parse::<u16>().map_err(|error| {
                    bad("the port is a number up to 65535; NBD's own is 10809").with_source(error)
                })?;
                let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                    Some(address) => address,
                    None if host.contains(':') => {
                        return Err(bad("an IPv6 address stands in brackets: tcp:[::1]:10809"));
                    }
                    None => host,
                };
                if host.is_empty() {
                    return Err(bad("the host is missing; tcp:localhost:PORT serves this machine only"));
                }
                Ok(Self::Tcp { host: host.into(), port })
            }
            _ => Err(bad("an endpoint is unix:PATH or tcp:HOST:PORT")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_text_reads_and_prints_back() {
        let tcp = |host: &str, port| Endpoint::Tcp { host: host.into(), port };
        let table = [
            ("unix:/run/disk.sock", Endpoint::Unix("/run/disk.sock".into())),
            ("unix:/a:b", Endpoint::Unix("/a:b".into())),
            ("tcp:localhost:10809", tcp("localhost", 10809)),
            ("tcp:0.0.0.0:0", tcp("0.0.0.0", 0)),
            ("tcp:[::1]:10809", tcp("::1", 10809)),
        ];
        for (text, endpoint) in table {
            assert_eq!(text.parse::<Endpoint>().unwrap(), endpoint);
            assert_eq!(endpoint.to_string(), text);
        }
    }

    #[test]
    fn a_relative_path_is_that_of_the_current_directory() {
        let here = std::env::current_dir().unwrap();
        assert_eq!("unix:a:b".parse::<Endpoint>().unwrap(), Endpoint::Unix(here.join("a:b")));
    }

    #[test]
    fn bad_text_is_refused_with_a_remedy() {
        let table = [
            ("", "unix:PATH or tcp"),
            ("/run/disk.sock", "unix:PATH or tcp"),
            ("udp:localhost:1", "unix:PATH or tcp"),
            ("unix:", "write unix:PATH"),
            ("unix:a\0b", "NUL"),
            ("tcp:localhost", "10809"),
            ("tcp:localhost:", "10809"),
            ("tcp:localhost:65536", "65535"),
            ("tcp::10809", "the host is missing"),
            ("tcp:[]:10809", "the host is missing"),
            ("tcp:::1:10809", "brackets"),
            ("tcp:[::1:10809", "brackets"),
        ];
        for (text, remedy) in table {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadEndpoint);
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
