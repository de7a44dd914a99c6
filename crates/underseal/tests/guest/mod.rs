//! A whole machine in software, with the host's files as its root, of one of two makes.
//!
//! ```text
//!   QEMU              boots a Debian kernel that has ublk, dm-crypt, null_blk and virtio
//!   User Mode Linux   a Debian kernel that is an ordinary program: dm-crypt, dm-integrity, eCryptfs
//!                     and no hardware; up in a second, and programs in it run as fast as here;
//!                     started with xstate.c, for processors with AMX
//!
//!   scripts/guest-kernel   the kernels, their modules and the first root with `init`, made once
//!        |
//!   init        takes the host's files by 9p: all read-only, but the test's own folder (guest.sh
//!        |      does so with User Mode Linux)
//!        |
//!   guest.sh    loads modules, runs the folder's tasks one after the other, turns the machine off
//!        |
//!   NAME.sh     a task: a shell script in the folder   ->   NAME.log, NAME.status
//! ```
//!
//! A file that one side makes in the folder the other sees at once, under the same path: so they
//! can wait for each other while the machine runs ([`Machine::wait_for`]; `until [ -e FILE ]; do
//! sleep 0.1; done`). In the guest, /run, /mnt and /dev/shm are its own memory. There is no network
//! and no udev. QEMU's machine is some ten times slower than the host.

use std::fs;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::support::tools::{missing, within};
use crate::support::volume::text;
use crate::support::{Scratch, tool};

const QEMU: &str = "qemu-system-x86_64";

/// The release of `scripts/guest-kernel` that stands for User Mode Linux.
const UML: &str = "uml";

/// A boot takes some 12 seconds where nothing else runs.
const BOOT: Duration = Duration::from_secs(300);

/// How long a task may take, if it does not say.
const TASK: Duration = Duration::from_secs(300);

/// The guest's memory. A test that adds a memory backend makes it this size.
pub(crate) const MEMORY: &str = "2G";

/// For [`Guest::hardware`], in tests that need concurrency: everything else takes a third less time
/// on one processor.
pub(crate) const TWO_PROCESSORS: [&str; 2] = ["-smp", "2"];

/// The kernel's own tests of modules, and all that is slow to load, stay out. `dm_crypt` and
/// `ecryptfs` need keys of the kernel's keyring, which are encrypted by `cbc` and `hmac`.
const MODULES: [&str; 10] =
    ["loop", "ext4", "dm_mod", "aesni_intel", "cbc", "hmac", "xts", "essiv", "dm_crypt", "algif_skcipher"];

/// Options of a kernel under emulation, which save a fifth of a boot: no protection against the
/// guest's programs, no tests of its ciphers, no security modules that no test has rules for. Its
/// timer may tick late. `norandmaps` takes a sixth off all that follows, with two processors a
/// third: QEMU translates a program again when it starts at another address.
const LIGHT: &str = "mitigations=off nokaslr norandmaps init_on_alloc=0 cryptomgr.notests=1 \
                     no_timer_check lsm=landlock audit=0";

/// A machine that is put together: its tasks, its modules, its hardware.
pub(crate) struct Guest<'s> {
    scratch: &'s Scratch,
    kernel: PathBuf,
    is_uml: bool,
    tasks: Vec<(String, Duration)>,
    modules: Vec<String>,
    hardware: Vec<String>,
}

impl<'s> Guest<'s> {
    pub(crate) fn new(scratch: &'s Scratch) -> Self {
        let modules = MODULES.map(String::from).into();
        let (tasks, hardware) = (Vec::new(), Vec::new());
        Self { scratch, kernel: kernel(""), is_uml: false, tasks, modules, hardware }
    }

    /// A guest for tasks that need no hardware and no ublk: User Mode Linux where it comes up, else
    /// QEMU. `UNDERSEAL_GUEST=qemu` tries them with QEMU's newer kernel and its code for x86-64.
    pub(crate) fn without_hardware(scratch: &'s Scratch) -> Self {
        let mut guest = Self::new(scratch);
        let wants_qemu = std::env::var_os("UNDERSEAL_GUEST").is_some_and(|guest| guest == "qemu");
        if !cfg!(target_arch = "x86_64") || wants_qemu {
            return guest;
        }
        let uml = kernel(UML);
        if uml.join("boots").exists() {
            guest.kernel = uml;
            guest.is_uml = true;
        } else {
            eprintln!(
                "User Mode Linux does not come up on this machine, says scripts/guest-kernel uml: QEMU"
            );
        }
        guest
    }

    /// Boots another Debian release's kernel. User Mode Linux is bookworm's.
    pub(crate) fn under(mut self, release: &str) -> Self {
        if !(self.is_uml && release == "bookworm") {
            self.kernel = kernel(release);
            self.is_uml = false;
        }
        self
    }

    /// Adds a script for `sh -eux`, run in the folder: every command in it must succeed.
    pub(crate) fn task(&mut self, name: &str, script: &str) {
        self.task_within(name, TASK, script);
    }

    /// Adds a script that may run for `limit`.
    pub(crate) fn task_within(&mut self, name: &str, limit: Duration, script: &str) {
        self.scratch.file(&format!("{name}.sh"), script.as_bytes());
        self.tasks.push((name.into(), limit));
    }

    /// Modules to load before the tasks, each with its parameters: "null_blk nr_devices=0".
    pub(crate) fn modules(&mut self, modules: &[&str]) {
        self.modules.extend(modules.iter().map(ToString::to_string));
    }

    /// More arguments for QEMU.
    pub(crate) fn hardware(&mut self, arguments: &[&str]) {
        self.hardware.extend(arguments.iter().map(ToString::to_string));
    }

    /// Boots, runs the tasks, and fails with the output of each one that failed.
    pub(crate) fn boot(self) {
        self.start().finish();
    }

    /// Boots and returns while the machine runs. It may be called again: the tasks that were done
    /// are done again.
    ///
    /// Software that emulates two processors does not always notice code that the other one has
    /// changed, and Linux changes much of its own as it boots: such a kernel is booted again.
    pub(crate) fn start(&self) -> Machine<'s> {
        let mut machine = self.run();
        for _ in 0..3 {
            if !machine.has_fallen_over() {
                break;
            }
            eprintln!("the guest's kernel took an instruction for another one as it booted: again");
            machine.kill();
            machine = self.run();
        }
        machine
    }

    fn run(&self) -> Machine<'s> {
        let lines = |lines: Vec<String>| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        let tasks = self.tasks.iter().map(|(name, limit)| format!("{name} {}", limit.as_secs()));
        self.scratch.file("tasks", lines(tasks.collect()).as_bytes());
        self.scratch.file("modules", lines(self.modules.clone()).as_bytes());
        self.scratch.file("guest.sh", include_bytes!("guest.sh"));
        for what in ["times", "up"] {
            let _ = fs::remove_file(self.scratch.path(what));
        }
        for (name, _) in &self.tasks {
            for what in ["log", "status"] {
                let _ = fs::remove_file(self.scratch.path(&format!("{name}.{what}")));
            }
        }
        let mut command = self.command();
        let console = File::create(self.scratch.path("console")).unwrap();
        // A group of its own, which is killed with it: User Mode Linux is many processes.
        command.stdout(console.try_clone().unwrap()).stderr(console).process_group(0);
        let has_two_processors = self.hardware.iter().any(|argument| argument == TWO_PROCESSORS[0]);
        let process = if has_two_processors { command.spawn() } else { on_one_processor(|| command.spawn()) };
        let process = process.unwrap_or_else(|e| panic!("{}", missing(&command, &e)));
        Machine { scratch: self.scratch, tasks: self.tasks.clone(), process, started: Instant::now() }
    }

    fn command(&self) -> Command {
        if self.is_uml { self.uml() } else { self.qemu() }
    }

    fn uml(&self) -> Command {
        assert!(self.hardware.is_empty(), "User Mode Linux has no hardware");
        let folder = text(self.scratch.folder());
        let mut command = Command::new(self.kernel.join("linux"));
        command.env("LD_PRELOAD", self.kernel.join("xstate.so"));
        command
            .args(["mem=1G", "rootfstype=hostfs", "rootflags=/", "ro", "init=/bin/sh"])
            .args(["con=null", "con0=null,fd:1", "ssl=null", "quiet", "loglevel=3", "panic=-1"])
            .args([
                format!("FOLDER={folder}"),
                format!("KERNEL={}", text(&self.kernel)),
                "ROOT=hostfs".into(),
            ])
            .args(["--".into(), format!("{folder}/guest.sh")])
            .stdin(Stdio::null());
        command
    }

    fn qemu(&self) -> Command {
        let (folder, kernel) = (text(self.scratch.folder()), &self.kernel);
        let share = |id, path, options| {
            let files = format!("local,id={id},path={path},security_model=none,multidevs=remap{options}");
            ["-fsdev".into(), files, "-device".into(), format!("virtio-9p-pci,fsdev={id},mount_tag={id}")]
        };
        let mut command = tool(QEMU);
        command
            .args(["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"])
            .args(["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", MEMORY])
            .arg("-kernel")
            .arg(kernel.join(if kernel.join("vmlinux").exists() { "vmlinux" } else { "vmlinuz" }))
            .arg("-initrd")
            .arg(kernel.join("initrd"))
            .arg("-append")
            .arg(format!(
                "console=ttyS0 quiet loglevel=3 panic=-1 {LIGHT} FOLDER={folder} KERNEL={}",
                text(kernel)
            ))
            .args(share("host", "/", ",readonly=on"))
            .args(share("folder", folder, ""))
            .args(&self.hardware);
        command
    }
}

/// Runs `start` on one of the processors, and leaves all that it starts there.
///
/// User Mode Linux and its programs wake each other at each call and page fault: on one processor
/// that takes a third of the time, since the host need not wake a second processor. QEMU with one
/// emulated processor gains an eighth.
fn on_one_processor<T>(start: impl FnOnce() -> T) -> T {
    let all = sched_getaffinity(None).unwrap();
    // Tests are processes of their own.
    let nth = std::process::id() % all.count();
    let processor = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor)).nth(nth as usize);
    let mut one = CpuSet::new();
    one.set(processor.unwrap());
    sched_setaffinity(None, &one).unwrap();
    let started = start();
    sched_setaffinity(None, &all).unwrap();
    started
}

/// Where `scripts/guest-kernel` put it, by its release, or without.
fn kernel(release: &str) -> PathBuf {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = || {
        let home = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        home.map(|home| home.join("underseal/guest-kernel"))
    };
    let mut folder = set("UNDERSEAL_GUEST_KERNEL").or_else(cache).unwrap_or_default().into_os_string();
    if !release.is_empty() {
        folder.push(format!("-{release}"));
    }
    let folder = PathBuf::from(folder);
    assert!(
        folder.join("lib").exists(),
        "the guest's kernel is missing in {}: run scripts/setup test, or scripts/guest-kernel {release}",
        folder.display()
    );
    folder
}

/// A machine that runs. It is turned off, if it still runs, when the value goes.
pub(crate) struct Machine<'s> {
    scratch: &'s Scratch,
    tasks: Vec<(String, Duration)>,
    process: Child,
    started: Instant,
}

impl Machine<'_> {
    /// Waits until a task has made this file in the folder.
    pub(crate) fn wait_for(&mut self, file: &str) {
        let path = self.scratch.path(file);
        let limit = self.limit();
        let found = within(limit, || path.exists() || self.process.try_wait().unwrap().is_some());
        if !found || !path.exists() {
            self.kill();
            panic!("{file} did not come after {:?}{}", self.started.elapsed(), self.failures());
        }
    }

    /// Waits until it is up; whether it never comes up, for no fault of its own.
    fn has_fallen_over(&mut self) -> bool {
        let up = self.scratch.path("up");
        let console = || fs::read(self.scratch.path("console")).unwrap_or_default();
        let has_oopsed = || String::from_utf8_lossy(&console()).contains("int3: 0000 [#");
        within(BOOT, || up.exists() || has_oopsed() || self.process.try_wait().unwrap().is_some());
        !up.exists() && has_oopsed()
    }

    /// Pulls the plug.
    pub(crate) fn kill(&mut self) {
        // A process that has ended may have left its number to another one.
        if let Ok(None) = self.process.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        }
        let _ = self.process.wait();
    }

    /// Waits until the machine has turned itself off, and fails with the output of each task that
    /// failed.
    pub(crate) fn finish(mut self) {
        let limit = self.limit();
        if !within(limit, || self.process.try_wait().unwrap().is_some()) {
            self.kill();
        }
        let times = fs::read_to_string(self.scratch.path("times")).unwrap_or_default();
        let times: Vec<_> = times.lines().collect();
        eprintln!("tasks in the guest, and its start: {:?}; {}", self.started.elapsed(), times.join(", "));
        let failures = self.failures();
        assert!(failures.is_empty(), "{failures}");
    }

    fn limit(&self) -> Duration {
        self.tasks.iter().map(|(_, limit)| *limit).sum::<Duration>() + BOOT
    }

    /// The logs of the tasks that did not end well, if there are any, and what the kernel said.
    fn failures(&self) -> String {
        let read = |path: &Path| {
            fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
        };
        let mut failures = String::new();
        for (name, _) in &self.tasks {
            let of = |what: &str| read(&self.scratch.path(&format!("{name}.{what}")));
            if of("status").trim() != "0" {
                failures += &format!("\n== {name}: status {:?}\n{}", of("status").trim(), of("log"));
            }
        }
        if !failures.is_empty() {
            failures += &format!("\n== console\n{}", read(&self.scratch.path("console")));
        }
        failures
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        self.kill();
    }
}
