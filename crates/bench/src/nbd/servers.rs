//! The measured servers, each in a separate process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::Mapping;
use underseal_device::RamDevice;
use underseal_export::nbd::protocol::TransmissionFlags;
use underseal_export::nbd::{
    ExportInfo, Exports, MAX_PAYLOAD, Server as NbdServer, ServerConfig, VolumeHandler,
};
use underseal_export::net::listen;
use underseal_volume::{Segment, Volume};

use super::{NbdError, NbdOptions};
use crate::place::{BenchFolder, SocketServer, this_program};

/// Our server with the cipher: the first, to which the others are compared.
const OURS: &str = "underseal, 4 KiB sectors";
/// Ours of an earlier build.
const BEFORE: &str = "before, 4 KiB sectors";
/// Our server with the LUKS1 peers' sectors.
pub(super) const OURS_512: &str = "underseal, 512 B sectors";
/// Our server over a VeraCrypt volume with the same cipher as the server above: the format costs
/// nothing.
const OURS_VERACRYPT: &str = "underseal, VeraCrypt AES";
/// Our server without structured replies, which cost libnbd two more calls a read.
const OURS_SIMPLE: &str = "underseal, simple replies";
/// Our server, sleeping at once without requests.
const OURS_SLEEPS: &str = "underseal, --busy-poll 0";
/// nbdkit without structured replies.
const NBDKIT_SIMPLE: &str = "nbdkit luks --no-sr";
/// Our server without a cipher, over the same kind of file.
pub(super) const OURS_NULL: &str = "underseal, cipher_null";
/// Our server without a cipher and without a file: the transport's limit.
pub(super) const OURS_MEMORY: &str = "underseal, memory, no cipher";
pub(super) const QEMU: &str = "qemu-nbd luks";
pub(super) const NBDKIT: &str = "nbdkit luks";
const NBDKIT_FILE: &str = "nbdkit file, no cipher";

pub(super) type NbdServerProcess = SocketServer;

impl SocketServer {
    /// Returns the address for fio.
    pub(super) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

/// Returns the processor time of a process, including threads that have ended.
pub(crate) fn process_time(name: &str, id: u32) -> Result<Duration, NbdError> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id))
        .map_err(|e| NbdError::because(format!("{} is gone", name), e))?;
    // proc(5): the second field is a name in brackets; 14 and 15 are user and system time in ticks.
    let ticks: u64 = stat
        .rsplit(") ")
        .next()
        .into_iter()
        .flat_map(|rest| rest.split(' ').skip(11).take(2))
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Ok(Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Makes the images and starts a server over each.
pub(super) fn start(options: &NbdOptions) -> Result<Vec<NbdServerProcess>, NbdError> {
    let place = BenchFolder::new(&options.turns.underseal, &options.directory, options.size)?;
    if options.over_nbd {
        return super::remote::start(&place);
    }
    if let Some(before) = &options.turns.before {
        let (image, place) = (place.luks2("both", "4096")?, Rc::new(place));
        return Ok(vec![
            version(&place, OURS, &image, &options.turns.underseal),
            version(&place, BEFORE, &image, before),
        ]);
    }
    Ok(vec![
        ours(&place, OURS, "4096", &[])?,
        ours(&place, OURS_512, "512", &[])?,
        veracrypt(&place)?,
        ours(&place, OURS_SIMPLE, "4096", &["--simple-replies"])?,
        ours(&place, OURS_SLEEPS, "4096", &["--busy-poll=0"])?,
        null(&place)?,
        memory(&place)?,
        qemu(&place)?,
        nbdkit(&place, NBDKIT, &[])?,
        nbdkit(&place, NBDKIT_SIMPLE, &["--no-sr"])?,
        nbdkit(&place, NBDKIT_FILE, &[])?,
    ])
}

fn ours(
    place: &BenchFolder,
    name: &'static str,
    sector: &str,
    more: &[&str],
) -> Result<NbdServerProcess, NbdError> {
    let stem = format!("luks2-{sector}{}", more.concat());
    let (image, socket) = (place.luks2(&stem, sector)?, place.path(&format!("{stem}.sock")));
    let mut open = place.open(&image);
    NbdServerProcess::start(name, open.args(more).arg("--nbd").arg(unix(&socket)), socket, vec![image])
}

/// Returns a build of ours that has its turns over an image.
fn version(place: &Rc<BenchFolder>, name: &'static str, image: &Path, underseal: &Path) -> NbdServerProcess {
    let socket = place.path("both.sock");
    let mut open = place.open_with(underseal, image);
    open.arg("--nbd").arg(unix(&socket));
    NbdServerProcess::in_turns(name, open, place, socket, vec![image.into()])
}

fn veracrypt(place: &BenchFolder) -> Result<NbdServerProcess, NbdError> {
    let (image, socket) = (place.path("veracrypt.img"), place.path("veracrypt.sock"));
    let cheap = ["--pim", "1", "--prf", "sha512", "--key-file"];
    let mut format = place.underseal();
    // Headers at both ends. A key file allows the low PIM.
    let size = place.size() + (256 << 10);
    format.arg("format").arg(&image).args(["--type", "veracrypt", "--quick", "--size", &size.to_string()]);
    run(format.args(cheap).arg(place.passphrase()).arg("--passphrase-file").arg(place.passphrase()))?;
    let mut open = place.open(&image);
    open.args(["--type", "tcrypt", "--cipher", "aes"]).args(cheap).arg(place.passphrase());
    NbdServerProcess::start(OURS_VERACRYPT, open.arg("--nbd").arg(unix(&socket)), socket, vec![image])
}

fn null(place: &BenchFolder) -> Result<NbdServerProcess, NbdError> {
    let (image, socket) = (place.image("null.img")?, place.path("null.sock"));
    let mut open = place.open_null(&image);
    NbdServerProcess::start(OURS_NULL, open.arg("--nbd").arg(unix(&socket)), socket, vec![image])
}

fn memory(place: &BenchFolder) -> Result<NbdServerProcess, NbdError> {
    let socket = place.path("memory.sock");
    let mut serve = this_program()?;
    serve.args(["serve-memory", "--size", &place.size().to_string(), "--nbd"]);
    NbdServerProcess::start(OURS_MEMORY, serve.arg(unix(&socket)), socket, Vec::new())
}

fn qemu(place: &BenchFolder) -> Result<NbdServerProcess, NbdError> {
    let (image, socket) = (place.luks1("qemu")?, place.path("qemu.sock"));
    let luks = format!("driver=luks,key-secret=key,file.driver=file,file.filename={}", image.display());
    let mut serve = Command::new("qemu-nbd");
    serve.args(["--persistent", "--shared=8", "--cache=writeback", "--aio=threads", "--object"]);
    serve.arg(place.secret()).arg("--image-opts").arg(luks);
    NbdServerProcess::start(QEMU, serve.arg("--socket").arg(&socket), socket, vec![image])
}

fn nbdkit(place: &BenchFolder, name: &'static str, more: &[&str]) -> Result<NbdServerProcess, NbdError> {
    let luks = name != NBDKIT_FILE;
    let stem = name.replace([' ', ','], "-");
    let socket = place.path(&format!("{stem}.sock"));
    let mut serve = Command::new("nbdkit");
    serve.args(["--foreground", "--unix"]).arg(&socket).args(more);
    let image = if luks { place.luks1(&stem)? } else { place.image(&format!("{stem}.img"))? };
    if luks {
        serve.arg("--filter=luks");
    }
    serve.arg("file").arg(&image);
    if luks {
        serve.arg(format!("passphrase=+{}", place.passphrase().display()));
    }
    NbdServerProcess::start(name, &mut serve, socket, vec![image])
}

pub(super) fn unix(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

/// Runs a command, and fails when the command fails.
pub(crate) fn run(command: &mut Command) -> Result<(), NbdError> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| missing(command, e))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(NbdError::new(format!("{:?} failed: {}", command.get_program(), text.trim())))
}

/// The error of a program that could not be started.
pub(crate) fn missing(command: &Command, e: std::io::Error) -> NbdError {
    let program = command.get_program().to_string_lossy().into_owned();
    NbdError::because(
        format!(
            "{program} cannot be run (packages: fuse3, libnbd-bin, nbdkit, qemu-system-common, qemu-utils)"
        ),
        e,
    )
}

/// Serves `size` bytes of memory without a cipher until the process is killed: the transport alone.
///
/// # Errors
/// When the endpoint cannot be listened on.
pub fn serve_memory(size: u64, endpoint: &str) -> Result<(), NbdError> {
    let failed = |e: Box<dyn std::error::Error + Send + Sync>| NbdError::because("cannot serve memory", e);
    let work = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let cipher = build(&"cipher_null-ecb".parse()?, &Key::new(&[])?, SectorSize::S4096)?;
        let volume = Volume::new(vec![Segment::stored(0, size, 0, 0, cipher)])?;
        let mapping = Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(size)))?);
        let export = ExportInfo {
            name: String::new(),
            description: "memory without a cipher".into(),
            size,
            min_block: mapping.block(),
            preferred_block: mapping.preferred_block(),
            max_block: MAX_PAYLOAD,
            flags: TransmissionFlags::SEND_FLUSH | TransmissionFlags::CAN_MULTI_CONN,
        };
        let config = ServerConfig::new(Exports::new(vec![export])?);
        let handler = Arc::new(VolumeHandler::new(vec![mapping]));
        Ok(NbdServer::new(config, listen(&endpoint.parse()?)?, handler)?.run()?)
    };
    work().map_err(failed)
}
