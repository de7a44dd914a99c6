//! Keyslots with different passphrases, in the middle of a reencryption: `header repair`.

use super::*;
use crate::support::terminal::Terminal;
use crate::support::volume::underseal;
use crate::support::{fails, output};

const NO_KEY: i32 = 3;

/// A volume in the middle of a reencryption, and the file of a passphrase that opens its old key
/// only. The volume's own passphrase opens both.
fn begun(scratch: &Scratch) -> (Volume, std::path::PathBuf) {
    let volume = Volume::luks2(scratch, "24M");
    let other = scratch.file("other", b"another");
    let mut add = underseal();
    add.args(["keyslot", "add"]).arg(&volume.image).args(CHEAP_PBKDF2);
    add.arg("--passphrase-file").arg(&volume.passphrase).arg("--new-passphrase-file").arg(&other);
    run(&mut add);
    let options = format!("--key-slot 0 --init-only --force {}", CHEAP_PBKDF2.join(" "));
    run(&mut reencrypt(&volume, &options));
    (volume, other)
}

fn repair(volume: &Volume, passphrase: &std::path::Path) -> std::process::Command {
    let mut command = underseal();
    command.args(["header", "repair"]).arg(&volume.image).arg("--passphrase-file").arg(passphrase);
    command
}

#[test]
fn a_repair_takes_the_passphrases_of_both_keys() {
    let scratch = Scratch::new();
    let (volume, other) = begun(&scratch);
    run(&mut repair(&volume, &volume.passphrase));
    let (status, said) = fails(&mut repair(&volume, &other));
    assert_eq!(status, NO_KEY, "{said}");
    assert!(said.contains("one of the two keys") && said.contains("try: --other-passphrase-file"), "{said}");
    for option in ["--other-passphrase-file", "--other-key-file"] {
        run(repair(&volume, &other).arg(option).arg(&volume.passphrase));
        // Twice the same key.
        let (status, said) = fails(repair(&volume, &other).arg(option).arg(&other));
        assert_eq!(status, NO_KEY, "{said}");
    }
}

#[test]
fn a_repair_asks_for_the_passphrase_of_the_other_key() {
    let scratch = Scratch::new();
    let (volume, _) = begun(&scratch);
    let passphrase = crate::support::volume::PASSPHRASE;
    let own = format!("{passphrase}\n");
    for front in [false, true] {
        let program = text(std::path::Path::new(env!("CARGO_BIN_EXE_underseal")));
        let command = match front {
            true => format!("exec -a cryptsetup {program} repair -q image"),
            false => format!("{program} header repair image"),
        };
        let folder = volume.image.parent().unwrap();
        let mut terminal = Terminal::shell(folder, &format!("bash -c '{command}'"));
        terminal.sees("assphrase for ").types("another\n");
        terminal.sees("other key").types("another\n");
        terminal.sees("other key").types(&own);
        let (code, shown) = terminal.ends();
        assert_eq!(code, Some(0), "{shown}");
    }
    // Without a terminal the front fails as cryptsetup does.
    let mut theirs = tool("cryptsetup");
    theirs.args(["repair", "-q", "-d"]).arg(scratch.path("other")).arg(&volume.image);
    assert_eq!(output(&mut theirs).status.code(), Some(2));
}
