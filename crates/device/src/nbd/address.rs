//! The address of a server and export, as an NBD URI (doc/uri.md of the NBD project).
//! ```text
//!   nbd://host[:port]/export        nbd+unix:///export?socket=/path
//!                      Underseal's parameters: reconnect-delay=SECONDS  unflushed=fail|trust
//! ```

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use underseal_nbd_protocol::{MAX_STRING, PORT};

use crate::{Error, ErrorKind, Result};

/// The default time for which requests wait for a lost server.
const RECONNECT_DELAY: Duration = Duration::from_secs(30);
/// The longest accepted delay: a longer one is a mistake.
const LONGEST_DELAY: u64 = 24 * 3600;

/// An export of a server, and the handling of the server's loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdAddress {
    pub(super) place: ServerAddress,
    /// The export's name; empty for the server's default.
    pub(super) export: String,
    /// The time for which requests wait for a lost server. Zero: there is no second connection.
    pub(super) reconnect_delay: Duration,
    /// The operator vouches that a server which ends loses no acknowledged writes: flushes after
    /// its return succeed.
    pub(super) trusts_unflushed: bool,
    text: String,
}

/// The server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerAddress {
    Unix(PathBuf),
    /// The host is a name or an address, without brackets.
    Tcp {
        host: String,
        port: u16,
    },
}

impl NbdAddress {
    /// True when the text is a URI and not a path: it begins with a scheme of NBD, supported here
    /// or not.
    pub fn is_uri(text: &str) -> bool {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|s| matches!(s.split('+').next(), Some("nbd" | "nbds")))
    }

    /// Returns the path of the server's Unix socket; `None` for a server on a TCP port.
    pub fn socket(&self) -> Option<&Path> {
        match &self.place {
            ServerAddress::Unix(path) => Some(path),
            ServerAddress::Tcp { .. } => None,
        }
    }

    /// Returns the server's host, a name or an address without brackets, and its TCP port; `None`
    /// for a server on a Unix socket.
    pub fn host_and_port(&self) -> Option<(&str, u16)> {
        match &self.place {
            ServerAddress::Unix(_) => None,
            ServerAddress::Tcp { host, port } => Some((host, *port)),
        }
    }

    /// Returns texts of which another address of the same export has at least one: the socket's
    /// real path or each address of the host, with the export's name. Empty when the host has none.
    pub(super) fn identities(&self) -> Vec<String> {
        let places = match &self.place {
            ServerAddress::Unix(path) => {
                let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                vec![format!("unix:{}", path.display())]
            }
            tcp @ ServerAddress::Tcp { .. } => {
                tcp.lookup().unwrap_or_default().iter().map(|at| format!("tcp:{at}")).collect()
            }
        };
        places.into_iter().map(|place| format!("{place}/{}", self.export)).collect()
    }
}

impl ServerAddress {
    /// Looks the host's name up; returns no address for a Unix socket.
    pub(super) fn lookup(&self) -> std::io::Result<Vec<SocketAddr>> {
        match self {
            Self::Unix(_) => Ok(Vec::new()),
            Self::Tcp { host, port } => Ok((host.as_str(), *port).to_socket_addrs()?.collect()),
        }
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for NbdAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::Open, format!("{text}: {why}"));
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| bad("an NBD URI begins with nbd:// or nbd+unix://"))?;
        let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let decode = |part: &str| percent_decoded(part).ok_or_else(|| bad("a % stands before two digits"));
        let as_text = |bytes| String::from_utf8(bytes).map_err(|_| bad("the export's name is not UTF-8"));
        let export = as_text(decode(path)?)?;
        if export.len() > MAX_STRING {
            return Err(bad("the export's name is longer than 4096 bytes"));
        }

        let (mut socket, mut delay, mut trusts) = (None, RECONNECT_DELAY, false);
        for parameter in query.split(['&', ';']).filter(|p| !p.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "socket" => socket = Some(decode(value)?),
                "reconnect-delay" => {
                    let seconds = value.parse().ok().filter(|&s| s <= LONGEST_DELAY);
                    let seconds =
                        seconds.ok_or_else(|| bad("reconnect-delay is a number of seconds, up to a day"))?;
                    delay = Duration::from_secs(seconds);
                }
                "unflushed" => {
                    trusts = match value {
                        "trust" => true,
                        "fail" => false,
                        _ => return Err(bad("unflushed is fail or trust")),
                    }
                }
                // doc/uri.md demands it: unknown parameters are no reason to refuse.
                name => log::warn!("{text}: unknown parameter {name}"),
            }
        }

        let place = match scheme {
            "nbd" => {
                if socket.is_some() {
                    return Err(bad("a socket goes with nbd+unix://"));
                }
                tcp(authority).map_err(bad)?
            }
            "nbd+unix" => match socket {
                _ if !authority.is_empty() => {
                    return Err(bad("write nbd+unix:///export, with three slashes"));
                }
                Some(path) if !path.is_empty() && !path.contains(&0) => {
                    use std::os::unix::ffi::OsStringExt;
                    // Later connections are made from another working directory.
                    let path = std::path::absolute(std::ffi::OsString::from_vec(path));
                    ServerAddress::Unix(
                        path.map_err(|e| bad("the current directory is gone").with_source(e))?,
                    )
                }
                _ => return Err(bad("the socket is missing; write nbd+unix:///export?socket=/path")),
            },
            "nbds" | "nbds+unix" => {
                let why = "TLS to a lower device is not spoken here; use a Unix socket, an SSH tunnel or nbdkit's nbd \
                           plugin in between (the server sees ciphertext only, but also who asks for what)";
                return Err(bad(why));
            }
            _ => return Err(bad("the schemes are nbd:// and nbd+unix://")),
        };
        Ok(Self { place, export, reconnect_delay: delay, trusts_unflushed: trusts, text: text.into() })
    }
}

fn tcp(authority: &str) -> std::result::Result<ServerAddress, &'static str> {
    if authority.contains('@') {
        return Err("NBD has no user names");
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("a bracket is not closed")?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    if host.is_empty() {
        return Err("the host is missing; write nbd://host/export");
    }
    let port = if port.is_empty() { Ok(PORT) } else { port.parse() };
    Ok(ServerAddress::Tcp { host: host.into(), port: port.map_err(|_| "the port is a number up to 65535")? })
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |b: &u8| char::from(*b).to_digit(16);
        let value = digit(rest.first()?)? << 4 | digit(rest.get(1)?)?;
        bytes.push(u8::try_from(value).ok()?);
        rest = &rest[2..];
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read() {
        let tcp = |host: &str, port| ServerAddress::Tcp { host: host.into(), port };
        let unix = |path: &str| ServerAddress::Unix(std::env::current_dir().unwrap().join(path));
        let table = [
            ("nbd://server", tcp("server", 10809), ""),
            ("nbd://server/", tcp("server", 10809), ""),
            ("nbd://server:1/a%20b/c", tcp("server", 1), "a b/c"),
            ("nbd://[::1]:77/x", tcp("::1", 77), "x"),
            ("nbd://[::1]/x", tcp("::1", 10809), "x"),
            ("nbd+unix:///?socket=/run/a.sock", unix("/run/a.sock"), ""),
            ("nbd+unix:///disk?socket=%2frun%2Fa+b", unix("/run/a+b"), "disk"),
            ("nbd+unix://?socket=rel", unix("rel"), ""),
            ("nbd+unix:///d?tls-type=x&socket=s#part", unix("s"), "d"),
        ];
        for (text, place, export) in table {
            let address: NbdAddress = text.parse().unwrap();
            assert_eq!((address.place.clone(), address.export.as_str()), (place, export), "{text}");
            assert_eq!(address.to_string(), text);
            assert_eq!((address.reconnect_delay, address.trusts_unflushed), (RECONNECT_DELAY, false));
        }
        let address: NbdAddress = "nbd://a?reconnect-delay=0&unflushed=trust".parse().unwrap();
        assert_eq!((address.reconnect_delay, address.trusts_unflushed), (Duration::ZERO, true));
    }

    #[test]
    fn what_is_no_uri_of_ours_is_refused_with_a_remedy() {
        let table = [
            ("disk.img", "begins with"),
            ("http://a/b", "schemes"),
            ("nbds://a/b", "TLS"),
            ("nbds+unix:///b?socket=/a", "TLS"),
            ("nbd+vsock://1/b", "schemes"),
            ("nbd:///b", "host is missing"),
            ("nbd://a:b:c/", "65535"),
            ("nbd://a:65536", "65535"),
            ("nbd://me@a", "user"),
            ("nbd://[::1", "bracket"),
            ("nbd://a/?socket=/b", "nbd+unix"),
            ("nbd+unix:///b", "socket is missing"),
            ("nbd+unix:///b?socket=", "socket is missing"),
            ("nbd+unix:///b?socket=a%00", "socket is missing"),
            ("nbd+unix://b?socket=/a", "three slashes"),
            ("nbd://a/%zz", "two digits"),
            ("nbd://a/%4", "two digits"),
            ("nbd://a/%ff", "UTF-8"),
            ("nbd://a?reconnect-delay=x", "seconds"),
            ("nbd://a?reconnect-delay=86401", "a day"),
            ("nbd://a?unflushed=maybe", "fail or trust"),
        ];
        for (text, part) in table {
            let error = text.parse::<NbdAddress>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn paths_are_not_uris() {
        for path in ["disk.img", "/dev/nbd0", "nbd", "./nbd:/x", "http://x", "nbdx://"] {
            assert!(!NbdAddress::is_uri(path), "{path}");
        }
        for uri in ["nbd://x", "nbds://x", "nbd+unix:///x", "nbd+vsock://1"] {
            assert!(NbdAddress::is_uri(uri), "{uri}");
        }
    }
}
