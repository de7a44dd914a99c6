//! The order of volumes that lie over each other: what one volume serves may be the device of
//! another one. The lower is opened first and closed last, since the upper one writes as it closes.

use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use underseal_device::nbd::NbdAddress;
use underseal_export::control::Directory;
use underseal_export::net::Endpoint;

use super::Entry;
use crate::lower::{Remote, address};

/// Volumes, and which of them each lies on.
pub(crate) struct Layers {
    below: Vec<Vec<Below>>,
}

/// A volume that another one lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Below {
    /// The position among the volumes.
    pub(crate) lower: usize,
    /// True when the upper one reaches it by the socket that systemd listens at.
    pub(crate) by_systemd: bool,
}

impl Layers {
    pub(crate) fn of(volumes: &[&Entry]) -> Self {
        let served: Vec<Served> = volumes.iter().map(|entry| Served::of(entry)).collect();
        let below = |(upper, entry): (usize, &&Entry)| {
            let needs = Needs::of(entry);
            let others = served.iter().enumerate().filter(|(lower, _)| *lower != upper);
            others
                .filter_map(|(lower, served)| Some(Below { lower, by_systemd: needs.from(served)? }))
                .collect()
        };
        Self { below: volumes.iter().enumerate().map(below).collect() }
    }

    /// Returns the volumes that a volume lies on.
    pub(crate) fn below(&self, upper: usize) -> &[Below] {
        &self.below[upper]
    }

    /// Returns for each volume those that are opened before it.
    pub(crate) fn lower(&self) -> Vec<Vec<usize>> {
        self.below.iter().map(|below| below.iter().map(|below| below.lower).collect()).collect()
    }

    /// Returns for each volume those that are closed before it.
    pub(crate) fn upper(&self) -> Vec<Vec<usize>> {
        let mut upper = vec![Vec::new(); self.below.len()];
        for (volume, below) in self.below.iter().enumerate() {
            below.iter().for_each(|below| upper[below.lower].push(volume));
        }
        upper
    }
}

/// The requirements of a volume before it is opened. Paths are compared as they are written: to
/// look one up may wait for a server that hangs.
struct Needs {
    servers: Vec<NbdAddress>,
    files: Vec<PathBuf>,
}

impl Needs {
    fn of(entry: &Entry) -> Self {
        let server = |name: &Path| match address(name) {
            Ok(Some(Remote::Nbd(address))) => Some(address),
            _ => None,
        };
        Self {
            servers: entry.images().filter_map(server).collect(),
            files: entry.files().map(plain).collect(),
        }
    }

    /// Returns a value when the other volume serves a part of it: true by systemd's socket.
    fn from(&self, other: &Served) -> Option<bool> {
        let reaches = |endpoint: &Endpoint| self.servers.iter().any(|server| is_at(server, endpoint));
        if other.nodes.iter().any(|node| self.files.iter().any(|file| file.starts_with(node)))
            || other.endpoints.iter().any(reaches)
        {
            return Some(false);
        }
        other.by_systemd.as_ref().is_some_and(reaches).then_some(true)
    }
}

/// The places where a volume's plain bytes are.
struct Served {
    endpoints: Vec<Endpoint>,
    /// The socket that systemd listens at for the volume.
    by_systemd: Option<Endpoint>,
    nodes: Vec<PathBuf>,
}

impl Served {
    fn of(entry: &Entry) -> Self {
        let own = || Endpoint::Unix(plain(&Directory::of_user().socket_for_clients(&entry.name)));
        let has = |option: &str| entry.options.of_open.iter().any(|(name, _)| *name == option);
        let values = entry.options.of_open.iter().filter(|(name, _)| *name == "nbd");
        let named = values.filter_map(|(_, place)| match place.as_deref() {
            None => Some(own()),
            Some("systemd") => None,
            Some(place) => match place.parse().ok()? {
                Endpoint::Unix(path) => Some(Endpoint::Unix(plain(&path))),
                tcp @ Endpoint::Tcp { .. } => Some(tcp),
            },
        });
        let endpoints = named.chain(entry.options.own_socket.then(own)).collect();
        // The path is that of the package's unit of sockets.
        let of_unit = || Endpoint::Unix(format!("/run/underseal/{}.nbd", entry.name).into());
        let number = entry.value("ublk-id").map(|number| format!("/dev/ublkb{number}").into());
        let link = has("ublk").then(|| Path::new("/dev/underseal").join(entry.name.as_str()));
        let nodes = entry.mount_point().map(plain).into_iter().chain(number).chain(link).collect();
        Self { endpoints, by_systemd: entry.waits_for_clients().then(of_unit), nodes }
    }
}

/// Returns a path without detours that its text shows.
pub(crate) fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    match plain.strip_prefix("/var/run") {
        Ok(below) => Path::new("/run").join(below),
        Err(_) => plain,
    }
}

/// Returns true when a client of the address reaches the endpoint, as far as their texts say: this
/// host's own names and addresses are taken for one.
fn is_at(client: &NbdAddress, endpoint: &Endpoint) -> bool {
    let is_here = |host: &str| match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback() || address.is_unspecified(),
        Err(_) => matches!(host, "localhost" | "ip6-localhost" | "ip6-loopback"),
    };
    match endpoint {
        Endpoint::Unix(path) => client.socket().is_some_and(|socket| plain(socket) == *path),
        Endpoint::Tcp { host, port } => client.host_and_port().is_some_and(|(theirs, theirs_port)| {
            *port == theirs_port && (host == theirs || is_here(host) && is_here(theirs))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Table;
    use super::*;

    /// Returns what each volume lies on, as `upper:lower`; `!` stands before systemd's socket.
    fn pairs(list: &str) -> String {
        let table = Table::parse(Path::new("/list"), list);
        assert!(table.wrong.is_empty(), "{:?}", table.wrong);
        let all: Vec<&Entry> = table.volumes.iter().collect();
        let layers = Layers::of(&all);
        let pairs = all.iter().enumerate().flat_map(|(upper, entry)| {
            let all = &all;
            layers.below(upper).iter().map(move |below| {
                let sign = if below.by_systemd { "!" } else { "" };
                format!("{}:{sign}{}", entry.name, all[below.lower].name)
            })
        });
        pairs.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn volumes_lie_on_what_others_serve() {
        assert_eq!(pairs(""), "");
        assert_eq!(pairs("a /a.img /k\nb /b.img /k"), "");
        // Sockets, ports, mounts, devices; the key on another one's mount.
        let list = "top nbd+unix:///?socket=/var/run/x/../m.sock /k\n\
                    middle nbd://127.0.0.2:7000/x /k nbd=/run/m.sock\n\
                    low /low.img /k nbd=tcp:localhost:7000\n\
                    beside /b.img /k fuse=/mnt/b\n\
                    over /b2.img /mnt/b/key\n\
                    other nbd://far:7000/x /k\n\
                    key /k.img /k ublk,ublk-id=3\n\
                    node /dev/ublkb3 /k\n\
                    link /dev/underseal/key /k";
        assert_eq!(pairs(list), "top:middle middle:low over:beside node:key link:key");
        let socket = Directory::of_user().socket_for_clients(&"own".parse().unwrap());
        let list = format!("over nbd+unix:///?socket={} /k\nown /a.img /k nbd", socket.display());
        assert_eq!(pairs(&list), "over:own");
        let list = "low /l.img /k nbd=systemd,nbd=/x\na nbd+unix:///?socket=/x /k\n\
                    b nbd+unix:///?socket=/run/underseal/low.nbd /k";
        assert_eq!(pairs(list), "a:low b:!low");
        // A volume does not lie on itself, and rings are not looked for here.
        let list = "a nbd+unix:///?socket=/a /k nbd=/a\n\
                    b nbd+unix:///?socket=/c /k nbd=/b\nc nbd+unix:///?socket=/b /k nbd=/c";
        assert_eq!(pairs(list), "b:c c:b");
    }
}
