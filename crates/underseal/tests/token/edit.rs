//! Tokens in and out of a header, with cryptsetup beside us.

use serde_json::{Value, json};

use crate::support::{output, run, tool};
use crate::token::disk::Disk;

#[test]
fn tokens_are_listed_imported_exported_assigned_and_removed_as_cryptsetup_does() {
    let disk = Disk::new();
    let token = json!({ "type": "org.example", "keyslots": [], "x": { "big": 9_007_199_254_740_993_u64, "l": [1.5, null] } });
    let file = disk.scratch.file("token.json", &serde_json::to_vec(&token).unwrap());
    run(disk.token("import").args(["--token-id", "3", "--json-file"]).arg(&file));
    let theirs = run(tool("cryptsetup").args(["token", "export", "--token-id", "3"]).arg(&disk.image));
    assert_eq!(serde_json::from_str::<Value>(&theirs).unwrap(), token);
    run(tool("cryptsetup").args(["token", "import", "--json-file"]).arg(&file).arg(&disk.image));
    let ours = run(disk.token("export").args(["--token-id", "0"]));
    assert_eq!(serde_json::from_str::<Value>(&ours).unwrap(), token);

    run(disk.token("assign").args(["--token-id", "3", "--key-slot", "0"]));
    let list = disk.list();
    assert_eq!(list[1]["number"], 3);
    assert_eq!(list[1]["keyslots"], json!([0]));
    assert_eq!(list[1]["opens"], json!(false));
    assert!(run(&mut disk.token("list")).contains("org.example"));
    run(tool("cryptsetup")
        .args(["token", "unassign", "--token-id", "3", "--key-slot", "0"])
        .arg(&disk.image));
    for (arguments, status) in [
        (&["import", "--token-id", "3", "--json-file"][..], 2),
        (&["import", "--token-id", "3", "--replace", "--key-slot", "9", "--json-file"], 2),
        (&["import", "--key-slot", "9", "--json-file"], 2),
        (&["unassign", "--token-id", "3", "--key-slot", "0"], 2),
        (&["assign", "--token-id", "3", "--key-slot", "5"], 2),
        (&["assign", "--token-id", "9", "--key-slot", "0"], 2),
        (&["remove", "--token-id", "9"], 2),
        (&["export", "--token-id", "9"], 2),
    ] {
        let mut command = disk.token(arguments[0]);
        command.args(&arguments[1..]);
        if arguments[0] == "import" {
            command.arg(&file);
        }
        let before = std::fs::read(&disk.image).unwrap();
        assert_eq!(output(&mut command).status.code(), Some(status), "{arguments:?}");
        assert!(std::fs::read(&disk.image).unwrap() == before, "{arguments:?}: nothing was changed");
    }
    run(disk
        .token("import")
        .args(["--token-id", "3", "--replace", "--key-slot", "0", "--json-file"])
        .arg(&file));
    assert_eq!(disk.list()[1]["keyslots"], json!([0]));
    run(disk.token("remove").args(["--token-id", "3"]));
    assert_eq!(disk.list().as_array().unwrap().len(), 1);
    disk.check();
}

/// json-c takes any bytes in a string, as a terminal of another encoding sends them.
#[test]
fn labels_and_tokens_of_any_encoding_are_read_and_kept() {
    use std::os::unix::ffi::OsStrExt;
    let disk = Disk::new();
    let latin1 = |text: &'static [u8]| std::ffi::OsStr::from_bytes(text);
    let token =
        disk.scratch.file("token.json", b"{\"type\":\"x\",\"keyslots\":[],\"user\":\"Schl\xfcssel\"}");
    run(tool("cryptsetup").args(["token", "import", "--json-file"]).arg(&token).arg(&disk.image));
    run(tool("cryptsetup")
        .args(["token", "add", "--key-slot", "0", "--key-description"])
        .arg(latin1(b"B\xfcro"))
        .arg(&disk.image));
    run(tool("cryptsetup").args(["config", "--label"]).arg(latin1(b"B\xfcro")).arg(&disk.image));
    run(disk.read().arg("--passphrase-file").arg(disk.file("pass")));
    let export = |number| {
        let mut export = tool("cryptsetup");
        output(export.args(["token", "export", "--token-id", number]).arg(&disk.image)).stdout
    };
    let before = ["0", "1"].map(export);
    // Another change of the header.
    run(disk.token("assign").args(["--token-id", "0", "--key-slot", "0"]));
    run(disk.token("unassign").args(["--token-id", "0", "--key-slot", "0"]));
    assert_eq!(["0", "1"].map(export), before);
    let has_text = |export: &[u8]| export.windows(9).any(|part| part == b"Schl\xfcssel");
    assert!(has_text(&before[0]), "{before:?}");
    assert!(has_text(&output(disk.token("export").args(["--token-id", "0"])).stdout));
    let dump = output(tool("cryptsetup").arg("luksDump").arg(&disk.image)).stdout;
    assert!(dump.windows(4).any(|part| part == b"B\xfcro"));
    disk.check();
}

#[test]
fn a_token_that_nobody_knows_neither_opens_nor_stands_in_the_way() {
    let disk = Disk::new();
    for (number, kind) in
        [("0", "org.example"), ("1", "systemd-recovery"), ("2", "systemd-tpm2"), ("3", "clevis")]
    {
        let token = json!({ "type": kind, "keyslots": ["0"] });
        let file = disk.scratch.file("token.json", &serde_json::to_vec(&token).unwrap());
        run(disk.token("import").args(["--token-id", number, "--json-file"]).arg(&file));
    }
    // A passphrase that is given is tried first and alone.
    let ran = output(disk.read().arg("--passphrase-file").arg(disk.file("pass")));
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
    let (status, said) = disk.opens(disk.read().arg("--token-only")).unwrap_err();
    assert_eq!(status, 3, "{said}");
    assert!(said.contains("token 2 (systemd-tpm2)") && said.contains("tpm2-blob"), "{said}");
    let (status, said) = disk.opens(disk.read().args(["--token-only", "--token-id", "1"])).unwrap_err();
    assert_eq!(status, 6, "{said}");
    assert_eq!(disk.opens(disk.read().args(["--token-only", "--token-id", "9"])).unwrap_err().0, 2);
}
