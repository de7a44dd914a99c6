//! The command lines of programs that call cryptsetup and read what it prints: drivers of
//! Kubernetes volumes and Ceph's tools. Both programs run each line.
//!
//! In a line `DEV` is a loop device, `NAME` the volume, `old`, `new` and `bad` are key files.
//! `--iter-time 1` at the end of a line is this test's, to save time.

use std::process::{Command, Output};

use crate::dm::mapper::Mapper;
use crate::front::pair::{Pair, all, with_stdin};
use crate::support::mounts::Loop;
use crate::support::{run, tool};

const MIB: u64 = 1 << 20;

/// A step of a driver.
enum Step {
    /// A line with its stdin, the status that it ends with, and a text that the driver looks for,
    /// on stdout or stderr.
    Line(&'static str, &'static str, i32, &'static str),
    /// The device below gets this many bytes.
    Grow(u64),
    /// The open volume has this many bytes.
    Size(u64),
}

use Step::{Grow, Line, Size};

/// ceph-csi: LUKS functions of internal/util, called as internal/rbd does. A key is changed by way
/// of slot 1, and a slot that is full is known by its message.
const CEPH_CSI: &[Step] = &[
    Line("status NAME", "", 4, ""),
    Line(
        "-q luksFormat --type luks2 --hash sha256 --pbkdf-memory 32768 DEV -d /dev/stdin --iter-time 1",
        "old pass",
        0,
        "",
    ),
    Line("luksOpen DEV NAME --disable-keyring -d /dev/stdin", "bad pass", 2, ""),
    Line("luksOpen DEV NAME --disable-keyring -d /dev/stdin", "old pass", 0, ""),
    Line("luksOpen DEV NAME --disable-keyring -d /dev/stdin", "old pass", 5, ""),
    Line("status NAME", "", 0, "/dev/mapper/NAME is active"),
    Line("status NAME", "", 0, "device:  DEV\n"),
    Grow(96 * MIB),
    Line("resize NAME", "", 0, ""),
    Size(80 * MIB),
    Line("--verbose --key-file=old --key-slot=1 luksAddKey DEV old --iter-time 1", "", 0, ""),
    Line("--verbose --key-file=old --key-slot=0 luksAddKey DEV new", "", 1, "Key slot 0 is full"),
    Line(
        "--verbose --key-file=new --key-slot=0 luksChangeKey DEV new",
        "",
        2,
        "No key available with this passphrase.",
    ),
    Line("--verbose --key-file=old luksKillSlot DEV 0", "", 0, ""),
    Line("--verbose --key-file=old luksKillSlot DEV 0", "", 1, "Keyslot 0 is not active."),
    Line("--verbose --key-file=bad --key-slot=0 luksAddKey DEV new", "", 2, ""),
    Line("--verbose --key-file=old --key-slot=0 luksAddKey DEV new --iter-time 1", "", 0, ""),
    Line("--verbose --key-file=new --key-slot=0 luksChangeKey DEV new --iter-time 1", "", 0, ""),
    Line("--verbose --key-file=new luksKillSlot DEV 1", "", 0, ""),
    Line("luksClose NAME", "", 0, ""),
    Line("luksClose NAME", "", 4, ""),
];

/// Longhorn: csi/crypto of longhorn-manager, ns/crypto of go-common-libs.
const LONGHORN: &[Step] = &[
    Line("--version", "", 0, "cryptsetup 2."),
    Line("isLuks DEV", "", 1, ""),
    Line(
        "-q luksFormat --type luks2 --cipher aes-xts-plain64 --hash sha256 --key-size 256 --pbkdf argon2i \
         --pbkdf-force-iterations 4 --pbkdf-memory 32768 DEV -d -",
        "pass",
        0,
        "",
    ),
    Line("isLuks DEV", "", 0, ""),
    Line("luksOpen DEV NAME -d -", "pass", 0, ""),
    Line("status NAME", "", 0, "/dev/mapper/NAME is active"),
    Line("status NAME", "", 0, "device:  DEV\n"),
    Grow(128 * MIB),
    Line("resize NAME", "pass", 0, ""),
    Size(112 * MIB),
    Line("luksClose NAME", "", 0, ""),
    Line("status NAME", "", 4, ""),
];

/// ceph-volume, util/encryption.py; then what Rook does to the same device.
const CEPH: &[Step] = &[
    Line(
        "--batch-mode --key-size 512 --key-file - luksFormat DEV --pbkdf-memory 32768 --iter-time 1",
        "old pass",
        0,
        "",
    ),
    Line("--key-size 512 --key-file - --allow-discards luksOpen DEV NAME", "old pass", 0, ""),
    Line("status /dev/mapper/NAME", "", 0, "  type:    LUKS2\n"),
    Line("remove /dev/mapper/NAME", "", 0, ""),
    Line("--key-file - --allow-discards open DEV NAME --type plain --key-size 256", "any", 0, ""),
    Line("status /dev/mapper/NAME", "", 0, "  type:    PLAIN\n"),
    Line("remove /dev/mapper/NAME", "", 0, ""),
    Line("config DEV --subsystem ceph_fsid=a-b --label pvc_name=set1", "", 0, ""),
    Line("luksDump DEV", "", 0, "ceph_fsid=a-b\n"),
    Line("luksDump DEV", "", 0, "Version:       \t2\n"),
    Line("luksOpen --verbose --disable-keyring --allow-discards --key-file old DEV NAME", "", 0, ""),
    Line("--verbose luksClose NAME", "", 0, ""),
    Line("--verbose luksClose NAME", "", 4, "Command failed with code -4"),
];

/// Drivers of cloud disks (the one of Linode's and its kin), and ploop's script.
const CLOUDS: &[Step] = &[
    Line(
        "-v --batch-mode --cipher aes-xts-plain64 --key-size 512 --key-file old luksFormat DEV \
         --pbkdf-memory 32768 --iter-time 1",
        "",
        0,
        "",
    ),
    Line("--batch-mode luksOpen --key-file old DEV NAME", "", 0, ""),
    Line("status NAME", "", 0, "  type:    LUKS2\n"),
    Line("--batch-mode close NAME", "", 0, ""),
    Line("luksFormat DEV - --pbkdf-memory 32768 --iter-time 1", "old pass", 0, ""),
    Line("--allow-discards luksOpen DEV NAME", "old pass", 0, ""),
    Line("luksClose NAME", "", 0, ""),
];

/// The program under test or cryptsetup, each with its own device.
struct Side<'a> {
    program: &'a dyn Fn() -> Command,
    image: std::path::PathBuf,
    device: Loop,
    name: String,
}

impl Side<'_> {
    fn takes(&self, step: &Step) {
        let device = self.device.device().to_str().unwrap();
        let named = |text: &str| text.replace("DEV", device).replace("NAME", &self.name);
        match *step {
            Line(line, stdin, status, text) => {
                let mut command = (self.program)();
                let words: Vec<String> = line.split_whitespace().map(named).collect();
                let output: Output = with_stdin(command.args(&words), stdin);
                assert_eq!(output.status.code(), Some(status), "{command:?}\n{}", all(&output));
                assert!(all(&output).contains(&named(text)), "{command:?}: no {text}\n{}", all(&output));
            }
            Grow(size) => {
                std::fs::File::options().write(true).open(&self.image).unwrap().set_len(size).unwrap();
                run(tool("losetup").args(["--set-capacity", device]));
            }
            Size(size) => {
                let found = run(tool("blockdev").arg("--getsize64").arg(named("/dev/mapper/NAME")));
                assert_eq!(found.trim(), size.to_string());
            }
        }
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        // Where a step failed, the volume is open still.
        let _ = (self.program)().args(["close", &self.name]).output();
    }
}

fn both_take(steps: &[Step]) {
    let Some(mapper) = Mapper::new() else { return };
    let pair = Pair::new();
    pair.image("disk", 64 * MIB);
    for (file, passphrase) in [("old", "old pass"), ("new", "new pass"), ("bad", "bad pass")] {
        pair.file(file, passphrase.as_bytes());
    }
    let theirs = || {
        let mut command = mapper.command(&["cryptsetup"]);
        command.current_dir(pair.folder("theirs"));
        command
    };
    let ours = || pair.ours();
    let programs: [(&str, &dyn Fn() -> Command); 2] = [("theirs", &theirs), ("ours", &ours)];
    for (whose, program) in programs {
        let image = pair.folder(whose).join("disk");
        let device = Loop::attach(&image, &[]);
        let side = Side { program, image, device, name: mapper.name(whose) };
        for step in steps {
            side.takes(step);
        }
    }
}

#[test]
fn ceph_csi_changes_keys_and_sizes() {
    both_take(CEPH_CSI);
}

#[test]
fn longhorn_looks_formats_opens_and_resizes() {
    both_take(LONGHORN);
}

#[test]
fn ceph_volume_and_rook_open_and_label() {
    both_take(CEPH);
}

#[test]
fn drivers_of_cloud_disks_and_ploop_open() {
    both_take(CLOUDS);
}
