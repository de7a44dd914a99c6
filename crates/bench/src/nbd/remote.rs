//! Volumes on other servers: ours and its peers over nbdkit's memory, whose cost is negligible.
//!
//! ```text
//!   fio -> underseal | nbdkit luks + nbd plugin | qemu-nbd luks  -> nbdkit memory
//!   fio -> nbdkit's nbd plugin                                   -> nbdkit memory   no cipher
//!   fio ->                                                          nbdkit memory   no hop either
//! ```

use std::path::Path;
use std::process::Command;

use super::NbdError;
use super::servers::{NbdServerProcess, run, unix};
use crate::place::BenchFolder;

/// Underseal, the reference of all comparisons.
const OURS: &str = "underseal over NBD";

/// Starts the servers, each over separate memory.
pub(super) fn start(place: &BenchFolder) -> Result<Vec<NbdServerProcess>, NbdError> {
    Ok(vec![
        ours(place, OURS, "4096", true)?,
        ours(place, "underseal, one connection", "4096", false)?,
        nbdkit(place, "nbdkit luks over NBD", true)?,
        qemu(place)?,
        nbdkit(place, "nbdkit nbd, no cipher", false)?,
        memory(place, "nbdkit memory, no hop", "direct", true)?,
    ])
}

/// Starts nbdkit's memory, with room for a header.
fn memory(
    place: &BenchFolder,
    name: &'static str,
    stem: &str,
    several: bool,
) -> Result<NbdServerProcess, NbdError> {
    let socket = place.path(&format!("lower-{stem}.sock"));
    let mut serve = Command::new("nbdkit");
    serve.args(["--foreground", "--unix"]).arg(&socket);
    if !several {
        serve.arg("--filter=multi-conn");
    }
    serve.args(["memory".into(), (place.size() + (16 << 20)).to_string()]);
    if !several {
        serve.arg("multi-conn-mode=disable");
    }
    NbdServerProcess::start(name, &mut serve, socket, Vec::new())
}

fn ours(
    place: &BenchFolder,
    name: &'static str,
    sector: &str,
    several: bool,
) -> Result<NbdServerProcess, NbdError> {
    let stem = if several { "ours" } else { "ours-one" };
    let below = memory(place, name, stem, several)?;
    let mut format = place.underseal();
    format.args(["format", &below.uri(), "--sector-size", sector]);
    format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--passphrase-file"]);
    run(format.arg(place.passphrase()))?;
    let socket = place.path(&format!("{stem}.sock"));
    let mut open = place.open(Path::new(&below.uri()));
    open.arg("--nbd").arg(unix(&socket));
    Ok(NbdServerProcess::start(name, &mut open, socket, Vec::new())?.over(below))
}

/// Writes a LUKS1 volume of qemu's to a memory: qemu-img creates files only.
fn luks1(place: &BenchFolder, below: &NbdServerProcess, stem: &str) -> Result<(), NbdError> {
    let image = place.luks1(stem)?;
    let copied = run(Command::new("nbdcopy").arg(&image).arg(below.uri()));
    let _ = std::fs::remove_file(&image);
    copied
}

fn nbdkit(place: &BenchFolder, name: &'static str, luks: bool) -> Result<NbdServerProcess, NbdError> {
    let stem = if luks { "nbdkit-luks" } else { "nbdkit-nbd" };
    let below = memory(place, name, stem, true)?;
    let socket = place.path(&format!("{stem}-over.sock"));
    let mut serve = Command::new("nbdkit");
    serve.args(["--foreground", "--unix"]).arg(&socket);
    if luks {
        luks1(place, &below, "remote")?;
        serve.arg("--filter=luks");
    }
    serve.arg("nbd").arg(below.uri());
    if luks {
        serve.arg(format!("passphrase=+{}", place.passphrase().display()));
    }
    Ok(NbdServerProcess::start(name, &mut serve, socket, Vec::new())?.over(below))
}

fn qemu(place: &BenchFolder) -> Result<NbdServerProcess, NbdError> {
    const NAME: &str = "qemu-nbd luks over NBD";
    let below = memory(place, NAME, "qemu", true)?;
    luks1(place, &below, "remote")?;
    let socket = place.path("qemu-over.sock");
    let mut serve = Command::new("qemu-nbd");
    serve.args(["--persistent", "--shared=8", "--object"]).arg(place.secret()).arg("--image-opts");
    let lower = place.path("lower-qemu.sock");
    serve.arg(format!(
        "driver=luks,key-secret=key,file.driver=nbd,file.server.type=unix,file.server.path={}",
        lower.display()
    ));
    Ok(NbdServerProcess::start(NAME, serve.arg("--socket").arg(&socket), socket, Vec::new())?.over(below))
}
