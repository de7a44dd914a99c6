//! Help, manual pages, completions.

use crate::command::common::Place;
use crate::support::volume::underseal;

#[test]
fn every_command_has_a_manual_page_that_groff_takes() {
    let place = Place::new();
    std::fs::create_dir(place.path("man")).unwrap();
    place.run(&["man", "man"]).succeeds();
    let commands = [
        "",
        "-format",
        "-open",
        "-info",
        "-dm",
        "-dm-install",
        "-dm-run",
        "-dm-shell",
        "-dm-uninstall",
        "-table-volume",
        "-check",
        "-integrity",
        "-integrity-check",
        "-integrity-format",
        "-integrity-info",
        "-integrity-open",
        "-integrity-recalculate",
        "-header",
        "-header-backup",
        "-header-restore",
        "-header-check",
        "-header-repair",
        "-header-erase",
        "-header-set",
        "-header-convert",
        "-header-dump-key",
        "-keyslot",
        "-keyslot-add",
        "-keyslot-change",
        "-keyslot-convert",
        "-keyslot-kill",
        "-keyslot-list",
        "-keyslot-priority",
        "-keyslot-recovery-key",
        "-keyslot-remove",
        "-keyslot-test",
        "-read",
        "-reencrypt",
        "-write",
        "-completions",
        "-table",
        "-table-check",
        "-table-encrypt",
        "-table-decrypt",
        "-table-plain",
        "-table-open",
        "-token",
        "-token-list",
        "-token-import",
        "-token-export",
        "-token-remove",
        "-token-assign",
        "-token-unassign",
        "-token-enroll",
        "-token-enroll-tpm2",
        "-token-enroll-fido2",
        "-token-enroll-clevis",
        "-token-enroll-keyring",
        "-up",
        "-down",
        "-ps",
        "-list",
        "-status",
        "-policy",
        "-suspend",
        "-resume",
        "-resize",
        "-message",
        "-close",
        "-top",
        "-upgrade",
        "-ecryptfs-add-key",
        "-ecryptfs-cat",
        "-ecryptfs-check",
        "-ecryptfs-convert",
        "-ecryptfs-export",
        "-ecryptfs-import",
        "-ecryptfs-info",
        "-ecryptfs-ls",
        "-ecryptfs-mount-private",
        "-ecryptfs-mount",
        "-ecryptfs-name",
        "-ecryptfs-remove-key",
        "-ecryptfs-rename-tree",
        "-ecryptfs-rewrap",
        "-ecryptfs-umount",
        "-ecryptfs-unwrap",
        "-ecryptfs-wrap",
        "-ecryptfs",
    ];
    // A further page describes the program under cryptsetup's name.
    assert_eq!(std::fs::read_dir(place.path("man")).unwrap().count(), commands.len() + 1);
    assert!(
        String::from_utf8(place.read("man/underseal-cryptsetup.7")).unwrap().contains("UNDERSEAL_MAPPER")
    );
    for command in commands {
        let name = format!("man/underseal{command}.1");
        let page = String::from_utf8(place.read(&name)).unwrap();
        let examples = if command.starts_with("-ecryptfs-") { "OPTIONS" } else { "EXAMPLES" };
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", examples, "EXIT STATUS", "SEE ALSO"] {
            assert!(page.contains(&format!(".SH {section}\n")), "{name}: {section}");
        }
        let output = std::process::Command::new("groff")
            .args(["-man", "-ww", "-Tutf8", "-z", &name])
            .current_dir(place.path(""))
            .output()
            .expect("groff is needed for the tests");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
    }
    for (page, section) in [
        ("open", "SERVING"),
        ("open", "FUSE"),
        ("open", "\"BLOCK DEVICES\""),
        ("open", "\"DISKS OF VIRTUAL MACHINES\""),
        ("open", "PASSPHRASES"),
        ("format", "FORMATS"),
        ("table", "TABLES"),
        ("table-open", "SERVING"),
        ("table-open", "CONTROL"),
        ("up", "\"THE LIST OF VOLUMES\""),
        ("ps", "SERVICES"),
        ("status", "JSON"),
        ("policy", "DETAILS"),
    ] {
        let text = String::from_utf8(place.read(&format!("man/underseal-{page}.1"))).unwrap();
        assert!(text.contains(&format!(".SH {section}\n")), "{page}: {section}");
    }
    place.run(&["man", "no/such"]).fails(1, "No such file");
}

#[test]
fn help_lists_the_exit_statuses() {
    let help = Place::new().run(&["--help"]).succeeds();
    for status in ["Exit status:", "  3  Wrong passphrase", "  4  Another program"] {
        assert!(help.contains(status), "{help}");
    }
}

#[test]
fn shells_get_completions_they_can_read() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&["completions", shell]).succeeds();
        assert!(script.contains("passphrase-file"), "{shell}");
        std::fs::write(place.path(shell), script).unwrap();
    }
    place.tool("bash", &["-n", "bash"]);
}

#[test]
fn help_that_cannot_be_printed_is_a_failure_and_a_closed_pipe_is_none() {
    for args in [&["help", "open"][..], &["--version"], &["keyslot", "--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let printed = underseal().args(args).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&printed.stderr);
        assert_eq!(printed.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("cannot write to stdout: No space left"), "{said}");
        let (reads, writes) = std::io::pipe().unwrap();
        drop(reads);
        let printed = underseal().args(args).stdout(writes).output().unwrap();
        assert!(printed.status.success() && printed.stderr.is_empty(), "{args:?}: {printed:?}");
    }
}
