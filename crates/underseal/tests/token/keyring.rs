//! The kernel's keyring.

use serde_json::json;

use crate::support::{run, tool};
use crate::token::disk::{Disk, PASSPHRASE};

/// A command in a session keyring of its own, where `name` holds `payload`.
fn with_key(name: &str, payload: &str, script: &str) -> std::process::Command {
    let mut command = tool("keyctl");
    let whole = format!("printf %s '{payload}' | keyctl padd user '{name}' @s >/dev/null && {script}");
    command.args(["session", "-", "sh", "-c", &whole]);
    command
}

#[test]
fn a_key_of_the_keyring_opens_ours_with_cryptsetup_and_theirs_with_us() {
    let disk = Disk::new();
    let image = disk.image.display();
    let binary = env!("CARGO_BIN_EXE_underseal");
    let read = format!("{binary} read {image} --length 512 -o {} --token-only", disk.file("out").display());
    let pass = disk.file("pass");
    let enroll = format!("{binary} token enroll {image} --passphrase-file {} keyring 'us a'", pass.display());
    let enrolled = run(&mut with_key("us a", "in the keyring", &enroll));
    assert!(enrolled.contains("token 0 opens keyslot 1"), "{enrolled}");
    assert_eq!(disk.list()[0]["token"]["key_description"], "us a");
    run(&mut with_key("us a", "in the keyring", &read));
    let theirs = format!("cryptsetup open --test-passphrase --token-only {image}");
    run(&mut with_key("us a", "in the keyring", &theirs));

    // With --tokens-first the token opens the volume even if the given passphrase is wrong.
    std::fs::write(disk.file("wrong"), "wrong").unwrap();
    let given = format!(
        "{binary} read {image} --length 512 -o /dev/null --passphrase-file {}",
        disk.file("wrong").display()
    );
    run(&mut with_key("us a", "in the keyring", &format!("{given} --tokens-first")));
    let (status, said) = disk.opens(&mut with_key("us a", "in the keyring", &given)).unwrap_err();
    assert_eq!(status, 3, "{said}");

    // Theirs, on the slot that was there already.
    run(tool("cryptsetup")
        .args(["token", "add", "--key-description", "us b", "--key-slot", "0"])
        .arg(&disk.image));
    run(&mut with_key("us b", PASSPHRASE, &read));
    assert_eq!(disk.list()[1]["keyslots"], json!([0]));
    // A key that opens nothing, and none at all.
    let (status, said) = disk.opens(&mut with_key("us b", "another", &read)).unwrap_err();
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("us a"), "the one that is not there is worth more to tell: {said}");
    let (_, said) = disk.opens(&mut with_key("us c", "x", &format!("{read} --token-id 0"))).unwrap_err();
    assert!(said.contains("no key"), "{said}");
    let enroll = format!("{enroll}x");
    assert!(disk.opens(&mut with_key("us c", "x", &enroll)).unwrap_err().1.contains("no key"));
    disk.check();
}

#[test]
fn a_token_opens_what_is_reencrypted_and_goes_on_opening_it() {
    let disk = Disk::new();
    let image = disk.image.display();
    let binary = env!("CARGO_BIN_EXE_underseal");
    let added = ["token", "add", "--key-description", "us b", "--key-slot", "0"];
    run(tool("cryptsetup").args(added).arg(&disk.image));
    let reencrypt = format!("{binary} reencrypt {image} --token-only --force");
    run(&mut with_key("us b", PASSPHRASE, &reencrypt));
    let read = format!("{binary} read {image} --length 512 -o {} --token-only", disk.file("out").display());
    run(&mut with_key("us b", PASSPHRASE, &read));
}
