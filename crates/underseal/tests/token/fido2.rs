//! FIDO2 with a device in software (authenticator.py), which the real libfido2 and its tools talk to over a terminal.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::disk::{Disk, PASSPHRASE, PIN};
use crate::support::{output, run, tool};

/// A device that is gone when this is dropped.
struct Device {
    process: Child,
    path: String,
}

impl Device {
    fn start(pin: Option<&str>) -> Self {
        let mut python = tool("/usr/bin/python3");
        python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/token/authenticator.py")).args(pin);
        let mut process = python.stdout(Stdio::piped()).spawn().unwrap();
        let mut path = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut path).unwrap();
        assert!(path.starts_with("/dev/pts/"), "{path:?}: python3-cryptography is needed");
        Self { process, path: path.trim().into() }
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
        // systemd gets the secret out of what we enrolled, and only then misses device mapper, where there is none.
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
