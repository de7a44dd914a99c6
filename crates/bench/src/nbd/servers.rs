//! The servers that are measured, each in a process of its own.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::Mapping;
use underseal_device::RamDevice;
use underseal_export::nbd::protocol::TransmissionFlags;
use underseal_export::nbd::{
    ExportInfo, Exports, MAX_PAYLOAD, Server as NbdServer, ServerConfig, VolumeHandler, listen,
};
use underseal_volume::{Segment, Volume};

use super::{NbdError, NbdOptions};

/// Ours with the cipher: the first, with which the others are compared.
const OURS: &str = "underseal, 4 KiB sectors";
/// Ours with the sectors that the LUKS1 peers have.
pub(super) const OURS_512: &str = "underseal, 512 B sectors";
/// Ours without structured replies, which cost libnbd two more calls a read.
const OURS_SIMPLE: &str = "underseal, simple replies";
/// Ours, looking for the next request for 50 us before it sleeps.
const OURS_POLL: &str = "underseal, busy poll 50 us";
/// nbdkit without them.
const NBDKIT_SIMPLE: &str = "nbdkit luks --no-sr";
/// Ours without a cipher, over the same kind of file.
pub(super) const OURS_NULL: &str = "underseal, cipher_null";
/// Ours without a cipher and without a file: the transport's limit.
pub(super) const OURS_MEMORY: &str = "underseal, memory, no cipher";
pub(super) const QEMU: &str = "qemu-nbd luks";
pub(super) const NBDKIT: &str = "nbdkit luks";
const NBDKIT_FILE: &str = "nbdkit file, no cipher";

/// A server that runs until it is dropped, with its files.
pub(super) struct Server {
    pub(super) name: &'static str,
    pub(super) uri: String,
    process: Child,
    files: Vec<PathBuf>,
    /// The server that its volume lies on.
    below: Option<Box<Server>>,
}

impl Server {
    pub(super) fn over(mut self, below: Self) -> Self {
        self.below = Some(Box::new(below));
        self
    }

    /// The processor time that it has used.
    pub(super) fn cpu_time(&self) -> Result<Duration, NbdError> {
        process_time(self.name, self.process.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// The processor time that a process has used, threads that have ended included.
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
pub(super) fn start(options: &NbdOptions) -> Result<Vec<Server>, NbdError> {
    let place = Place { options, passphrase: options.directory.join("underseal-bench.pass") };
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&place.passphrase)
        .map_err(|e| NbdError::because(format!("cannot write {}", place.passphrase.display()), e))?;
    file.write_all(b"benchmark").map_err(|e| NbdError::because("cannot write the passphrase", e))?;
    let servers = if options.over_nbd {
        super::remote::start(&place)?
    } else {
        vec![
            place.ours(OURS, "4096", &[])?,
            place.ours(OURS_512, "512", &[])?,
            place.ours(OURS_SIMPLE, "4096", &["--simple-replies"])?,
            place.ours(OURS_POLL, "4096", &["--busy-poll=50"])?,
            place.null()?,
            place.memory()?,
            place.qemu()?,
            place.nbdkit(NBDKIT, &[])?,
            place.nbdkit(NBDKIT_SIMPLE, &["--no-sr"])?,
            place.nbdkit(NBDKIT_FILE, &[])?,
        ]
    };
    let _ = std::fs::remove_file(&place.passphrase);
    Ok(servers)
}

pub(super) struct Place<'a> {
    pub(super) options: &'a NbdOptions,
    pub(super) passphrase: PathBuf,
}

impl Place<'_> {
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.options.directory.join(format!("underseal-bench-{}.{name}", std::process::id()))
    }

    pub(super) fn underseal(&self) -> Command {
        let mut command = Command::new(&self.options.underseal);
        command.arg("--quiet");
        command
    }

    fn ours(&self, name: &'static str, sector: &str, more: &[&str]) -> Result<Server, NbdError> {
        let stem = format!("luks2-{sector}{}", more.concat());
        let image = self.path(&format!("{stem}.img"));
        // The header comes on top of the volume.
        let size = self.options.size + (16 << 20);
        let mut format = self.underseal();
        format.arg("format").arg(&image).args(["--size", &size.to_string(), "--sector-size", sector]);
        format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--passphrase-file"]);
        run(format.arg(&self.passphrase))?;
        let socket = self.path(&format!("{stem}.sock"));
        let mut open = self.underseal();
        open.arg("open").arg(&image).args(more).arg("--passphrase-file").arg(&self.passphrase);
        self.serve(name, open.arg("--nbd").arg(unix(&socket)), socket, vec![image])
    }

    fn null(&self) -> Result<Server, NbdError> {
        let (image, socket) = (self.image("null.img")?, self.path("null.sock"));
        let mut open = self.underseal();
        open.arg("open").arg(&image).args(["--type", "plain", "--cipher", "cipher_null-ecb", "--allow-null"]);
        open.args(["--sector-size", "4096", "--passphrase-file"]).arg(&self.passphrase);
        self.serve(OURS_NULL, open.arg("--nbd").arg(unix(&socket)), socket, vec![image])
    }

    fn memory(&self) -> Result<Server, NbdError> {
        let socket = self.path("memory.sock");
        let mut serve = self.underseal();
        serve.args(["bench", "serve-memory", "--size", &self.options.size.to_string(), "--nbd"]);
        self.serve(OURS_MEMORY, serve.arg(unix(&socket)), socket, Vec::new())
    }

    fn qemu(&self) -> Result<Server, NbdError> {
        let (image, socket) = (self.luks1("qemu")?, self.path("qemu.sock"));
        let mut serve = Command::new("qemu-nbd");
        serve.args(["--persistent", "--shared=8", "--cache=writeback", "--aio=threads", "--object"]);
        serve.arg(self.secret()).arg("--image-opts").arg(self.luks_options(&image));
        self.serve(QEMU, serve.arg("--socket").arg(&socket), socket, vec![image])
    }

    fn nbdkit(&self, name: &'static str, more: &[&str]) -> Result<Server, NbdError> {
        let luks = name != NBDKIT_FILE;
        let stem = name.replace([' ', ','], "-");
        let socket = self.path(&format!("{stem}.sock"));
        let mut serve = Command::new("nbdkit");
        serve.args(["--foreground", "--unix"]).arg(&socket).args(more);
        let image = if luks { self.luks1(&stem)? } else { self.image(&format!("{stem}.img"))? };
        if luks {
            serve.arg("--filter=luks");
        }
        serve.arg("file").arg(&image);
        if luks {
            serve.arg(format!("passphrase=+{}", self.passphrase.display()));
        }
        self.serve(name, &mut serve, socket, vec![image])
    }

    fn image(&self, name: &str) -> Result<PathBuf, NbdError> {
        let image = self.path(name);
        File::create(&image)
            .and_then(|file| file.set_len(self.options.size))
            .map_err(|e| NbdError::because(format!("cannot make {}", image.display()), e))?;
        Ok(image)
    }

    pub(super) fn secret(&self) -> String {
        format!("secret,id=key,file={}", self.passphrase.display())
    }

    fn luks_options(&self, image: &Path) -> String {
        format!("driver=luks,key-secret=key,file.driver=file,file.filename={}", image.display())
    }

    /// A LUKS1 image of qemu's with aes-xts-plain64 and a 512-bit key.
    fn luks1(&self, stem: &str) -> Result<PathBuf, NbdError> {
        let image = self.path(&format!("{stem}-luks1.img"));
        let mut create = Command::new("qemu-img");
        create
            .args(["create", "-q", "-f", "luks", "--object"])
            .arg(self.secret())
            .args(["-o", "key-secret=key,iter-time=10,cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64"]);
        run(create.arg(&image).arg(self.options.size.to_string()))?;
        Ok(image)
    }

    pub(super) fn serve(
        &self,
        name: &'static str,
        command: &mut Command,
        socket: PathBuf,
        mut files: Vec<PathBuf>,
    ) -> Result<Server, NbdError> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().map_err(|e| missing(command, e))?;
        files.push(socket.clone());
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let mut server = Server { name, uri, process, files, below: None };
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            if let Ok(Some(status)) = server.process.try_wait() {
                return Err(NbdError::new(format!("{name} ended with {status} before it served")));
            }
            if Instant::now() > deadline {
                return Err(NbdError::new(format!("{name} did not begin to serve within 30 s")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

pub(super) fn unix(socket: &Path) -> String {
    format!("unix:{}", socket.display())
}

/// Runs what must succeed.
pub(crate) fn run(command: &mut Command) -> Result<(), NbdError> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| missing(command, e))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(NbdError::new(format!("{:?} failed: {}", command.get_program(), text.trim())))
}

/// What to say of a program that could not be started.
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
