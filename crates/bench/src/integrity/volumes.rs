//! The measured volumes, each in a separate server.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{BenchError, IntegrityBenchOptions};
use crate::place::{BenchFolder, SocketServer, cannot_make};

/// Without tags: the first volume, to which the others are compared.
const PLAIN: &str = "aes-xts";
pub(super) const GCM_DIRECT: &str = "aes-gcm, no journal";
pub(super) const GCM_JOURNAL: &str = "aes-gcm, journal";
pub(super) const HMAC_DIRECT: &str = "hmac-sha256, no journal";
const HMAC_JOURNAL: &str = "hmac-sha256, journal";

const GCM: [&str; 4] = ["--cipher", "aes-gcm-random", "--integrity", "aead"];
const HMAC: [&str; 2] = ["--integrity", "hmac-sha256"];
const DIRECT: &str = "--integrity-no-journal";

/// An open volume until this is dropped.
pub(super) struct BenchVolume {
    pub(super) server: SocketServer,
    /// The mounted file.
    pub(super) file: PathBuf,
}

impl Drop for BenchVolume {
    fn drop(&mut self) {
        let mut unmount = Command::new("fusermount3");
        let _ = unmount.args(["-u", "-q", "-z", "--"]).arg(&self.file).stderr(Stdio::null()).status();
        let _ = fs::remove_file(&self.file);
    }
}

/// Makes and opens all volumes.
pub(super) fn start(options: &IntegrityBenchOptions) -> Result<Vec<BenchVolume>, BenchError> {
    let place = BenchFolder::new(&options.turns.underseal, &options.directory, options.size)?;
    let direct = |of: &[&'static str]| [of, &[DIRECT]].concat();
    let kinds = [
        (PLAIN, vec![]),
        (GCM_DIRECT, direct(&GCM)),
        (GCM_JOURNAL, GCM.to_vec()),
        (HMAC_DIRECT, direct(&HMAC)),
        (HMAC_JOURNAL, HMAC.to_vec()),
    ];
    kinds.into_iter().map(|(name, how)| open(&place, name, &how)).collect()
}

fn open(place: &BenchFolder, name: &'static str, how: &[&str]) -> Result<BenchVolume, BenchError> {
    let stem = name.replace([' ', ','], "");
    let image = place.luks2_with(&stem, "4096", how)?;
    let (socket, file) = (place.path(&format!("{stem}.sock")), place.path(&stem));
    File::create(&file).map_err(|e| cannot_make(&file, e))?;
    let mut command = place.open(&image);
    command.arg("--nbd").arg(format!("unix:{}", socket.display()));
    command.arg("--fuse").arg(&file).args(["--fuse-threads", "2"]);
    let server = SocketServer::start(name, &mut command, socket, vec![image])?;
    let volume = BenchVolume { server, file };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !fs::metadata(&volume.file).is_ok_and(|file| file.len() >= place.size()) {
        if Instant::now() > deadline {
            return Err(BenchError::new(format!("{name} was not mounted within 30 s")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(volume)
}
