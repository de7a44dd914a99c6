//! FIDO2 with a device in software (authenticator.py), which the real libfido2 and its tools talk
//! to over a terminal.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdout, Stdio};

use crate::support::{output, run, tool};
use crate::token::disk::{Disk, PASSPHRASE, PIN};

/// A device that is gone when this is dropped.
struct Device {
    process: Child,
    path: String,
    says: BufReader<ChildStdout>,
}

impl Device {
    fn start(pin: Option<&str>) -> Self {
        Self::with_args(pin.as_slice())
    }

    /// A device that answers nothing without its PIN.
    fn strict(pin: &str) -> Self {
        Self::with_args(&[pin, "strict"])
    }

    fn with_args(args: &[&str]) -> Self {
        let mut python = tool("/usr/bin/python3");
        python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/token/authenticator.py")).args(args);
        let mut process = python.stdout(Stdio::piped()).spawn().unwrap();
        let mut path = String::new();
        let mut says = BufReader::new(process.stdout.take().unwrap());
        says.read_line(&mut path).unwrap();
        assert!(path.starts_with("/dev/pts/"), "{path:?}: python3-cryptography is needed");
        Self { process, path: path.trim().into(), says }
    }

    /// Ends the device; the number of PINs that it got.
    fn pins(mut self) -> usize {
        self.process.kill().unwrap();
        self.says.by_ref().lines().count()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read(disk: &Disk, device: &Device, token: &str, pin: Option<&str>) -> Result<(), (i32, String)> {
    let mut read = disk.read();
    read.args(["--token-only", "--token-id", token, "--fido2-device", &device.path]);
    if let Some(pin) = pin {
        read.arg("--token-pin-file").arg(disk.file(pin));
    }
    disk.opens(&mut read)
}

#[test]
fn a_device_opens_what_systemd_and_we_enrolled_on_it() {
    for pin in [None, Some("pin")] {
        let disk = Disk::new();
        let device = Device::start(pin.map(|_| PIN));
        // Theirs asks for a PIN on the system's console, if there is one.
        if pin.is_none() {
            let mut theirs = tool("systemd-cryptenroll");
            theirs.arg(format!("--fido2-device={}", device.path)).arg("--fido2-with-client-pin=no");
            run(theirs.env("PASSWORD", PASSPHRASE).arg(&disk.image));
            read(&disk, &device, "0", None).unwrap();
            run(disk.token("remove").args(["--token-id", "0"]));
        }
        let mut ours = disk.enroll();
        ours.args(["--fido2-device", &device.path, "fido2"]);
        if let Some(pin) = pin {
            ours.arg("--pin-file").arg(disk.file(pin));
        }
        run(&mut ours);
        read(&disk, &device, "0", pin).unwrap();
        assert_eq!(disk.list()[0]["token"]["fido2-clientPin-required"], pin.is_some());
        disk.check();
        if pin.is_some() {
            let (status, said) = read(&disk, &device, "0", None).unwrap_err();
            assert!(status == 3 && said.contains("wants its PIN"), "{said}");
            let (status, said) = read(&disk, &device, "0", Some("wrong")).unwrap_err();
            assert!(status == 3 && said.contains("PIN_INVALID"), "{status} {said}");
        }
        // Another device does not know the credential.
        let (status, said) = read(&disk, &Device::start(pin.map(|_| PIN)), "0", pin).unwrap_err();
        assert!(status == 3 && said.contains("NO_CREDENTIALS"), "{status} {said}");
        if pin.is_some() {
            continue;
        }
        // systemd gets the secret out of what we enrolled, and only then misses device mapper,
        // where there is none.
        let mut attach = tool("/usr/lib/systemd/systemd-cryptsetup");
        attach
            .args(["attach", "us-token-test"])
            .arg(&disk.image)
            .args(["-", &format!("fido2-device={}", device.path)]);
        attach
            .env("SYSTEMD_CRYPTSETUP_USE_TOKEN_MODULE", "0")
            .env("SYSTEMD_LOG_LEVEL", "debug")
            .env("PIN", PIN);
        let ran = output(&mut attach);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(said.contains("Unlocked volume via automatically discovered security FIDO2 token"), "{said}");
        if ran.status.success() {
            run(tool("/usr/lib/systemd/systemd-cryptsetup").args(["detach", "us-token-test"]));
        }
    }
}

/// Enrolls `ours` in a new volume.
fn enrolled(ours: &Device) -> Disk {
    let disk = Disk::new();
    let mut enroll = disk.enroll();
    enroll.args(["--fido2-device", &ours.path, "fido2", "--pin-file"]).arg(disk.file("pin"));
    run(&mut enroll);
    disk
}

/// Reads with the token where `fido2-token -L` lists these devices, which real ones are no part of.
fn read_among(disk: &Disk, devices: &[&Device], pin: &str) -> Result<(), (i32, String)> {
    let lines: Vec<_> =
        devices.iter().map(|d| format!("echo '{}: vendor=0x1 (software)'\n", d.path)).collect();
    let list = disk.scratch.file("list", format!("#!/bin/sh\n{}", lines.concat()).as_bytes());
    std::fs::set_permissions(&list, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut unshare = tool("unshare");
    unshare.args(["-m", "sh", "-c", "mount --bind \"$0\" /usr/bin/fido2-token && exec \"$@\""]).arg(&list);
    let read = disk.read();
    unshare.arg(read.get_program()).args(read.get_args());
    unshare.args(["--token-only", "--token-pin-file"]).arg(disk.file(pin));
    disk.opens(&mut unshare)
}

#[test]
fn a_pin_goes_to_the_device_that_has_the_credential_alone() {
    if !rustix::process::geteuid().is_root() {
        return underseal_testing::skip(
            "two devices",
            "a list of devices is mounted over a tool's, which needs root",
        );
    }
    for pin in ["pin", "wrong"] {
        for other in [Device::start(Some("other PIN")), Device::strict("other PIN")] {
            let ours = Device::start(Some(PIN));
            let disk = enrolled(&ours);
            let read = read_among(&disk, &[&other, &ours, &other], pin);
            match read {
                Ok(()) => assert_eq!(pin, "pin"),
                Err((status, said)) => {
                    assert!(pin == "wrong" && status == 3 && said.contains("PIN_INVALID"), "{status} {said}");
                }
            }
            assert_eq!(other.pins(), 0, "{pin}: another device got the PIN");
            // Two PINs went to the device when it was enrolled, and one now.
            assert_eq!(ours.pins(), 3, "{pin}");
        }
    }
}

#[test]
fn a_device_that_tells_nothing_without_its_pin_gets_it_only_alone() {
    if !rustix::process::geteuid().is_root() {
        return underseal_testing::skip(
            "two devices",
            "a list of devices is mounted over a tool's, which needs root",
        );
    }
    let (ours, other) = (Device::strict(PIN), Device::strict("other PIN"));
    let disk = enrolled(&ours);
    read_among(&disk, &[&ours], "pin").unwrap();
    let lacks = Device::start(None);
    read_among(&disk, &[&lacks, &ours], "pin").unwrap();
    let (status, said) = read_among(&disk, &[&other, &ours], "pin").unwrap_err();
    assert!(status == 3 && said.contains("--fido2-device"), "{status} {said}");
    read(&disk, &ours, "0", Some("pin")).unwrap();
    assert_eq!(other.pins(), 0);
}
