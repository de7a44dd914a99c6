//! Servers that end without `close`: their loop devices, and the links to these.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::command::common::is_running;
use crate::front::pair::{CHEAP, Open, Pair, all, with_stdin};
use crate::support::mounts::{cannot_mount, skip};
use crate::support::tools::{PATIENCE, children, wait_until};
use crate::support::{output, run, tool};

/// Less than a server waits for users of its file.
const SOON: Duration = Duration::from_secs(20);

fn formatted() -> Pair {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    let words = [&["luksFormat", "-q", "disk"][..], &CHEAP].concat();
    assert!(with_stdin(pair.ours().args(words), "secret\n").status.success());
    pair
}

/// An open volume, its server, and the loop device that its link leads to.
struct Served<'a> {
    open: Open<'a>,
    pid: u32,
    link: PathBuf,
    device: PathBuf,
    sequence: String,
}

impl<'a> Served<'a> {
    fn start(pair: &'a Pair, name: &str) -> Self {
        let open = Open::start(pair, name, &["disk"], "secret\n");
        let mut status = tool(env!("CARGO_BIN_EXE_underseal"));
        let status = run(status.args(["status", "--json", &open.name]));
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let link = Path::new("/dev/mapper").join(&open.name);
        let device = fs::read_link(&link).unwrap();
        let pid = u32::try_from(status["pid"].as_u64().unwrap()).unwrap();
        let mut served = Self { open, pid, link, device, sequence: String::new() };
        served.sequence = served.about("diskseq").unwrap_or_default();
        served
    }

    fn about(&self, what: &str) -> Option<String> {
        let folder = Path::new("/sys/block").join(self.device.file_name().unwrap());
        Some(fs::read_to_string(folder.join(what)).ok()?.trim_end().to_owned())
    }

    /// Whether the loop device still has the volume's file.
    fn is_bound(&self) -> bool {
        let sequence = self.about("diskseq").unwrap_or_default();
        self.about("loop/backing_file").is_some() && sequence == self.sequence
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Kills the server and all of its processes. No command asks for the volume meanwhile: the
    /// first one that finds it dead takes its link away.
    fn kill_all(&self) {
        let helpers = children(self.pid);
        assert!(!helpers.is_empty());
        for helper in helpers {
            kill_process(Pid::from_raw(helper).unwrap(), Signal::KILL).unwrap();
        }
        self.signal(Signal::KILL);
        wait_until("the server is gone", PATIENCE, || !is_running(self.pid));
    }

    fn ours(&self, word: &str) -> (Option<i32>, String) {
        let said = output(self.open.pair.ours().args([word, &self.open.name]));
        (said.status.code(), all(&said))
    }

    fn is_open(&self) -> bool {
        self.ours("status").0 == Some(0)
    }

    /// Nothing of the volume is left.
    #[track_caller]
    fn is_gone(&self, limit: Duration) {
        wait_until("the server has ended", limit, || !self.is_open());
        wait_until("the loop device is released", PATIENCE, || !self.is_bound());
        let record = self.open.plain.with_file_name(format!(".{}.device", self.open.name));
        let left =
            || [&self.link, &self.open.plain, &record].iter().any(|path| fs::symlink_metadata(path).is_ok());
        wait_until("the paths are gone", PATIENCE, || !left());
    }
}

#[test]
fn a_server_takes_its_unused_loop_device_with_it() {
    if let Some(reason) = cannot_mount() {
        return skip("an unused loop device", reason);
    }
    let pair = formatted();
    for how in ["signal", "close", "kill"] {
        let served = Served::start(&pair, "unused");
        // Pages of the device are written while the file is served still.
        fs::write(&served.device, vec![7; 1 << 20]).unwrap();
        match how {
            "signal" => served.signal(Signal::TERM),
            "kill" => served.signal(Signal::KILL),
            _ => {
                let mut close = tool(env!("CARGO_BIN_EXE_underseal"));
                run(close.args(["close", "--timeout", "20", &served.open.name]));
            }
        }
        served.is_gone(SOON);
        let (status, said) = served.ours("close");
        assert_eq!(status, Some(4), "{how}: {said}");
        if how != "kill" {
            let mut read = tool(env!("CARGO_BIN_EXE_underseal"));
            read.args(["read", "-q", "--passphrase-fd", "0"]).arg(pair.folder("ours").join("disk"));
            let read = with_stdin(&mut read, "secret\n").stdout;
            assert!(read[..1 << 20].iter().all(|byte| *byte == 7), "{how}: not all was written");
        }
    }
}

#[test]
fn a_server_that_is_ending_is_seen_and_waited_for() {
    if let Some(reason) = cannot_mount() {
        return skip("an ending server", reason);
    }
    let pair = formatted();
    let served = Served::start(&pair, "ending");
    let held = fs::File::open(&served.device).unwrap();
    served.signal(Signal::TERM);
    wait_until("the link is gone", PATIENCE, || fs::symlink_metadata(&served.link).is_err());
    assert!(served.is_bound() && served.is_open());
    let (status, said) = served.ours("close");
    assert_eq!(status, Some(5), "a program has it open: {said}");
    let again = with_stdin(pair.ours().args(["open", "disk", &served.open.name]), "secret\n");
    assert_eq!(again.status.code(), Some(5), "{}", all(&again));
    drop(held);
    let (status, said) = served.ours("close");
    assert!(status == Some(0) || status == Some(4), "{said}");
    served.is_gone(SOON);
}

#[test]
fn a_link_leads_to_no_device_that_another_file_has() {
    if let Some(reason) = cannot_mount() {
        return skip("another file's loop device", reason);
    }
    let pair = formatted();
    fs::write(pair.folder("ours").join("other"), vec![9; 1 << 20]).unwrap();
    let reuse = |served: &Served| {
        run(tool("losetup").arg("--detach").arg(&served.device));
        wait_until("the device is free", PATIENCE, || !served.is_bound());
        // Where another program was faster the device is another file's, too.
        let other = pair.folder("ours").join("other");
        output(tool("losetup").arg(&served.device).arg(&other)).status.success()
    };
    let give_back = |served: &Served| run(tool("losetup").arg("--detach").arg(&served.device));

    // The volume is open: the link leads to its file.
    let served = Served::start(&pair, "astray");
    let is_other = reuse(&served);
    assert!(served.is_open());
    assert_eq!(fs::read_link(&served.link).unwrap(), served.open.plain);
    let helpers = children(served.pid);
    let (status, said) = served.ours("close");
    assert_eq!(status, Some(0), "{said}");
    // Helpers would take away what a later server of that name leaves, too.
    let run = || helpers.iter().any(|helper| is_running(helper.cast_unsigned()));
    wait_until("its helpers have ended", PATIENCE, || !run());
    assert!(fs::symlink_metadata(&served.link).is_err());
    if is_other {
        assert!(served.about("loop/backing_file").unwrap().ends_with("/other"));
        give_back(&served);
    }

    // The server was killed, with all of its processes.
    for verb in ["status", "close"] {
        let served = Served::start(&pair, "astray");
        served.kill_all();
        assert_eq!(fs::read_link(&served.link).unwrap(), served.device, "which has the dead file");
        let is_other = reuse(&served);
        let (status, said) = served.ours(verb);
        assert_eq!(status, Some(4), "{verb}: {said}");
        assert!(fs::symlink_metadata(&served.link).is_err(), "{verb}");
        served.ours("close");
        if is_other {
            assert!(served.about("loop/backing_file").unwrap().ends_with("/other"), "{verb}");
            give_back(&served);
        }
        served.is_gone(SOON);
    }

    // `close` removes everything that a killed server has left.
    let served = Served::start(&pair, "astray");
    served.kill_all();
    let (status, said) = served.ours("close");
    assert_eq!(status, Some(4), "{said}");
    served.is_gone(SOON);
}

#[test]
fn a_volume_that_is_not_open_has_no_size_to_change() {
    let pair = Pair::new();
    let said = output(pair.ours().args(["resize", "us-absent"]));
    assert_eq!(said.status.code(), Some(4), "{}", all(&said));
    assert!(all(&said).contains("Device us-absent is not active."), "{}", all(&said));
}
