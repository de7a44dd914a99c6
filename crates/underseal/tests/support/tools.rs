//! Running programs.

use std::io::ErrorKind;
use std::process::{Command, Output, Stdio};

pub(crate) use underseal_testing::{PATIENCE, wait_until, within};

/// Programs and the Debian packages that have them, for error messages where `scripts/setup test`
/// was not run.
const PACKAGES: &[(&str, &str)] = &[
    ("/usr/libexec/tangd-keygen", "tang"),
    ("/usr/bin/python3", "python3 python3-libnbd"),
    ("blockdev", "util-linux"),
    ("btrfs", "btrfs-progs"),
    ("ceph", "ceph-common"),
    ("clevis", "clevis clevis-luks"),
    ("cryptsetup", "cryptsetup-bin"),
    ("curl", "curl"),
    ("debugfs", "e2fsprogs"),
    ("dmsetup", "dmsetup"),
    ("e2fsck", "e2fsprogs"),
    ("fio", "fio"),
    ("fsfreeze", "util-linux"),
    ("fusermount3", "fuse3"),
    ("gpg", "gpg"),
    ("ip", "iproute2"),
    ("keyctl", "keyutils"),
    ("losetup", "mount"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mount", "mount"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("openssl", "openssl"),
    ("pkcs11-tool", "opensc"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("rados", "ceph-common"),
    ("rbd", "ceph-common"),
    ("softhsm2-util", "softhsm2"),
    ("systemd-cryptenroll", "systemd"),
    ("tpm2_getcap", "tpm2-tools"),
    ("tpm2_pcrextend", "tpm2-tools"),
    ("umount", "mount"),
    ("xfs_repair", "xfsprogs"),
];

/// A program by its name or path. System programs are found also where users' PATH does not lead.
pub(crate) fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    let path = std::env::var("PATH").unwrap_or_default();
    // Apart from the control sockets of the user that runs the tests.
    command.env("UNDERSEAL_RUNTIME_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/run"));
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
    command
}

/// The message for a program that could not be started.
pub(crate) fn missing(command: &Command, error: &std::io::Error) -> String {
    let program = command.get_program().to_string_lossy();
    let package = PACKAGES.iter().find(|(name, _)| *name == program).map(|(_, package)| package);
    match (error.kind(), package) {
        (ErrorKind::NotFound, Some(package)) => format!("{program} is missing: apt-get install {package}"),
        _ => format!("{program}: {error}"),
    }
}

/// Runs to the end, whatever that is.
pub(crate) fn output(command: &mut Command) -> Output {
    loop {
        let output = command.output().unwrap_or_else(|e| panic!("{}", missing(command, &e)));
        // qemu-img 7.2 gives up when it derives a key in less time than the clock shows, again and
        // again by chance.
        if !String::from_utf8_lossy(&output.stderr).contains("Unable to get accurate CPU usage") {
            return output;
        }
    }
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = output(command);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// Runs a command that must fail: its exit status, and its stderr.
pub(crate) fn fails(command: &mut Command) -> (i32, String) {
    let output = output(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !said.contains("panicked"), "{command:?}: {said}");
    (output.status.code().expect("it ended by itself"), said)
}

/// The processes that a process has forked.
pub(crate) fn children(of: u32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{of}/task")).unwrap();
    // A thread may end meanwhile.
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|id| id.parse().unwrap()).collect::<Vec<_>>()).collect()
}
