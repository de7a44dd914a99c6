//! A cluster of the test's own, with three disks, which it may break.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::rbd::cluster::{Image, given};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::{output, run, tool};

/// A network of this thread and its child processes: a loopback and nothing else.
pub(crate) struct Network(());

impl Network {
    /// Returns the reason if this thread cannot have a separate network.
    pub(crate) fn apart() -> Result<Self, String> {
        // SAFETY: another network changes nothing that this process has, and descriptors stay as
        // they are.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|e| format!("a network namespace needs root ({e})"))?;
        let this = Self(());
        this.mend();
        Ok(this)
    }

    /// Cuts the network: nothing arrives any more, and no connection is reset.
    pub(crate) fn cut(&self) {
        run(tool("ip").args(["link", "set", "lo", "down"]));
    }

    pub(crate) fn mend(&self) {
        run(tool("ip").args(["link", "set", "lo", "up"]));
    }
}

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/ceph-cluster");
pub(crate) const DISKS: [&str; 3] = ["osd.0", "osd.1", "osd.2"];

pub(crate) struct Cluster {
    script: Child,
    conf: PathBuf,
}

impl Cluster {
    /// Starts it. None: the test says that it does not run.
    pub(crate) fn start() -> Option<Self> {
        given()?;
        let mut script = tool(SCRIPT);
        script.args(["--disks", "3", "sh", "-c", "echo $UNDERSEAL_TEST_CEPH_CONF; cat"]);
        let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut conf = String::new();
        BufReader::new(script.stdout.take().unwrap()).read_line(&mut conf).unwrap();
        assert!(conf.ends_with("/ceph.conf\n"), "{conf:?}: {:?}", script.wait());
        Some(Self { script, conf: conf.trim_end().into() })
    }

    /// An image on it.
    pub(crate) fn image(&self, mib: u32) -> Image {
        Image::new_on(self.conf.clone(), mib)
    }

    /// A signal for some of its daemons: `mon.a`, `osd.0`.
    pub(crate) fn signal(&self, signal: &str, daemons: &[&str]) {
        run(tool(SCRIPT)
            .env("UNDERSEAL_TEST_CEPH_CONF", &self.conf)
            .args(["--signal", signal])
            .args(daemons));
    }

    /// Starts those again that were killed.
    pub(crate) fn restart(&self, daemons: &[&str]) {
        run(tool(SCRIPT).env("UNDERSEAL_TEST_CEPH_CONF", &self.conf).arg("--start").args(daemons));
    }

    /// Waits until `count` disks are in use.
    pub(crate) fn wait_for_disks(&self, count: usize) {
        wait_until("the disks are up", PATIENCE, || {
            let stat = run(self.ceph().args(["osd", "stat", "--format", "json"]));
            stat.contains(&format!("\"num_up_osds\":{count},"))
        });
    }

    /// Makes the cluster's disks count as full from `ratio` on.
    pub(crate) fn full_from(&self, ratio: f64) {
        for (which, part) in [("nearfull", 0.98), ("backfillfull", 0.99), ("full", 1.0)] {
            run(self.ceph().args(["osd", &format!("set-{which}-ratio"), &format!("{:.6}", ratio * part)]));
        }
        wait_until("the disks have seen it", PATIENCE, || {
            let dump = output(self.ceph().args(["osd", "dump"]));
            let is_full = String::from_utf8_lossy(&dump.stdout)
                .lines()
                .any(|line| line.starts_with("pool ") && line.contains("'rbd'") && line.contains(",full,"));
            is_full == (ratio < 0.5)
        });
    }

    pub(crate) fn ceph(&self) -> std::process::Command {
        let mut ceph = tool("ceph");
        ceph.arg("--conf").arg(&self.conf);
        ceph
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}
