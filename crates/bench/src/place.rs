//! The shared parts of measured servers: images in memory, and processes that end with the
//! measurement.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::nbd::{NbdError as BenchError, missing, process_time, run};

/// The number of attempts with qemu-img.
const TRIES: u32 = 20;

/// The place of images, and the passphrase of all of them, removed on drop.
pub(crate) struct BenchFolder {
    underseal: PathBuf,
    directory: PathBuf,
    size: u64,
    passphrase: PathBuf,
}

impl BenchFolder {
    /// Returns a folder for images of `size` bytes in `directory`, and the command of our server.
    pub(crate) fn new(underseal: &Path, directory: &Path, size: u64) -> Result<Self, BenchError> {
        let place = Self {
            underseal: underseal.into(),
            directory: directory.into(),
            size,
            passphrase: directory.join(format!("underseal-bench-{}.pass", std::process::id())),
        };
        File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&place.passphrase)
            .and_then(|mut file| file.write_all(b"benchmark"))
            .map_err(|e| cannot_make(&place.passphrase, e))?;
        Ok(place)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("underseal-bench-{}.{name}", std::process::id()))
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn passphrase(&self) -> &Path {
        &self.passphrase
    }

    pub(crate) fn underseal(&self) -> Command {
        let mut command = Command::new(&self.underseal);
        command.arg("--quiet");
        command
    }

    /// Returns the command that opens an image of ours.
    pub(crate) fn open(&self, image: &Path) -> Command {
        self.open_with(&self.underseal, image)
    }

    /// Returns the command of another build that opens an image of ours.
    pub(crate) fn open_with(&self, underseal: &Path, image: &Path) -> Command {
        let mut open = Command::new(underseal);
        open.args(["--quiet", "open"]).arg(image).arg("--passphrase-file").arg(&self.passphrase);
        open
    }

    /// Returns the command that opens an image without a cipher.
    pub(crate) fn open_null(&self, image: &Path) -> Command {
        let mut open = self.open(image);
        open.args([
            "--type",
            "plain",
            "--cipher",
            "cipher_null-ecb",
            "--allow-null",
            "--sector-size",
            "4096",
        ]);
        open
    }

    /// Makes a LUKS2 image of ours.
    pub(crate) fn luks2(&self, stem: &str, sector: &str) -> Result<PathBuf, BenchError> {
        self.luks2_with(stem, sector, &[])
    }

    /// Makes the same with more options.
    pub(crate) fn luks2_with(&self, stem: &str, sector: &str, how: &[&str]) -> Result<PathBuf, BenchError> {
        let image = self.path(&format!("{stem}.img"));
        // The header comes on top of the volume, and so do the integrity layer's tags and journal.
        let beside = if how.is_empty() { 0 } else { self.size / 32 };
        let size = self.size + beside + (16 << 20);
        let mut format = self.underseal();
        format.arg("format").arg(&image).args(["--size", &size.to_string(), "--sector-size", sector]);
        format.args(how);
        format.args(["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--passphrase-file"]);
        run(format.arg(&self.passphrase))?;
        Ok(image)
    }

    /// Makes an image without a header.
    pub(crate) fn image(&self, name: &str) -> Result<PathBuf, BenchError> {
        let image = self.path(name);
        let made = File::create(&image).and_then(|file| file.set_len(self.size));
        made.map_err(|e| cannot_make(&image, e))?;
        Ok(image)
    }

    /// Makes a LUKS1 image of qemu's with aes-xts-plain64 and a 512-bit key.
    pub(crate) fn luks1(&self, stem: &str) -> Result<PathBuf, BenchError> {
        let image = self.path(&format!("{stem}-luks1.img"));
        let mut create = Command::new("qemu-img");
        create
            .args(["create", "-q", "-f", "luks", "--object"])
            .arg(self.secret())
            .args(["-o", "key-secret=key,iter-time=10,cipher-alg=aes-256,cipher-mode=xts,ivgen-alg=plain64"]);
        create.arg(&image).arg(self.size.to_string());
        // qemu-img 7.2 fails at random when a key derivation takes less time than the clock's
        // resolution.
        (0..TRIES).find_map(|_| run(&mut create).ok()).map_or_else(|| run(&mut create), Ok)?;
        Ok(image)
    }

    /// Returns the passphrase for qemu's programs.
    pub(crate) fn secret(&self) -> String {
        format!("secret,id=key,file={}", self.passphrase.display())
    }
}

impl Drop for BenchFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.passphrase);
    }
}

/// Returns the calling program, which also serves as the server without a cipher.
pub(crate) fn this_program() -> Result<Command, BenchError> {
    let path = std::env::current_exe();
    Ok(Command::new(path.map_err(|e| BenchError::because("this program's own file is not to be found", e))?))
}

pub(crate) fn cannot_make(path: &Path, e: std::io::Error) -> BenchError {
    BenchError::because(format!("cannot make {}", path.display()), e)
}

/// A server on a Unix socket that runs until it is dropped, or in its turns only, with its files.
pub(crate) struct SocketServer {
    pub(crate) name: &'static str,
    pub(crate) socket: PathBuf,
    process: RefCell<Option<Child>>,
    /// The command of a server that runs in its turns only, and the passphrase's place.
    command: Option<(RefCell<Command>, Rc<BenchFolder>)>,
    files: Vec<PathBuf>,
    /// The server of its volume's data.
    below: Option<Box<SocketServer>>,
}

/// A server's turn to be measured. It runs until this is dropped.
pub(crate) struct ServerTurn<'a>(&'a SocketServer);

impl SocketServer {
    /// Starts the server and waits until it accepts connections.
    pub(crate) fn start(
        name: &'static str,
        command: &mut Command,
        socket: PathBuf,
        files: Vec<PathBuf>,
    ) -> Result<Self, BenchError> {
        let server = Self { name, socket, process: RefCell::default(), command: None, files, below: None };
        server.launch(command)?;
        Ok(server)
    }

    /// Returns a server that runs in its turns only, so that several have the same image.
    pub(crate) fn in_turns(
        name: &'static str,
        command: Command,
        folder: &Rc<BenchFolder>,
        socket: PathBuf,
        files: Vec<PathBuf>,
    ) -> Self {
        let command = Some((RefCell::new(command), Rc::clone(folder)));
        Self { name, socket, process: RefCell::default(), command, files, below: None }
    }

    fn launch(&self, command: &mut Command) -> Result<(), BenchError> {
        let name = self.name;
        // A server that was killed leaves its socket.
        let _ = std::fs::remove_file(&self.socket);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().map_err(|e| missing(command, e))?;
        let process = self.process.borrow_mut().insert(process).id();
        let deadline = Instant::now() + Duration::from_secs(30);
        while UnixStream::connect(&self.socket).is_err() {
            if let Some(Ok(Some(status))) = self.process.borrow_mut().as_mut().map(Child::try_wait) {
                return Err(BenchError::new(format!("{name} ended with {status} before it served")));
            }
            if Instant::now() > deadline {
                let context = format!("{name} (process {process}) did not begin to serve within 30 s");
                return Err(BenchError::new(context));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Begins the server's turn. A server that always runs has nothing to do.
    pub(crate) fn begin_turn(&self) -> Result<ServerTurn<'_>, BenchError> {
        if let Some((command, _)) = &self.command {
            self.launch(&mut command.borrow_mut())?;
        }
        Ok(ServerTurn(self))
    }

    /// Keeps the server of its volume's data.
    pub(crate) fn over(mut self, below: Self) -> Self {
        self.below = Some(Box::new(below));
        self
    }

    /// Returns the processor time of the server.
    pub(crate) fn cpu_time(&self) -> Result<Duration, BenchError> {
        let process = self.process.borrow().as_ref().map(Child::id);
        process_time(self.name, process.ok_or_else(|| BenchError::new(format!("{} is off", self.name)))?)
    }

    fn kill(&self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for ServerTurn<'_> {
    fn drop(&mut self) {
        if self.0.command.is_some() {
            self.0.kill();
        }
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        self.kill();
        for file in self.files.iter().chain([&self.socket]) {
            let _ = std::fs::remove_file(file);
        }
    }
}
