//! Faults of the cluster: acknowledged and flushed writes survive, and waiting requests are
//! reported.

use std::time::Duration;
use std::{panic, thread};

use underseal_testing::skip;

use crate::rbd::cluster::Image;
use crate::rbd::own::{Cluster, DISKS, Network};
use crate::rbd::writer::Writer;
use crate::support::nbd::{Client, EIO};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, underseal};
use crate::support::{Scratch, Server, bytes, fails, run, seed};

/// All faults run on one cluster, since it takes a while to start.
#[test]
fn faults_of_a_cluster_of_its_own() {
    let faults = || {
        let network = Network::apart();
        let Some(cluster) = Cluster::start() else { return };
        daemons_die_amid_verified_writes(&cluster);
        match network {
            Ok(network) => a_network_that_is_cut_is_waited_for(&cluster, &network),
            Err(reason) => skip("a cluster that is cut off", &reason),
        }
        a_volume_that_cannot_be_closed_says_why(&cluster);
        a_full_cluster_is_waited_for(&cluster);
    };
    // A network is a thread's.
    if let Err(panic) = thread::spawn(faults).join() {
        panic::resume_unwind(panic);
    }
}

/// A volume that is served: its image's name is its own.
struct Served {
    scratch: Scratch,
    image: Image,
    volume: Volume,
}

impl Served {
    fn new(cluster: &Cluster) -> Self {
        let (scratch, image) = (Scratch::new(), cluster.image(40));
        let volume = image.formatted(&scratch, &[]);
        Self { scratch, image, volume }
    }

    /// The same with a limit on waiting.
    fn limited(&self, seconds: u32) -> Volume {
        self.image.volume(&self.scratch, &format!(":rados_osd_op_timeout={seconds}"))
    }

    fn name(&self) -> String {
        self.image.path().replace("rbd/", "")
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&run(underseal().args(["status", "--json", &self.name()]))).unwrap()
    }

    /// Waits until it says that it waits for the image, for some seconds by then.
    fn wait_until_it_waits(&self) {
        let address = self.image.address("");
        wait_until("it waits", PATIENCE, || {
            let waiting = &self.status()["waiting"];
            waiting["on"] == *address && waiting["for_ns"].as_u64() >= Some(3_000_000_000)
        });
    }

    fn writes(&self) -> u64 {
        self.status()["requests"]["write"]["requests"].as_u64().unwrap()
    }

    fn wait_for_writes(&self, more: u64) {
        let enough = self.writes() + more;
        wait_until("more is written", PATIENCE, || self.writes() >= enough);
    }
}

fn daemons_die_amid_verified_writes(cluster: &Cluster) {
    let served = Served::new(cluster);
    let server = Server::start(&served.volume, &[]);
    let writer = Writer::start(server.socket());
    served.wait_for_writes(50);
    cluster.signal("KILL", &DISKS[..1]);
    served.wait_for_writes(100);
    cluster.restart(&DISKS[..1]);
    cluster.wait_for_disks(3);

    cluster.signal("KILL", &DISKS);
    served.wait_until_it_waits();
    cluster.restart(&DISKS);
    served.wait_for_writes(100);

    // A client that knows the disks needs no monitor.
    cluster.signal("STOP", &["mon.a"]);
    served.wait_for_writes(100);
    cluster.signal("CONT", &["mon.a"]);
    let written = writer.stop();
    assert_eq!(served.status()["waiting"], serde_json::Value::Null);
    let log = server.stop();
    assert!(!log.contains("ERROR"), "{log}");
    written.is_there(&served.volume);
}

fn a_network_that_is_cut_is_waited_for(cluster: &Cluster, network: &Network) {
    let (served, limited) = (Served::new(cluster), Served::new(cluster));
    let server = Server::start(&served.volume, &[]);
    let impatient = Server::start(&limited.limited(10), &[]);
    let writer = Writer::start(server.socket());
    let mut other = Client::connect(&impatient.socket()).unwrap();
    let data = bytes(seed("cut"), 65_536);
    other.write(0, &data).unwrap();
    other.flush().unwrap();
    served.wait_for_writes(50);
    network.cut();
    wait_until("it fails", PATIENCE, || other.write(1 << 20, &data) == Err(EIO));
    let (status, said) = fails(underseal().arg("info").arg(served.image.address(":client_mount_timeout=1")));
    assert!(status == 1 && said.contains("no monitor of the cluster answers"), "{status}: {said}");
    served.wait_until_it_waits();
    network.mend();
    served.wait_for_writes(100);
    wait_until("it is written to again", PATIENCE, || other.write(2 << 20, &data).is_ok());
    other.flush().unwrap();
    drop(other);
    let written = writer.stop();
    let log = server.stop();
    assert!(!log.contains("ERROR"), "{log}");
    let log = impatient.stop();
    assert!(log.contains("ERROR"), "{log}");
    written.is_there(&served.volume);
    assert_same(&limited.volume.read(0, data.len()), &data, "what was flushed before");
    assert_same(&limited.volume.read(2 << 20, data.len()), &data, "what was written afterwards");
}

/// `close` reports which device it waits for, and its `--timeout` limits the wait.
fn a_volume_that_cannot_be_closed_says_why(cluster: &Cluster) {
    let served = Served::new(cluster);
    let mut server = Server::start(&served.volume, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    let data = bytes(seed("close"), 65_536);
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    cluster.signal("STOP", &DISKS);
    client.send_write(7, 1 << 20, &data).unwrap();
    served.wait_until_it_waits();
    let address = served.image.address("");
    let (status, said) = fails(underseal().args(["close", "--timeout", "8", &served.name()]));
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("waiting until it is closed") && said.contains("not closed within"), "{said}");
    assert!(said.contains(&format!("waited for {address}")), "{said}");
    cluster.signal("CONT", &DISKS);
    // The client is answered, or its connection has been ended by then.
    let answered = matches!(client.reply(), Ok((7, 0)));
    server.wait();
    assert!(!server.log().contains("panicked"), "{}", server.log());
    assert_same(&served.volume.read(0, data.len()), &data, "what was flushed");
    if answered {
        assert_same(&served.volume.read(1 << 20, data.len()), &data, "what was answered");
    }
}

fn a_full_cluster_is_waited_for(cluster: &Cluster) {
    let served = Served::new(cluster);
    let data = bytes(seed("full"), 65_536);
    let limited = Served::new(cluster);
    let server = Server::start(&served.volume, &[]);
    let impatient = Server::start(&limited.limited(10), &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    let mut other = Client::connect(&impatient.socket()).unwrap();
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    other.write(0, &data).unwrap();
    cluster.full_from(0.0001);
    // Clients hear of it by and by.
    wait_until("it fails", PATIENCE, || other.write(1 << 20, &data) == Err(EIO));
    assert_same(&other.read(0, data.len()).unwrap(), &data, "what is there is read");
    client.stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    wait_until("a write waits", PATIENCE, || {
        client.send_write(7, 1 << 20, &data).unwrap();
        client.reply().is_err()
    });
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    served.wait_until_it_waits();
    cluster.full_from(0.95);
    assert_eq!(client.reply().unwrap(), (7, 0));
    client.flush().unwrap();
    wait_until("it is written to again", PATIENCE, || other.write(2 << 20, &data).is_ok());
    other.flush().unwrap();
    drop((client, other));
    server.stop();
    let log = impatient.stop();
    assert!(log.contains("ERROR"), "{log}");
    assert_same(&served.volume.read(1 << 20, data.len()), &data, "what waited");
    assert_same(&limited.volume.read(2 << 20, data.len()), &data, "what was written afterwards");
}
