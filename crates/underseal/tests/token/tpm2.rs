//! TPM 2.0, with systemd-cryptenroll on one side and systemd's plugin of cryptsetup on the other.

use std::path::Path;
use std::process::Command;

use rustix::process::geteuid;
use serde_json::json;
use underseal_testing::skip;

use crate::support::terminal::Terminal;
use crate::support::{output, run, tool};
use crate::token::disk::{Disk, PASSPHRASE, PIN};
use crate::token::tpm::Tpm;

/// Opens by one token.
fn read(disk: &Disk, tpm: &Tpm, token: &str, pin: Option<&str>) -> Result<(), (i32, String)> {
    let mut read = disk.read();
    read.args(["--token-only", "--token-id", token, "--tpm2-device", &tpm.device()]);
    if let Some(pin) = pin {
        read.arg("--token-pin-file").arg(disk.file(pin));
    }
    disk.opens(&mut read)
}

fn enroll(disk: &Disk, tpm: &Tpm, args: &[&str]) {
    run(disk.enroll().args(["--tpm2-device", &tpm.device(), "tpm2"]).args(args));
}

/// Asserts that no handle of ours stays in a TPM without a resource manager.
fn is_clean(tpm: &Tpm) {
    for what in ["handles-transient", "handles-loaded-session"] {
        assert_eq!(run(tpm.tool("tpm2_getcap").arg(what)).trim(), "", "{what}");
    }
}

#[test]
fn what_systemd_enrolled_opens_while_the_pcrs_are_the_same_and_the_pin_is_right() {
    let disk = Disk::new();
    let tpm = Tpm::start(disk.scratch.folder());
    tpm.extend(7);
    for pin in [false, true] {
        let mut theirs = tool("systemd-cryptenroll");
        theirs.arg(format!("--tpm2-device={}", tpm.device())).args(["--tpm2-pcrs=7+14"]);
        theirs.env("PASSWORD", PASSPHRASE).env("NEWPIN", PIN);
        run(theirs.arg(format!("--tpm2-with-pin={pin}")).arg(&disk.image));
    }
    tpm.forget_sessions();
    read(&disk, &tpm, "0", None).unwrap();
    read(&disk, &tpm, "1", Some("pin")).unwrap();
    is_clean(&tpm);
    let (status, said) = read(&disk, &tpm, "1", None).unwrap_err();
    assert!(status == 3 && said.contains("wants a PIN"), "{said}");
    let (status, said) = read(&disk, &tpm, "1", Some("wrong")).unwrap_err();
    assert!(status == 3 && said.contains("the PIN is wrong"), "{said}");
    tpm.forgive();
    is_clean(&tpm);
    // On a terminal the PIN is asked for, again when it is wrong, and a passphrase in the end.
    let (image, out) = (disk.image.display().to_string(), disk.file("out").display().to_string());
    let device = tpm.device();
    let arguments =
        ["read", &image, "--length", "512", "-o", &out, "--token-id", "1", "--tpm2-device", &device];
    let mut terminal = Terminal::run(disk.scratch.folder(), &arguments);
    terminal.sees("PIN of token 1").types("another\n").sees("The PIN is wrong").sees("PIN of token 1");
    terminal.types(&format!("{PIN}\n"));
    assert_eq!(terminal.ends().0, Some(0));
    tpm.forgive();
    let mut terminal = Terminal::run(disk.scratch.folder(), &arguments);
    terminal.sees("PIN of token 1").types("\n").sees("Passphrase for").types(&format!("{PASSPHRASE}\n"));
    assert_eq!(terminal.ends().0, Some(0));

    tpm.extend(14);
    let (status, said) = read(&disk, &tpm, "0", None).unwrap_err();
    assert!(status == 3 && said.contains("the PCRs are not what they were"), "{said}");
    is_clean(&tpm);
    // On a machine without one it is not the PIN that is missing.
    if !Path::new("/dev/tpmrm0").exists() {
        let (status, said) = disk.opens(disk.read().args(["--token-only", "--token-id", "1"])).unwrap_err();
        assert!(status == 1 && said.contains("no TPM 2.0"), "{said}");
    }
    // Another TPM, and a missing one.
    let other = Disk::new();
    let another = Tpm::start(other.scratch.folder());
    let (status, said) = read(&disk, &another, "0", None).unwrap_err();
    assert!(status == 3 && said.contains("another TPM"), "{said}");
    drop(tpm);
    let nowhere = ["--token-only", "--token-id", "0", "--tpm2-device", "swtpm:path=/nowhere"];
    let (status, said) = disk.opens(disk.read().args(nowhere)).unwrap_err();
    assert!(status == 1 && said.contains("tpm2_send"), "{said}");
}

#[test]
fn what_we_enroll_opens_here_and_with_cryptsetup_and_systemds_plugin() {
    let disk = Disk::new();
    let tpm = Tpm::start(disk.scratch.folder());
    tpm.extend(7);
    enroll(&disk, &tpm, &[]);
    enroll(&disk, &tpm, &["--pcrs", "7+11", "--pin-file", disk.file("pin").to_str().unwrap()]);
    enroll(&disk, &tpm, &["--pcrs", "none"]);
    is_clean(&tpm);
    let token = &disk.list()[1];
    assert_eq!((&token["keyslots"], &token["token"]["tpm2-pcrs"]), (&json!([2]), &json!([7, 11])));
    read(&disk, &tpm, "0", None).unwrap();
    read(&disk, &tpm, "1", Some("pin")).unwrap();
    read(&disk, &tpm, "2", None).unwrap();
    assert_eq!(read(&disk, &tpm, "1", Some("wrong")).unwrap_err().0, 3);
    tpm.forgive();
    disk.check();
    if !geteuid().is_root() {
        return skip("systemd's plugin", "a mount namespace needs root");
    }
    let theirs = |token: &str| {
        let mut open = tool("cryptsetup");
        open.args(["open", "--test-passphrase", "--token-only", "-v", "--token-id", token]).arg(&disk.image);
        open
    };
    for (token, slot) in [("0", "Key slot 1 unlocked"), ("2", "Key slot 3 unlocked")] {
        let (mut open, _keep) = tpm.with_device(&theirs(token));
        let said = run(&mut open);
        assert!(said.contains(slot), "{said}");
    }
    // The PIN is typed.
    let (open, keep) = tpm.with_device(&theirs("1"));
    let mut terminal = Terminal::shell(disk.scratch.folder(), &line(&open));
    terminal.sees("PIN:").hides().types(&format!("{PIN}\n")).sees("Key slot 2 unlocked");
    assert_eq!(terminal.ends().0, Some(0));
    drop(keep);
    // The machine's own TPM is found without an option.
    let mut ours = disk.read();
    ours.arg("--token-only");
    let (mut ours, keep) = tpm.with_device(&ours);
    let ran = output(&mut ours);
    drop(keep);
    assert!(ran.status.success(), "{ran:?}");
    // And when the PCRs change, theirs refuses ours too.
    tpm.extend(7);
    let (mut open, _keep) = tpm.with_device(&theirs("0"));
    assert!(!output(&mut open).status.success());
}

/// A command for a shell.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| format!("'{}'", word.to_str().unwrap().replace('\'', r"'\''")))
        .collect::<Vec<_>>()
        .join(" ")
}
