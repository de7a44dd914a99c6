//! The measured images, removed on drop.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BenchError, RbdOptions};
use crate::nbd::run;
use crate::place::cannot_make;

/// The beginning of a LUKS2 volume's data.
pub(super) const DATA: u64 = 16 << 20;
/// The size of the volume's key, AES-256-XTS, in bytes.
pub(super) const KEY: usize = 64;

pub(super) struct Images {
    conf: Option<PathBuf>,
    pool: String,
    stem: String,
    pub(super) size: u64,
    folder: PathBuf,
}

impl Images {
    /// Makes the images: a volume of ours, a volume of librbd's, a plain image.
    pub(super) fn new(options: &RbdOptions) -> Result<Self, BenchError> {
        let stem = format!("underseal-bench-{}", std::process::id());
        let folder = std::env::temp_dir().join(&stem);
        std::fs::create_dir(&folder).map_err(|e| cannot_make(&folder, e))?;
        // Whole requests of any workload.
        let size = options.size.next_multiple_of(1 << 20).max(16 << 20);
        let this = Self { conf: options.conf.clone(), pool: options.pool.clone(), stem, size, folder };
        this.write("pass", b"benchmark")?;
        this.write("key", &key())?;
        for name in [OURS, LUKS2, PLAIN] {
            let size = format!("{}M", (DATA + size) >> 20);
            run(this.rbd("create").args(["--size", &size]).arg(this.path(name)))?;
        }
        let mut format = Command::new(&options.turns.underseal);
        format.args(["--quiet", "format"]).arg(this.address(OURS)).args([
            "--sector-size",
            "4096",
            "--volume-key-file",
        ]);
        format.arg(this.key_file()).args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"]);
        run(format.arg("--passphrase-file").arg(this.passphrase()))?;
        let mut format = this.rbd("encryption");
        run(format.arg("format").arg(this.path(LUKS2)).arg("luks2").arg(this.passphrase()))?;
        Ok(this)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), BenchError> {
        let path = self.folder.join(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(bytes)).map_err(|e| cannot_make(&path, e))
    }

    pub(super) fn passphrase(&self) -> PathBuf {
        self.folder.join("pass")
    }

    /// Returns the file of our volume's key.
    pub(super) fn key_file(&self) -> PathBuf {
        self.folder.join("key")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    pub(super) fn conf(&self) -> Option<&Path> {
        self.conf.as_deref()
    }

    /// Returns an image's name for Ceph's tools.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{}-{name}", self.pool, self.stem)
    }

    /// Returns an image's address for underseal.
    pub(super) fn address(&self, name: &str) -> String {
        let conf = self.conf.as_ref().map(|conf| {
            let text = conf.to_string_lossy();
            // Characters that end an option are escaped.
            let text: String = text
                .chars()
                .flat_map(|c| [(c == ':' || c == '\\').then_some('\\'), Some(c)])
                .flatten()
                .collect();
            format!(":conf={text}")
        });
        format!("rbd:{}{}", self.path(name), conf.unwrap_or_default())
    }

    fn rbd(&self, command: &str) -> Command {
        let mut rbd = Command::new("rbd");
        if let Some(conf) = &self.conf {
            rbd.arg("--conf").arg(conf);
        }
        rbd.arg(command);
        rbd
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for name in [OURS, LUKS2, PLAIN] {
            let _ = self.rbd("rm").arg("--no-progress").arg(self.path(name)).output();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns a key of consecutive bytes.
pub(super) fn key() -> Vec<u8> {
    (0..=u8::MAX).take(KEY).collect()
}

/// The image with our volume.
pub(super) const OURS: &str = "ours";
/// The image that librbd has formatted.
pub(super) const LUKS2: &str = "luks2";
/// The image without a header.
pub(super) const PLAIN: &str = "plain";
