//! A real kernel as an ordinary process: User Mode Linux with the host's files as its root (`guest.py` is its first
//! process), and only a test's own folder writable.

use std::fs;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::mounts::Mount;
use super::tools::missing;
use super::volume::text;
use super::{Scratch, tool};

const KERNEL: &str = "/usr/bin/linux.uml";
/// A boot takes 2 to 3 seconds, a case half a second, where nothing else runs.
const LIMIT: Duration = Duration::from_secs(600);
/// The guest's memory in MiB: a file in memory here.
const MEMORY: u64 = 384;

/// Scripts for the guest's shell, run one after the other in the folder.
pub(crate) struct Guest<'s> {
    scratch: &'s Scratch,
    cases: Vec<String>,
    modules: &'static [&'static str],
}

impl<'s> Guest<'s> {
    pub(crate) fn new(scratch: &'s Scratch) -> Self {
        Self::with_modules(scratch, &[])
    }

    /// With more of the kernel's modules than those of dm-crypt.
    pub(crate) fn with_modules(scratch: &'s Scratch, modules: &'static [&'static str]) -> Self {
        Self { scratch, cases: Vec::new(), modules }
    }

    /// Adds a script. Every command in it must succeed.
    pub(crate) fn case(&mut self, name: &str, script: &str) {
        self.scratch.file(&format!("{name}.sh"), script.as_bytes());
        self.cases.push(name.into());
    }

    /// Boots, runs the cases, and fails with the output of each one that failed.
    pub(crate) fn boot(self) {
        self.scratch.file("cases", self.cases.join("\n").as_bytes());
        let init = self.scratch.file("guest.py", include_bytes!("guest.py"));
        let console = self.scratch.path("console");
        let memory = memory(self.scratch);
        let mut command = tool(KERNEL);
        command
            .arg(format!("mem={MEMORY}M"))
            .args(["rootfstype=hostfs", "rootflags=/", "ro", "quiet", "loglevel=3"])
            .args(["con=null", "con0=null,fd:1", "ssl=null", "init=/usr/bin/python3", "--"])
            .args([text(&init), text(self.scratch.folder())])
            .args(self.modules)
            .env("TMPDIR", memory.as_ref().map_or(Path::new(SHARED), Mount::directory))
            // Sockets of its own.
            .env("HOME", self.scratch.folder())
            .stdout(File::create(&console).unwrap())
            .stderr(Stdio::null())
            // The kernel and the guest's processes are one group, so that all can be ended.
            .process_group(0);
        let mut kernel = command.spawn().unwrap_or_else(|e| panic!("{}", missing(&command, &e)));
        let started = Instant::now();
        while kernel.try_wait().unwrap().is_none() {
            if started.elapsed() > LIMIT {
                let _ = kill_process_group(Pid::from_child(&kernel), Signal::KILL);
                let _ = kernel.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("{} cases in the guest: {:?}", self.cases.len(), started.elapsed());
        let mut failures = String::new();
        for case in &self.cases {
            let read = |what: &str| {
                let path = self.scratch.path(&format!("{case}.{what}"));
                fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
            };
            if read("status").trim() != "0" {
                failures += &format!("\n== {case}: status {:?}\n{}", read("status"), read("log"));
            }
        }
        let console = fs::read(console).unwrap_or_default();
        assert!(failures.is_empty(), "{failures}\n== console\n{}", String::from_utf8_lossy(&console));
    }
}

/// Where memory is a file on all systems.
const SHARED: &str = "/dev/shm";

/// A place of its own for the guest's memory, where the one for all has no room for those of all tests: containers have
/// 64 MiB, and a guest that goes beyond that dies.
fn memory(scratch: &Scratch) -> Option<Mount> {
    let shared = rustix::fs::statvfs(SHARED).map_or(0, |place| (place.f_bavail * place.f_frsize) >> 20);
    if shared >= 4 * MEMORY {
        return None;
    }
    if rustix::process::geteuid().is_root() {
        return Some(Mount::tmpfs(&scratch.path("memory"), (MEMORY + 8) << 20));
    }
    assert!(shared >= MEMORY, "{SHARED} has room for {shared} MiB of a guest's {MEMORY}");
    None
}
