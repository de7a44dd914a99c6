//! The order of volumes that lie over each other: what one volume serves may be the device of
//! another one. The lower is opened first and closed last, since the upper one writes as it closes.

use std::path::{Path, PathBuf};

use underseal_device::nbd::NbdAddress;
use underseal_export::control::Directory;
use underseal_export::net::Endpoint;

use super::Entry;
use crate::lower::{Remote, address};

/// Returns the volumes in layers: each volume lies on volumes of earlier layers, or on none. In a
/// ring of volumes, which cannot be opened anyway, the order is any.
pub(crate) fn layers<'t>(volumes: &[&'t Entry]) -> Vec<Vec<&'t Entry>> {
    let below: Vec<Vec<usize>> = volumes
        .iter()
        .map(|upper| {
            let lies_on = Below::of(upper);
            (0..volumes.len()).filter(|&lower| lies_on.is(volumes[lower])).collect()
        })
        .collect();
    let mut layer = vec![0; volumes.len()];
    // The longest chain has as many links as there are volumes.
    for _ in 1..volumes.len() {
        for upper in 0..volumes.len() {
            let least = below[upper].iter().map(|&lower| layer[lower] + 1).max().unwrap_or(0);
            layer[upper] = least.min(volumes.len() - 1);
        }
    }
    let count = layer.iter().max().map_or(0, |last| last + 1);
    let of = |number| {
        let pairs = volumes.iter().zip(&layer).filter(move |(_, layer)| **layer == number);
        pairs.map(|(entry, _)| *entry).collect::<Vec<_>>()
    };
    (0..count).map(of).filter(|layer: &Vec<_>| !layer.is_empty()).collect()
}

/// Returns those of the volumes that the entry lies on.
pub(crate) fn below<'t>(entry: &Entry, volumes: &'t [Entry]) -> impl Iterator<Item = &'t Entry> {
    let below = Below::of(entry);
    let name = entry.name.clone();
    volumes.iter().filter(move |lower| lower.name != name && below.is(lower))
}

/// The requirements of a volume before it is opened. Paths are compared as they are written: to
/// look one up may wait for a server that hangs.
struct Below {
    server: Option<NbdAddress>,
    files: Vec<PathBuf>,
}

impl Below {
    fn of(entry: &Entry) -> Self {
        let server = match address(&entry.device) {
            Ok(Some(Remote::Nbd(address))) => Some(address),
            _ => None,
        };
        Self { server, files: entry.files().map(|path| path.components().collect()).collect() }
    }

    /// Returns true when another volume serves a part of it.
    fn is(&self, other: &Entry) -> bool {
        let is_server = |server| other.endpoints().iter().any(|endpoint| is_at(server, endpoint));
        self.server.as_ref().is_some_and(is_server)
            || other.nodes().iter().any(|node| self.files.iter().any(|file| file.starts_with(node)))
    }
}

impl Entry {
    /// Returns where the volume is served over NBD.
    fn endpoints(&self) -> Vec<Endpoint> {
        let own = || Endpoint::Unix(Directory::of_user().socket_for_clients(&self.name));
        // The path of the package's unit of sockets.
        let of_systemd = || Endpoint::Unix(format!("/run/underseal/{}.nbd", self.name).into());
        let values = self.options.of_open.iter().filter(|(name, _)| *name == "nbd");
        let named = values.filter_map(|(_, place)| match place.as_deref() {
            None => Some(own()),
            Some("systemd") => Some(of_systemd()),
            Some(place) => place.parse().ok(),
        });
        named.chain(self.options.own_socket.then(own)).collect()
    }

    /// Returns the paths that lead to the volume's plain bytes.
    fn nodes(&self) -> Vec<PathBuf> {
        let is_ublk = self.options.of_open.iter().any(|(name, _)| *name == "ublk");
        let number = self.value("ublk-id").map(|number| format!("/dev/ublkb{number}").into());
        let link = is_ublk.then(|| Path::new("/dev/underseal").join(self.name.as_str()));
        self.mount_point().map(Path::to_owned).into_iter().chain(number).chain(link).collect()
    }
}

/// Returns true when a client of the address reaches the endpoint, as far as their texts say: of a
/// server that listens on several addresses this host's own names are taken for one.
fn is_at(client: &NbdAddress, endpoint: &Endpoint) -> bool {
    let is_here = |host: &str| matches!(host, "localhost" | "127.0.0.1" | "::1" | "0.0.0.0" | "::");
    match endpoint {
        Endpoint::Unix(path) => client.socket() == Some(path),
        Endpoint::Tcp { host, port } => client.host_and_port().is_some_and(|(theirs, theirs_port)| {
            *port == theirs_port && (host == theirs || is_here(host) && is_here(theirs))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Table;
    use super::*;

    /// Returns the names in each layer.
    fn names(list: &str) -> Vec<String> {
        let table = Table::parse(Path::new("/list"), list);
        assert!(table.wrong.is_empty(), "{:?}", table.wrong);
        let all: Vec<&Entry> = table.volumes.iter().collect();
        let names =
            |layer: &Vec<&Entry>| layer.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(" ");
        layers(&all).iter().map(names).collect()
    }

    #[test]
    fn volumes_over_others_come_after_them() {
        assert_eq!(names(""), [] as [&str; 0]);
        assert_eq!(names("a /a.img /k\nb /b.img /k"), ["a b"]);
        // Sockets, the default one, ports, mounts, folders of keys.
        let list = "top nbd+unix:///?socket=/run/m.sock /k\n\
                    middle nbd://127.0.0.1:7000/x /k nbd=/run/m.sock\n\
                    low /low.img /k nbd=tcp:localhost:7000\n\
                    beside /b.img /k fuse=/mnt/b\n\
                    over /mnt/b /k\n\
                    other nbd://far:7000/x /k\n\
                    key /k.img /k ublk,ublk-id=3\n\
                    node /dev/ublkb3 /k\n\
                    link /dev/underseal/key /k";
        assert_eq!(names(list), ["low beside other key", "middle over node link", "top"]);
        let socket = Directory::of_user().socket_for_clients(&"own".parse().unwrap());
        let list = format!("over nbd+unix:///?socket={} /k\nown /a.img /k nbd", socket.display());
        assert_eq!(names(&list), ["own", "over"]);
    }

    #[test]
    fn a_ring_of_volumes_has_an_order_all_the_same() {
        let list = "a nbd+unix:///?socket=/b /k nbd=/a\nb nbd+unix:///?socket=/a /k nbd=/b\nc /c.img /k";
        let layers = names(list);
        let all: usize = layers.iter().map(|layer| layer.split(' ').count()).sum();
        assert_eq!((all, layers[0].as_str()), (3, "c"));
    }
}
