//! A volume that loses its key and gets it again, as with cryptsetup's luksSuspend and luksResume.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::control::keys::pages_with;
use crate::control::operator::{Operator, Ran};
use crate::support::mounts::skip;
use crate::support::nbd::Client;
use crate::support::volume::{PASSPHRASE, Volume, text, underseal};
use crate::support::{Server, run, tool};

const OTHER: &str = "another passphrase";

/// A LUKS volume `image` with a volume key that is known, as cryptsetup makes it.
fn luks(operator: &Operator, kind: &str, options: &[&str]) -> (Volume, Vec<u8>) {
    let volume = Volume::at(&operator.scratch, "image");
    operator.scratch.sparse("image", 32 << 20);
    let key: Vec<u8> = (0..64).map(|i: u8| i.wrapping_mul(37) ^ 0x5a).collect();
    let file = operator.scratch.file("volume.key", &key);
    let mut format = tool("cryptsetup");
    format.args(["luksFormat", "-q", "--type", kind, "--pbkdf-force-iterations", "1000", "-s", "512"]);
    if kind == "luks2" {
        format.args(["--pbkdf", "pbkdf2"]);
    }
    format.arg("--volume-key-file").arg(file).args(options);
    run(format.arg("--key-file").arg(&volume.passphrase).arg(&volume.image));
    (volume, key)
}

fn resume(operator: &Operator, volume: &Volume, options: &str) -> Ran {
    operator.run(&format!("resume image --passphrase-file {}{options}", text(&volume.passphrase)))
}

#[track_caller]
fn is_wiped(operator: &Operator, name: &str) {
    let status = operator.status(name);
    assert_eq!((&status["key"], &status["suspended"]), (&"wiped".into(), &true.into()), "{status}");
}

#[track_caller]
fn fails(ran: &Ran, code: i32, why: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert!(ran.err.contains(why), "{ran:?}");
}

#[test]
fn a_wiped_volume_in_a_part_of_its_image_finds_its_header_there() {
    for kind in ["luks1", "luks2"] {
        let operator = Operator::new();
        let (volume, _) = luks(&operator, kind, &[]);
        let whole = fs::read(&volume.image).unwrap();
        fs::write(&volume.image, [&[0; 1 << 20][..], &whole].concat()).unwrap();
        let server = operator.serve(&volume, &["--offset-bytes", "1M"]);
        let mut client = Client::connect(&server.socket()).unwrap();
        client.write(0, &[5; 4096]).unwrap();
        operator.does("suspend image --wipe");
        is_wiped(&operator, "image");
        assert_eq!(resume(&operator, &volume, "").code, Some(0), "{kind}");
        assert_eq!(client.read(0, 4096).unwrap(), [5; 4096], "{kind}");
        operator.does("close image");
    }
}

#[test]
fn a_key_that_no_passphrase_sets_again_is_not_wiped_at_a_suspend() {
    let operator = Operator::new();
    let volume = Volume::at(&operator.scratch, "image");
    let passphrase = operator.scratch.file("long", b"a passphrase of 20 bytes and more");
    let options = ["--type", "veracrypt", "--size", "1M", "--quick", "--pim", "1", "--prf", "sha512"];
    let (image, options) = (text(&volume.image), options.join(" "));
    let format = format!("format {image} {options} --passphrase-file {}", text(&passphrase));
    operator.does(&format);
    let volume = Volume { passphrase, ..volume };
    let server = operator.serve(&volume, &["--type", "tcrypt", "--pim", "1", "--prf", "sha512"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    fails(&operator.run("suspend image --wipe"), 6, "only when it is opened");
    client.write(0, &[5; 4096]).unwrap();
    operator.does("suspend image");
    operator.does("resume image");
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
    operator.does("close image");
}

#[test]
fn a_wiped_volume_goes_on_with_its_passphrase_and_with_no_other() {
    for kind in ["luks1", "luks2"] {
        let operator = Operator::new();
        let (volume, key) = luks(&operator, kind, &[]);
        let server = operator.serve(&volume, &[]);
        assert_eq!(operator.status("image")["opened"]["format"], kind);
        let mut client = Client::connect(&server.socket()).unwrap();
        client.write(0, &[5; 4096]).unwrap();
        let pid = operator.status("image")["pid"].as_u64().unwrap();
        let root = rustix::process::geteuid().is_root();
        assert!(!root || !pages_with(pid, &key[..32]).is_empty(), "this test cannot see the key");

        operator.does("suspend image --wipe");
        is_wiped(&operator, "image");
        if root {
            is_nowhere(pid, &key, kind);
        }
        // Once more does no harm.
        operator.does("suspend image --wipe");
        fails(&operator.run("resume image"), 3, "key is not set");
        let wrong = operator.scratch.file("wrong", OTHER.as_bytes());
        let wrong = format!("resume image --passphrase-file {}", text(&wrong));
        fails(&operator.run(&wrong), 3, "no keyslot opens");
        is_wiped(&operator, "image");

        // The image is served, and its header another program's to change: that passphrase is good
        // from now on.
        add_key(&volume, None, &operator.scratch.path("wrong"));
        operator.does(&wrong);
        assert_eq!(client.read(0, 4096).unwrap(), [5; 4096], "{kind}");
        assert_eq!(operator.status("image")["key"], "set");

        // `resume` asks for no passphrase where the key is still set.
        operator.does("suspend image");
        operator.does("resume image");
        operator.does("suspend image --wipe");
        let chosen = resume(&operator, &volume, " --key-slot 1");
        fails(&chosen, 3, "no keyslot opens");
        let chosen = resume(&operator, &volume, " --key-slot 0");
        assert_eq!(chosen.code, Some(0), "{chosen:?}");
        assert_eq!(client.read(0, 4096).unwrap(), [5; 4096], "{kind}");
        drop(client);
        let log = server.stop();
        assert!(!log.contains("sandbox") && log.contains("resume with a key"), "{log}");
    }
}

#[test]
fn a_wiped_key_is_nowhere_after_another_process_has_taken_over_and_after_a_reencryption() {
    if !rustix::process::geteuid().is_root() {
        return skip("a_wiped_key_is_nowhere_after", "another process's memory needs root");
    }
    let operator = Operator::new();
    let (volume, first) = luks(&operator, "luks2", &[]);
    let mut before = vec![0; 16 << 20];
    File::open(&volume.image).unwrap().read_exact_at(&mut before, 0).unwrap();
    let _server = operator.serve(&volume, &["--hand-over"]);
    operator.does("upgrade image");
    let pid = operator.status("image")["pid"].as_u64().unwrap();
    operator.does("suspend image --wipe");
    is_nowhere(pid, &first, "upgrade");
    assert_eq!(resume(&operator, &volume, "").code, Some(0));
    let set = pages_with(pid, &first[..32]);
    assert!(!set.is_empty(), "this test cannot see the key");
    assert!(set.iter().all(|flags| flags.contains(" lo") && flags.contains(" dd")), "{set:?}");

    let passphrase = text(&volume.passphrase);
    let cheap = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    operator.does(&format!("reencrypt image --passphrase-file {passphrase} {cheap}"));
    let second = operator.scratch.path("second.key");
    let mut dump = tool("cryptsetup");
    dump.args(["luksDump", "-q", "--dump-volume-key", "--volume-key-file"]).arg(&second);
    run(dump.arg("--key-file").arg(&volume.passphrase).arg(&volume.image));
    let second = fs::read(second).unwrap();
    assert!(second.len() == 64 && second != first && !pages_with(pid, &second[..32]).is_empty());
    is_nowhere(pid, &first, "the end of the reencryption");
    operator.does("suspend image --wipe");
    [&first, &second].iter().for_each(|key| is_nowhere(pid, key, "reencryption"));
    // The header of before has the same passphrase, and another key.
    let image = File::options().read(true).write(true).open(&volume.image).unwrap();
    let mut now = vec![0; before.len()];
    image.read_exact_at(&mut now, 0).unwrap();
    image.write_all_at(&before, 0).unwrap();
    fails(&resume(&operator, &volume, ""), 3, "not the key of this volume");
    image.write_all_at(&now, 0).unwrap();
    assert_eq!(resume(&operator, &volume, "").code, Some(0));
    operator.does("close image");
}

#[track_caller]
fn is_nowhere(pid: u64, key: &[u8], after: &str) {
    for part in key.chunks(32) {
        assert_eq!(pages_with(pid, part), Vec::<String>::new(), "{after}");
    }
}

#[test]
fn a_key_that_is_not_the_volume_s_is_refused_and_the_volume_stays_suspended() {
    let operator = Operator::new();
    let (volume, key) = luks(&operator, "luks2", &[]);
    // A volume with the same passphrase and another key.
    let other = Volume::at(&operator.scratch, "other").format("32M", &[]);
    let server = operator.serve(&volume, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[5; 4096]).unwrap();
    operator.does("suspend image --wipe");
    let elsewhere = resume(&operator, &volume, &format!(" --header {}", text(&other.image)));
    fails(&elsewhere, 3, "not the key of this volume");
    is_wiped(&operator, "image");
    let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut wrong = key.clone();
    wrong[63] ^= 1;
    fails(&operator.run_with("message image key set", &hex(&wrong)), 3, "not the key of this volume");
    fails(&operator.run_with("message image key set", &hex(&key[..32])), 2, "64");
    is_wiped(&operator, "image");
    fails(&operator.run("resume image"), 3, "key is not set");
    let set = operator.run_with("message image key set", &hex(&key));
    assert_eq!(set.code, Some(0), "{set:?}");
    // A wrong one leaves the right one that is set.
    fails(&operator.run_with("message image key set", &hex(&wrong)), 3, "not the key of this volume");
    operator.does("resume image");
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
    drop(client);
    server.stop();
}

#[test]
fn a_header_is_looked_for_where_it_was_and_where_the_operator_says() {
    let operator = Operator::new();
    let header = operator.scratch.path("header");
    let (volume, _) = luks(&operator, "luks2", &["--header", text(&header)]);
    let volume = volume.with(["--header", text(&header)]);
    let server = operator.serve(&volume, &[]);
    assert_eq!(operator.status("image")["opened"]["header"], text(&header));
    assert!(operator.does("status image").contains(text(&header)));
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[6; 4096]).unwrap();
    operator.does("suspend image --wipe");
    let moved = operator.scratch.path("moved");
    fs::rename(&header, &moved).unwrap();
    let gone = resume(&operator, &volume, "");
    fails(&gone, 1, "is not there any more");
    assert!(gone.err.contains("try: --header"), "{gone:?}");
    fails(&resume(&operator, &volume, &format!(" --header {}", text(&volume.image))), 5, "no LUKS header");
    is_wiped(&operator, "image");
    let found = resume(&operator, &volume, &format!(" --header {}", text(&moved)));
    assert_eq!(found.code, Some(0), "{found:?}");
    assert_eq!(client.read(0, 4096).unwrap(), [6; 4096]);
    drop(client);
    server.stop();
}

#[test]
fn plain_volumes_take_what_they_were_opened_with() {
    let operator = Operator::new();
    let key = operator.scratch.file("raw", &[0x42; 100]);
    operator.scratch.sparse("image", 8 << 20);
    let passphrase = Volume::at(&operator.scratch, "image");
    let hashed = ["--type", "plain", "--hash", "sha512", "--key-size", "512"];
    let file = ["--type", "plain", "--key-size", "512"];
    let secret = |option: &str, path: &Path| [option.to_owned(), text(path).to_owned()];
    for (options, secret) in [
        (&hashed[..], secret("--passphrase-file", &passphrase.passphrase)),
        (&file, secret("--key-file", &key)),
    ] {
        let mut command = operator.command(&format!("open {}", text(&passphrase.image)));
        command.args(options).args(&secret);
        let server = Server::start_command(command, &[]);
        let mut client = Client::connect(&server.socket()).unwrap();
        client.write(0, &[7; 4096]).unwrap();
        let opened = &operator.status("image")["opened"];
        assert_eq!((&opened["format"], &opened["key_size"]), (&"plain".into(), &64.into()));
        operator.does("suspend image --wipe");
        let ran = operator.run(&format!("resume image {}", secret.join(" ")));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.err.contains("only its data can tell"), "{ran:?}");
        assert_eq!(client.read(0, 4096).unwrap(), [7; 4096], "{options:?}");
        drop(client);
        server.stop();
    }
}

#[test]
fn a_table_takes_its_key_as_the_table_has_it() {
    const KEY: &str = "5d3c91f07a62e8b4c1479f0326ad58ee90b7f41c3ad8652e7bf60914c28da3e7";
    let operator = Operator::new();
    let server = operator.open_table(KEY, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[8; 4096]).unwrap();
    operator.does("suspend table --wipe");
    is_wiped(&operator, "table");
    let ran = operator.run_with("resume table --passphrase-fd 0", PASSPHRASE);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    is_wiped(&operator, "table");
    let ran = operator.run_with("resume table --passphrase-fd 0", KEY);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("only its data can tell"), "{ran:?}");
    assert_eq!(client.read(0, 4096).unwrap(), [8; 4096]);
    drop(client);
    server.stop();
}

#[test]
fn what_cannot_be_wiped_is_not_suspended_for_it() {
    let operator = Operator::new();
    let image = operator.scratch.sparse("image", 1 << 20);
    let table = operator.scratch.file("bare", format!("0 64 linear {} 0", image.display()).as_bytes());
    let mut command = operator.command("table open --table");
    command.arg(&table);
    let server = Server::start_command(command, &[]);
    operator.is_refused("suspend bare --wipe", 6, "no key");
    assert_eq!(operator.status("bare")["suspended"], false);
    server.stop();
}

/// Lets cryptsetup add a passphrase.
fn add_key(volume: &Volume, header: Option<&Path>, passphrase: &Path) {
    let mut add = tool("cryptsetup");
    add.args(["luksAddKey", "-q", "--pbkdf-force-iterations", "1000", "--pbkdf", "pbkdf2", "--key-file"]);
    add.arg(&volume.passphrase).arg(&volume.image).arg(passphrase);
    run(add.args(header.into_iter().flat_map(|header| ["--header", text(header)])));
}

#[test]
fn a_header_is_changed_by_others_while_the_volume_is_served() {
    let operator = Operator::new();
    let (volume, _) = luks(&operator, "luks2", &[]);
    let server = operator.serve(&volume, &[]);
    let passphrases: Vec<_> =
        (0..4).map(|n| operator.scratch.file(&format!("new{n}"), format!("new {n}").as_bytes())).collect();
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| passphrases.iter().for_each(|path| add_key(&volume, None, path)));
        while !adding.is_finished() {
            operator.does("suspend image --wipe");
            let ran = resume(&operator, &volume, "");
            assert_eq!(ran.code, Some(0), "{ran:?}");
        }
    });
    for path in &passphrases {
        operator.does("suspend image --wipe");
        operator.does(&format!("resume image --passphrase-file {}", text(path)));
    }
    server.stop();
    let dump = run(tool("cryptsetup").arg("luksDump").arg(&volume.image));
    assert_eq!(dump.matches(": luks2").count(), 5, "{dump}");
}

#[test]
fn two_programs_that_change_one_header_wait_for_each_other() {
    let operator = Operator::new();
    let header = operator.scratch.path("header");
    let (volume, _) = luks(&operator, "luks2", &["--header", text(&header)]);
    let volume = volume.with(["--header", text(&header)]);
    let open = || fs::File::options().read(true).write(true).open(&header).unwrap();
    for round in 0..6 {
        let passphrase = operator.scratch.file("new", format!("new {round}").as_bytes());
        // The header's second copy is damaged: opening the volume for writing rewrites the copy,
        // and cryptsetup does so as well.
        let file = open();
        file.lock().unwrap();
        file.write_all_at(b"not a header", 16 << 10).unwrap();
        file.unlock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| add_key(&volume, Some(&header), &passphrase));
            volume.write(0, &[round; 4096]);
        });
        let opens = volume.clone();
        let opens = Volume { passphrase, ..opens };
        assert_eq!(opens.read(0, 4096), [round; 4096]);
    }
    let info = run(underseal().arg("info").arg(&header).args(["--json"]));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["keyslots"].as_array().map(Vec::len), Some(7), "{info}");
    // A program that keeps the header's lock is reported.
    let file = open();
    file.lock().unwrap();
    file.write_all_at(b"not a header", 16 << 10).unwrap();
    let busy = volume.command("read").output().unwrap();
    assert_eq!(busy.status.code(), Some(4), "{busy:?}");
    assert!(String::from_utf8_lossy(&busy.stderr).contains("holds the header's lock"), "{busy:?}");
    drop(file);
    assert_eq!(volume.read(0, 4096), [5; 4096]);
}
