//! Addresses for clients: NBD URIs (doc/uri.md of the NBD project), and paths of mounts and
//! devices.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use underseal_export::net::{Endpoint, Listener};

use crate::cli::{Nbd, ServeArgs};
use crate::output::printable;

/// Returns the lines that report the volume's addresses, and suggest a client command.
pub(super) fn ready_text(name: &Path, uris: &[String], paths: &[String]) -> String {
    let hint = match (uris.first(), paths.first()) {
        (Some(uri), _) => match uri.strip_prefix("vhost-user:") {
            Some(path) => format!(
                "qemu-system-x86_64 ... -chardev 'socket,id=disk,path={path}' -device vhost-user-blk-pci,chardev=disk \
                 (with memory that has share=on)"
            ),
            None => format!("nbdinfo '{uri}'"),
        },
        (None, Some(path)) if path.starts_with("/dev/") => format!("lsblk -f {path}"),
        (None, path) => format!("ls -l '{}'", path.unwrap_or(&name.display().to_string())),
    };
    let places: Vec<_> = uris.iter().chain(paths).map(String::as_str).collect();
    // Names may come from an attacker: each of the two lines must stay one line.
    let is_open = format!("{} is open: {}", name.display(), places.join(" "));
    format!("{}\ntry: {}\n", printable(&is_open), printable(&hint))
}

/// Where its file system is mounted.
pub(super) fn mounted_text(name: &Path, at: &str) -> String {
    format!("{}\n", printable(&format!("{} is open: its file system is mounted on {at}", name.display())))
}

/// Where the volume is served.
pub(super) fn uris(args: &ServeArgs, own: Option<&Path>, listeners: &[Listener]) -> Vec<String> {
    let secure = if args.tls_certificates.is_some() { "s" } else { "" };
    let name = percent(args.export_name.as_bytes(), "");
    let named = args.nbd.iter().filter_map(|nbd| match nbd {
        Nbd::At(Endpoint::Unix(path)) => Some(path.as_path()),
        _ => None,
    });
    let unix = named.chain(own).map(|path| percent(path.as_os_str().as_bytes(), "/"));
    // The port is the one that the kernel chose.
    let tcp = listeners.iter().filter_map(Listener::tcp_address);
    unix.map(|path| format!("nbd{secure}+unix:///{name}?socket={path}"))
        .chain(tcp.map(|address| format!("nbd{secure}://{address}/{name}")))
        .collect()
}

/// Percent-encodes all except alphanumerics, `-._~` (RFC 3986, 2.3) and the characters in
/// `allowed`.
fn percent(bytes: &[u8], allowed: &str) -> String {
    bytes.iter().fold(String::new(), |text, &byte| match char::from(byte) {
        c if c.is_ascii_alphanumeric() || "-._~".contains(c) || allowed.contains(c) => text + &c.to_string(),
        _ => text + &format!("%{byte:02X}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_no_line() {
        let path = String::from("/mnt/a\nb");
        let text = ready_text(Path::new("a\nis open: x\x1b[2J"), &[], &[path]);
        assert_eq!(text, "a?is open: x?[2J is open: /mnt/a?b\ntry: ls -l '/mnt/a?b'\n");
    }

    #[test]
    fn what_means_something_in_a_uri_is_encoded() {
        assert_eq!(percent(b"/run/a b&c.sock", "/"), "/run/a%20b%26c.sock");
        assert_eq!(percent("d\u{e9}/'".as_bytes(), ""), "d%C3%A9%2F%27");
    }
}
