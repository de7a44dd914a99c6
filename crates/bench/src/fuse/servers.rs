//! The measured servers, each in separate processes, each with a mount.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use underseal_cipher::{Key, SectorSize, build};
use underseal_datapath::Mapping;
use underseal_device::RamDevice;
use underseal_export::fuse::{FuseConfig, FuseServer, MountPoint};
use underseal_volume::{Segment, Volume};

use super::{BenchError, FuseOptions};
use crate::nbd::{missing, process_time};
use crate::place::{BenchFolder, cannot_make, this_program};

/// Underseal with the cipher, the reference of all comparisons.
pub(super) const OURS: &str = "underseal, 4 KiB sectors";
/// The bare transport.
pub(super) const MEMORY: &str = "fuser, memory, no cipher";
pub(super) const NBDFUSE: &str = "nbdfuse, qemu-nbd luks";
pub(super) const DAEMON: &str = "qemu-storage-daemon luks";
/// Ours without io_uring.
pub(super) const OURS_DEVICE: &str = "underseal, /dev/fuse";
/// Ours of an earlier build, as it serves by default.
const BEFORE: &str = "before, 4 KiB sectors";
const OURS_NULL: &str = "underseal, cipher_null";
const OURS_MEMORY: &str = "underseal, memory, no cipher";
const OURS_MEMORY_DEVICE: &str = "underseal, memory, /dev/fuse";

/// A mounted file until this is dropped.
pub(super) struct MountedPeer {
    pub(super) name: &'static str,
    pub(super) file: PathBuf,
    mount: PathBuf,
    processes: Vec<Child>,
    files: Vec<PathBuf>,
}

impl MountedPeer {
    /// Returns the processor time of its processes.
    pub(super) fn cpu_time(&self) -> Result<Duration, BenchError> {
        self.processes.iter().map(|process| process_time(self.name, process.id())).sum()
    }
}

impl Drop for MountedPeer {
    fn drop(&mut self) {
        let mut unmount = Command::new("fusermount3");
        let _ = unmount.args(["-u", "-q", "-z", "--"]).arg(&self.mount).stderr(Stdio::null()).status();
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        let _ = if self.mount.is_dir() { fs::remove_dir(&self.mount) } else { fs::remove_file(&self.mount) };
    }
}

/// Starts all available servers. Returns them, and why others could not start.
pub(super) fn start(options: &FuseOptions) -> Result<(Vec<MountedPeer>, Vec<String>), BenchError> {
    let place = Mounts {
        options,
        place: BenchFolder::new(&options.turns.underseal, &options.directory, options.size)?,
    };
    let built = &options.turns.underseal;
    if let Some(before) = &options.turns.before {
        let servers = vec![
            place.version(OURS, "early", built)?,
            place.version(OURS_DEVICE, "device", built)?,
            place.version(BEFORE, "before", before)?,
            place.version(BEFORE, "then", before)?,
            place.version(OURS_DEVICE, "late-device", built)?,
            place.version(OURS, "late", built)?,
        ];
        return Ok((servers, Vec::new()));
    }
    let mut servers =
        vec![place.version(OURS, "luks2", built)?, place.version(OURS_DEVICE, "device", built)?];
    servers.push(place.null()?);
    servers.push(place.memory(OURS_MEMORY, "serve-fuse-null", &[])?);
    servers.push(place.memory(OURS_MEMORY_DEVICE, "serve-fuse-null", &["--no-io-uring"])?);
    servers.push(place.memory(MEMORY, "serve-fuse-memory", &[])?);
    let mut left_out = Vec::new();
    for (name, peer) in [(NBDFUSE, place.nbdfuse()), (DAEMON, place.daemon())] {
        match peer {
            Ok(server) => servers.push(server),
            Err(e) => left_out.push(format!("{name}: left out: {e}")),
        }
    }
    Ok((servers, left_out))
}

struct Mounts<'a> {
    options: &'a FuseOptions,
    place: BenchFolder,
}

impl Mounts<'_> {
    fn mounted(&self, mut open: Command, file: &Path) -> Command {
        open.arg("--fuse").arg(file).arg("--fuse-threads").arg(self.options.threads.to_string());
        open
    }

    /// Starts a build of ours over an image with the name `stem`.
    fn version(&self, name: &'static str, stem: &str, underseal: &Path) -> Result<MountedPeer, BenchError> {
        let (image, file) = (self.place.luks2(stem, "4096")?, self.file(stem)?);
        let mut open = self.mounted(self.place.open_with(underseal, &image), &file);
        if name == OURS_DEVICE {
            open.arg("--fuse-no-io-uring");
        }
        self.serve(name, vec![open], file.clone(), file, vec![image])
    }

    fn null(&self) -> Result<MountedPeer, BenchError> {
        let (image, file) = (self.place.image("null.img")?, self.file("null")?);
        let open = self.mounted(self.place.open_null(&image), &file);
        self.serve(OURS_NULL, vec![open], file.clone(), file, vec![image])
    }

    fn memory(&self, name: &'static str, verb: &str, options: &[&str]) -> Result<MountedPeer, BenchError> {
        let file = self.file(&[&[verb], options].concat().join(""))?;
        let mut serve = this_program()?;
        serve.args([verb, "--size", &self.options.size.to_string()]).args(options).arg("--fuse").arg(&file);
        serve.args(["--threads", &self.options.threads.to_string()]);
        self.serve(name, vec![serve], file.clone(), file, Vec::new())
    }

    fn nbdfuse(&self) -> Result<MountedPeer, BenchError> {
        let (image, socket) = (self.place.luks1("qemu-nbd")?, self.place.path("sock"));
        let folder = self.place.path("nbdfuse");
        fs::create_dir(&folder).map_err(|e| cannot_make(&folder, e))?;
        let mut serve = Command::new("qemu-nbd");
        serve.args(["--persistent", "--shared=8", "--cache=writeback", "--aio=threads", "--object"]);
        let luks = format!("driver=luks,key-secret=key,file.driver=file,file.filename={}", image.display());
        serve.arg(self.place.secret()).arg("--image-opts").arg(luks);
        serve.arg("--socket").arg(&socket);
        let mut mount = Command::new("nbdfuse");
        let file = folder.join("nbd");
        mount.arg(&file).arg(format!("nbd+unix:///?socket={}", socket.display()));
        self.serve(NBDFUSE, vec![serve, mount], folder, file, vec![image, socket])
    }

    fn daemon(&self) -> Result<MountedPeer, BenchError> {
        let (image, file) = (self.place.luks1("daemon")?, self.file("daemon")?);
        let mut serve = Command::new("qemu-storage-daemon");
        serve.arg("--object").arg(self.place.secret()).arg("--blockdev");
        serve.arg(format!("driver=file,node-name=file,filename={}", image.display())).arg("--blockdev");
        serve.arg("driver=luks,node-name=luks,file=file,key-secret=key").arg("--export");
        serve.arg(format!("type=fuse,id=fuse,node-name=luks,writable=on,mountpoint={}", file.display()));
        self.serve(DAEMON, vec![serve], file.clone(), file, vec![image])
    }

    /// An empty file to mount over.
    fn file(&self, name: &str) -> Result<PathBuf, BenchError> {
        let file = self.place.path(name);
        File::create(&file).map_err(|e| cannot_make(&file, e))?;
        Ok(file)
    }

    /// Starts the commands in order and waits until the file has its size.
    fn serve(
        &self,
        name: &'static str,
        commands: Vec<Command>,
        mount: PathBuf,
        file: PathBuf,
        files: Vec<PathBuf>,
    ) -> Result<MountedPeer, BenchError> {
        let mut server = MountedPeer { name, file, mount, processes: Vec::new(), files };
        let last = commands.len() - 1;
        for (i, mut command) in commands.into_iter().enumerate() {
            command.stdin(Stdio::null()).stdout(Stdio::null());
            server.processes.push(command.spawn().map_err(|e| missing(&command, e))?);
            let sockets = server.files.iter().filter(|file| file.extension().is_some_and(|e| e == "sock"));
            let sockets: Vec<PathBuf> = sockets.cloned().collect();
            let size = self.options.size;
            wait_until(&mut server, |server| {
                if i < last {
                    return sockets.iter().all(|socket| socket.exists());
                }
                fs::metadata(&server.file).is_ok_and(|file| file.len() >= size)
            })?;
        }
        Ok(server)
    }
}

fn wait_until(server: &mut MountedPeer, ready: impl Fn(&MountedPeer) -> bool) -> Result<(), BenchError> {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ready(server) {
        let ended = server.processes.iter_mut().find_map(|process| process.try_wait().ok().flatten());
        if let Some(status) = ended {
            return Err(BenchError::new(format!("{} ended with {status} before it served", server.name)));
        }
        if Instant::now() > deadline {
            return Err(BenchError::new(format!("{} did not begin to serve within 30 s", server.name)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Mounts `size` bytes of memory without a cipher as the file `path`, with our server, until it is
/// unmounted.
///
/// # Errors
/// When it cannot be mounted.
pub fn serve_null_memory(size: u64, path: &Path, threads: u16, io_uring: bool) -> Result<(), BenchError> {
    let failed = |e: Box<dyn std::error::Error + Send + Sync>| BenchError::because("cannot serve memory", e);
    let work = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let cipher = build(&"cipher_null-ecb".parse()?, &Key::new(&[])?, SectorSize::S4096)?;
        let volume = Volume::new(vec![Segment::stored(0, size, 0, 0, cipher)])?;
        let mapping = Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(size)))?.with_bytes());
        let config = FuseConfig { threads, io_uring, ..FuseConfig::default() };
        Ok(FuseServer::mount(mapping, &MountPoint::new(path)?, &config)?.run()?)
    };
    work().map_err(failed)
}
