//! The cluster that is given: `UNDERSEAL_TEST_CEPH_CONF` names its configuration, of a user who may
//! do everything. Its pool `rbd` is used.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use underseal_testing::skip;

use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, underseal};
use crate::support::{Scratch, Server, run, tool};

/// The cluster's configuration. None: the test says that it does not run.
pub(crate) fn given() -> Option<PathBuf> {
    let conf = std::env::var_os("UNDERSEAL_TEST_CEPH_CONF");
    if conf.is_none() {
        skip("a Ceph cluster", "UNDERSEAL_TEST_CEPH_CONF does not name the configuration of one");
    }
    conf.map(PathBuf::from)
}

/// An image on the cluster, which goes when the test ends.
pub(crate) struct Image {
    conf: PathBuf,
    name: String,
}

impl Image {
    /// A new image of `mib` MiB.
    pub(crate) fn new(mib: u32) -> Option<Self> {
        given().map(|conf| Self::new_on(conf, mib))
    }

    /// A new image on another cluster.
    pub(crate) fn new_on(conf: PathBuf, mib: u32) -> Self {
        let this = Self::named(conf);
        run(this.rbd("create").args(["--size", &format!("{mib}M")]).arg(this.path()));
        this
    }

    /// An image with the bytes of `file`.
    pub(crate) fn of(file: &std::path::Path) -> Option<Self> {
        let this = Self::named(given()?);
        run(this.rbd("import").arg("--no-progress").arg(file).arg(this.path()));
        Some(this)
    }

    fn named(conf: PathBuf) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { conf, name: format!("test-{}-{number}", std::process::id()) }
    }

    /// An image that another tool is about to make from this one.
    pub(crate) fn named_by(of: &Self, more: &str) -> Self {
        Self { conf: of.conf.clone(), name: format!("{}{more}", of.name) }
    }

    /// The image's name in the pool.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// As Ceph's tools name it.
    pub(crate) fn path(&self) -> String {
        format!("rbd/{}", self.name)
    }

    /// As it is named here; with a snapshot's name or options behind it.
    pub(crate) fn address(&self, more: &str) -> String {
        format!("rbd:rbd/{}{more}:conf={}", self.name, self.conf.display())
    }

    /// Ceph's tool for images.
    pub(crate) fn rbd(&self, command: &str) -> Command {
        let mut rbd = tool("rbd");
        rbd.arg("--conf").arg(&self.conf).arg(command);
        rbd
    }

    /// Ceph's tool for what images are made of.
    pub(crate) fn rados(&self) -> Command {
        let mut rados = tool("rados");
        rados.arg("--conf").arg(&self.conf);
        rados
    }

    /// Ceph's tool for the cluster.
    pub(crate) fn ceph(&self) -> Command {
        let mut ceph = tool("ceph");
        ceph.arg("--conf").arg(&self.conf);
        ceph
    }

    /// The volume on it, or on a snapshot of it.
    pub(crate) fn volume(&self, scratch: &Scratch, more: &str) -> Volume {
        let passphrase = scratch.file("pass", PASSPHRASE.as_bytes());
        Volume { image: self.address(more).into(), passphrase, options: Vec::new() }
    }

    /// A new volume on it.
    pub(crate) fn formatted(&self, scratch: &Scratch, options: &[&str]) -> Volume {
        let volume = self.volume(scratch, "");
        let mut format = underseal();
        format.arg("format").arg(&volume.image).arg("-q").args(CHEAP_PBKDF2).args(options);
        run(format.arg("--passphrase-file").arg(&volume.passphrase));
        volume
    }

    /// A new image, and a new volume on it.
    pub(crate) fn with_volume(mib: u32, options: &[&str]) -> Option<(Scratch, Self, Volume)> {
        let (scratch, image) = (Scratch::new(), Self::new(mib)?);
        let volume = image.formatted(&scratch, options);
        Some((scratch, image, volume))
    }

    /// A new image, and a new volume on it that is served.
    pub(crate) fn served(mib: u32, options: &[&str]) -> Option<(Scratch, Self, Volume, Server)> {
        let (scratch, image, volume) = Self::with_volume(mib, &[])?;
        let server = Server::start(&volume, options);
        Some((scratch, image, volume, server))
    }

    /// The client that has the image's lock, and its address: `client.N`, `ADDRESS`.
    pub(crate) fn locker(&self) -> Option<(String, String)> {
        let list = run(self.rbd("lock").args(["ls", "--format", "json"]).arg(self.path()));
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        let one = list.as_array()?.first()?.clone();
        Some((one["locker"].as_str()?.to_owned(), one["address"].as_str()?.to_owned()))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The cluster may not answer any more.
            return;
        }
        let _ = self.rbd("snap").args(["purge", "--no-progress"]).arg(self.path()).output();
        let _ = self.rbd("rm").arg("--no-progress").arg(self.path()).output();
    }
}

/// A separate pool, for settings that concern all images of a pool.
pub(crate) struct Pool {
    pub(crate) conf: PathBuf,
    pub(crate) name: String,
}

impl Pool {
    pub(crate) fn new() -> Option<Self> {
        let this = Self { conf: given()?, name: format!("test-{}", std::process::id()) };
        run(this.ceph(&["osd", "pool", "create"]).args([&this.name, "1", "1"]));
        run(this.ceph(&["osd", "pool", "application", "enable"]).args([&this.name, "rbd"]));
        Some(this)
    }

    pub(crate) fn rbd(&self, command: &[&str]) -> Command {
        let mut rbd = tool("rbd");
        rbd.arg("--conf").arg(&self.conf).args(command);
        rbd
    }

    fn ceph(&self, command: &[&str]) -> Command {
        let mut ceph = tool("ceph");
        ceph.arg("--conf").arg(&self.conf).args(command);
        ceph
    }
}

impl Drop for Pool {
    /// Clusters seldom allow it.
    fn drop(&mut self) {
        let _ = self.ceph(&["config", "set", "mon", "mon_allow_pool_delete", "true"]).output();
        let mut remove = self.ceph(&["osd", "pool", "rm"]);
        let _ = remove.args([&self.name, &self.name, "--yes-i-really-really-mean-it"]).output();
    }
}
