//! The measured disks, each on a separate RAM disk.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{BenchError, UblkOptions};
use crate::nbd::{missing, run};

/// Underseal with the cipher, the reference of all comparisons.
pub(super) const OURS: &str = "underseal";
/// Our device without a cipher.
pub(super) const NULL: &str = "underseal, cipher_null";
const DM_CRYPT: &str = "dm-crypt";
const DM_CRYPT_INLINE: &str = "dm-crypt, no work queues";
const BARE: &str = "RAM disk, no cipher";

const DISKS: [&str; 5] = [OURS, NULL, DM_CRYPT, DM_CRYPT_INLINE, BARE];

/// A block device until this is dropped.
pub(super) struct BenchDisk {
    pub(super) name: &'static str,
    pub(super) path: PathBuf,
    server: Option<Child>,
    mapped: Option<String>,
}

impl Drop for BenchDisk {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // After this signal, the server deletes its device.
            let _ = Command::new("kill").arg(server.id().to_string()).status();
            let _ = server.wait();
        }
        if let Some(mapped) = &self.mapped {
            let _ = Command::new("cryptsetup").args(["close", mapped]).status();
        }
    }
}

/// Starts all devices. The ciphers are the same: aes-xts-plain64, 512-bit keys, sectors of 4 KiB.
pub(super) fn start(options: &UblkOptions) -> Result<Vec<BenchDisk>, BenchError> {
    if options.devices.len() < DISKS.len() {
        let context = format!("{} RAM disks are needed, {} are given", DISKS.len(), options.devices.len());
        return Err(BenchError::new(context));
    }
    let secret = std::env::temp_dir().join(format!("underseal-bench-ublk-{}.key", std::process::id()));
    let made = File::options().write(true).create(true).truncate(true).mode(0o600).open(&secret);
    made.and_then(|mut file| file.write_all(&[0x5a; 64]))
        .map_err(|e| BenchError::because(format!("cannot write {}", secret.display()), e))?;
    let disks = DISKS.into_iter().zip(&options.devices).map(|(name, device)| {
        Ok(match name {
            OURS => ours(options, name, device, &secret, "aes-xts-plain64", "512")?,
            NULL => ours(options, name, device, &secret, "cipher_null-ecb", "0")?,
            DM_CRYPT => dm_crypt(name, device, &secret, &[])?,
            DM_CRYPT_INLINE => {
                let flags = ["--perf-no_read_workqueue", "--perf-no_write_workqueue"];
                dm_crypt(name, device, &secret, &flags)?
            }
            _ => BenchDisk { name, path: device.clone(), server: None, mapped: None },
        })
    });
    let disks = disks.collect();
    let _ = std::fs::remove_file(&secret);
    disks
}

fn ours(
    options: &UblkOptions,
    name: &'static str,
    device: &Path,
    secret: &Path,
    cipher: &str,
    key: &str,
) -> Result<BenchDisk, BenchError> {
    let mut command = Command::new(&options.turns.underseal);
    command.arg("open").arg(device).args(["--ublk", "--direct", "--type", "plain", "--sector-size", "4096"]);
    command.args(["--cipher", cipher, "--key-size", key, "--key-file"]).arg(secret);
    if key == "0" {
        command.arg("--allow-null");
    }
    let mut server =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(|e| missing(&command, e))?;
    let mut line = String::new();
    let out = server.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    // NAME is open: /dev/ublkb0 /dev/underseal/NAME
    let path = line.split_whitespace().find(|word| word.starts_with("/dev/ublkb")).map(PathBuf::from);
    let disk = BenchDisk { name, path: path.clone().unwrap_or_default(), server: Some(server), mapped: None };
    match (out, path) {
        (Some(Ok(_)), Some(_)) => Ok(disk),
        _ => Err(BenchError::new(format!("{name} could not be started"))),
    }
}

fn dm_crypt(
    name: &'static str,
    device: &Path,
    secret: &Path,
    flags: &[&str],
) -> Result<BenchDisk, BenchError> {
    let mapped = format!("underseal-bench-{}-{}", std::process::id(), flags.len());
    let mut open = Command::new("cryptsetup");
    open.args(["open", "--type", "plain", "--cipher", "aes-xts-plain64", "--key-size", "512"]);
    open.args(["--sector-size", "4096", "--key-file"]).arg(secret).args(flags).arg(device).arg(&mapped);
    run(&mut open)?;
    let path = Path::new("/dev/mapper").join(&mapped);
    Ok(BenchDisk { name, path, server: None, mapped: Some(mapped) })
}
