//! A software card (SoftHSM), whose tokens lie in a mount namespace: tools get no environment of
//! ours.

use std::path::PathBuf;
use std::process::Command;

use underseal_testing::skip;

use crate::support::{output, run, tool};
use crate::token::disk::{Disk, PIN};

/// A command that sees the card.
fn with_card(disk: &Disk, command: &Command) -> Command {
    let mut shell = tool("unshare");
    let cards = disk.file("cards");
    let script = "mount --bind \"$1\" /var/lib/softhsm/tokens && shift && exec \"$@\"";
    shell
        .args(["-m", "sh", "-ec", script, "sh"])
        .arg(cards)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap_or_default());
    }
    shell
}

fn openssl(disk: &Disk, args: &[&str]) {
    run(tool("openssl").args(args).current_dir(disk.scratch.folder()));
}

#[test]
fn a_card_that_systemd_enrolled_opens_with_its_pin() {
    if !rustix::process::geteuid().is_root() {
        return skip("pkcs11", "a mount namespace needs root");
    }
    let disk = Disk::new();
    std::fs::create_dir(disk.file("cards")).unwrap();
    let module: PathBuf = "/usr/lib/softhsm/libsofthsm2.so".into();
    let card = |command: &mut Command| run(&mut with_card(&disk, command));
    card(tool("softhsm2-util").args([
        "--init-token",
        "--free",
        "--label",
        "us a",
        "--so-pin",
        "5678",
        "--pin",
        PIN,
    ]));
    let pkcs11 = |args: &[&str]| {
        card(tool("pkcs11-tool").arg("--module").arg(&module).args(["--login", "--pin", PIN]).args(args))
    };
    pkcs11(&["--keypairgen", "--key-type", "rsa:2048", "--id", "01", "--label", "k"]);
    let key = disk.file("key.der");
    pkcs11(&["--read-object", "--type", "pubkey", "--id", "01", "-o", key.to_str().unwrap()]);
    openssl(&disk, &["rsa", "-pubin", "-inform", "DER", "-in", "key.der", "-out", "key.pem"]);
    openssl(
        &disk,
        &[
            "req", "-x509", "-newkey", "rsa:2048", "-keyout", "ca.key", "-nodes", "-subj", "/CN=x", "-out",
            "ca.pem",
        ],
    );
    openssl(
        &disk,
        &[
            "x509",
            "-new",
            "-force_pubkey",
            "key.pem",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-subj",
            "/CN=us",
            "-outform",
            "DER",
            "-out",
            "card.der",
        ],
    );
    let certificate = disk.file("card.der");
    pkcs11(&[
        "--write-object",
        certificate.to_str().unwrap(),
        "--type",
        "cert",
        "--id",
        "01",
        "--label",
        "k",
    ]);
    let mut enroll = tool("systemd-cryptenroll");
    enroll.arg("--pkcs11-token-uri=auto").arg(&disk.image);
    card(enroll.env("PASSWORD", crate::token::disk::PASSPHRASE).env("PIN", PIN));
    assert_eq!(disk.list()[0]["type"], "systemd-pkcs11");

    let read = |pin: &str| {
        let mut read = disk.read();
        read.arg("--token-only").arg("--token-pin-file").arg(disk.file(pin));
        disk.opens(&mut with_card(&disk, &read))
    };
    read("pin").unwrap();
    let (status, said) = read("wrong").unwrap_err();
    assert!(status == 3 && said.contains("CKR_PIN_INCORRECT"), "{status} {said}");
    let mut without = disk.read();
    let (status, said) = disk.opens(&mut with_card(&disk, without.arg("--token-only"))).unwrap_err();
    assert!(status == 3 && said.contains("PIN"), "{status} {said}");
    // Without a card.
    let mut gone = disk.read();
    gone.arg("--token-only").arg("--token-pin-file").arg(disk.file("pin"));
    let ran = output(&mut gone);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
}
