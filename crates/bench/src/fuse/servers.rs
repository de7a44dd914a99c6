//! The servers that are measured, each in processes of its own, each with a mount.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
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
use crate::nbd::{missing, process_time, run};

/// Ours with the cipher: what the others are compared with.
pub(super) const OURS: &str = "underseal, 4 KiB sectors";
/// The bare transport.
pub(super) const MEMORY: &str = "fuser, memory, no cipher";
pub(super) const NBDFUSE: &str = "nbdfuse, qemu-nbd luks";
pub(super) const DAEMON: &str = "qemu-storage-daemon luks";
const OURS_NULL: &str = "underseal, cipher_null";
const OURS_MEMORY: &str = "underseal, memory, no cipher";

/// A mounted file until this is dropped.
pub(super) struct Server {
    pub(super) name: &'static str,
    pub(super) file: PathBuf,
    mount: PathBuf,
    processes: Vec<Child>,
    files: Vec<PathBuf>,
}

impl Server {
    /// The processor time that its processes have used.
    pub(super) fn cpu_time(&self) -> Result<Duration, BenchError> {
        self.processes.iter().map(|process| process_time(self.name, process.id())).sum()
    }
}

impl Drop for Server {
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

/// All that can be started, and why others cannot.
pub(super) fn start(options: &FuseOptions) -> Result<(Vec<Server>, Vec<String>), BenchError> {
    let place = Place { options, passphrase: options.directory.join("underseal-bench-fuse.pass") };
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&place.passphrase)
        .and_then(|mut file| file.write_all(b"benchmark"))
        .map_err(|e| BenchError::because(format!("cannot write {}", place.passphrase.display()), e))?;
    let mut servers = vec![place.ours()?, place.null()?];
    servers.push(place.memory(OURS_MEMORY, "serve-fuse-null")?);
    servers.push(place.memory(MEMORY, "serve-fuse-memory")?);
    let mut left_out = Vec::new();
    for (name, peer) in [(NBDFUSE, place.nbdfuse()), (DAEMON, place.daemon())] {
        match peer {
            Ok(server) => servers.push(server),
            Err(e) => left_out.push(format!("{name}: left out: {e}")),
        }
    }
    let _ = fs::remove_file(&place.passphrase);
    Ok((servers, left_out))
}

struct Place<'a> {
    options: &'a FuseOptions,
    passphrase: PathBuf,
}

impl Place<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.options.directory.join(format!("underseal-bench-fuse-{}.{name}", std::process::id()))
    }

    fn underseal(&self) -> Command {
        let mut command = Command::new(&self.options.underseal);
        command.arg("--quiet");
        command
    }

    fn open(&self, image: &Path, file: &Path) -> Command {
        let mut open = self.underseal();
        open.arg("open").arg(image).arg("--passphrase-file").arg(&self.passphrase).arg("--fuse").arg(file);
        open.arg("--fuse-threads").arg(self.options.threads.to_string());
        open
    }

    fn ours(&self) -> Result<Server, BenchError> {
        let (image, file) = (self.path("luks2.img"), self.file("luks2")?);
        let mut format = self.underseal();
        // The header comes on top of the volume.
        format.arg("format").arg(&image).args(["--size", &(self.options.size + (16 << 20)).to_string()]);
        format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--passphrase-file"]);
        run(format.arg(&self.passphrase))?;
        self.serve(OURS, vec![self.open(&image, &file)], file.clone(), file, vec![image])
    }

    fn null(&self) -> Result<Server, BenchError> {
        let (image, file) = (self.image("null.img")?, self.file("null")?);
        let mut open = self.open(&image, &file);
        open.args([
            "--type",
            "plain",
            "--cipher",
            "cipher_null-ecb",
            "--allow-null",
            "--sector-size",
            "4096",
        ]);
        self.serve(OURS_NULL, vec![open], file.clone(), file, vec![image])
    }

    fn memory(&self, name: &'static str, verb: &str) -> Result<Server, BenchError> {
        let file = self.file(verb)?;
        let mut serve = self.underseal();
        serve.args(["bench", verb, "--size", &self.options.size.to_string(), "--fuse"]).arg(&file);
        serve.args(["--threads", &self.options.threads.to_string()]);
        self.serve(name, vec![serve], file.clone(), file, Vec::new())
    }

    fn nbdfuse(&self) -> Result<Server, BenchError> {
        let (image, socket) = (self.luks1("qemu-nbd")?, self.path("sock"));
        let folder = self.path("nbdfuse");
        fs::create_dir(&folder).map_err(|e| cannot_make(&folder, e))?;
        let mut serve = Command::new("qemu-nbd");
        serve.args(["--persistent", "--shared=8", "--cache=writeback", "--aio=threads", "--object"]);
        serve.arg(self.secret()).arg("--image-opts").arg(self.luks_options(&image));
        serve.arg("--socket").arg(&socket);
        let mut mount = Command::new("nbdfuse");
        let file = folder.join("nbd");
        mount.arg(&file).arg(format!("nbd+unix:///?socket={}", socket.display()));
        self.serve(NBDFUSE, vec![serve, mount], folder, file, vec![image, socket])
    }

    fn daemon(&self) -> Result<Server, BenchError> {
        let (image, file) = (self.luks1("daemon")?, self.file("daemon")?);
        let mut serve = Command::new("qemu-storage-daemon");
        serve.arg("--object").arg(self.secret()).arg("--blockdev");
        serve.arg(format!("driver=file,node-name=file,filename={}", image.display())).arg("--blockdev");
        serve.arg("driver=luks,node-name=luks,file=file,key-secret=key").arg("--export");
        serve.arg(format!("type=fuse,id=fuse,node-name=luks,writable=on,mountpoint={}", file.display()));
        self.serve(DAEMON, vec![serve], file.clone(), file, vec![image])
    }

    /// An empty file to mount over.
    fn file(&self, name: &str) -> Result<PathBuf, BenchError> {
        let file = self.path(name);
        File::create(&file).map_err(|e| cannot_make(&file, e))?;
        Ok(file)
    }

    fn image(&self, name: &str) -> Result<PathBuf, BenchError> {
        let image = self.path(name);
        let made = File::create(&image).and_then(|file| file.set_len(self.options.size));
        made.map_err(|e| cannot_make(&image, e))?;
        Ok(image)
    }

    fn secret(&self) -> String {
        format!("secret,id=key,file={}", self.passphrase.display())
    }

    fn luks_options(&self, image: &Path) -> String {
        format!("driver=luks,key-secret=key,file.driver=file,file.filename={}", image.display())
    }

    /// A LUKS1 image of qemu's with aes-xts-plain64 and a 512-bit key.
    fn luks1(&self, stem: &str) -> Result<PathBuf, BenchError> {
        let image = self.path(&format!("{stem}-luks1.img"));
        let mut create = Command::new("qemu-img");
        create
            .args(["create", "-q", "-f", "luks", "--object"])
            .arg(self.secret())
            .args(["-o", "key-secret=key,iter-time=10,cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64"]);
        run(create.arg(&image).arg(self.options.size.to_string()))?;
        Ok(image)
    }

    /// Starts the commands one after the other and waits until the file has its size.
    fn serve(
        &self,
        name: &'static str,
        commands: Vec<Command>,
        mount: PathBuf,
        file: PathBuf,
        files: Vec<PathBuf>,
    ) -> Result<Server, BenchError> {
        let mut server = Server { name, file, mount, processes: Vec::new(), files };
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

fn wait_until(server: &mut Server, ready: impl Fn(&Server) -> bool) -> Result<(), BenchError> {
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

fn cannot_make(path: &Path, e: std::io::Error) -> BenchError {
    BenchError::because(format!("cannot make {}", path.display()), e)
}

/// Mounts `size` bytes of memory without a cipher as the file `path`, with our server, until it is unmounted.
///
/// # Errors
/// When it cannot be mounted.
pub fn serve_null_memory(size: u64, path: &Path, threads: u16) -> Result<(), BenchError> {
    let failed = |e: Box<dyn std::error::Error + Send + Sync>| BenchError::because("cannot serve memory", e);
    let work = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let cipher = build(&"cipher_null-ecb".parse()?, &Key::new(&[])?, SectorSize::S4096)?;
        let volume = Volume::new(vec![Segment::stored(0, size, 0, 0, cipher)])?;
        let mapping = Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(size)))?);
        let config = FuseConfig { threads, ..FuseConfig::default() };
        Ok(FuseServer::mount(mapping, &MountPoint::new(path)?, &config)?.run()?)
    };
    work().map_err(failed)
}
