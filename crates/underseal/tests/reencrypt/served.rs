//! An open volume, and programs that would reencrypt it as if it were closed: the lock of reencryptions keeps them off.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::*;
use crate::control::operator::Ran;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};

/// cryptsetup's exit status where the device is in use, and underseal's.
const BUSY: Option<i32> = Some(5);
const IN_USE: Option<i32> = Some(4);

const OFFLINE: &str = "reencrypt --force-offline-reencrypt";
const RESUME: &str = "reencrypt --resume-only --force-offline-reencrypt";

fn ran(command: &mut Command) -> Ran {
    Ran::from(crate::support::output(command.stdin(Stdio::null())))
}

#[track_caller]
fn is_refused(command: &mut Command, code: Option<i32>, why: &str) {
    let refused = ran(command);
    assert_eq!(refused.code, code, "{refused:?}");
    assert!(refused.err.contains(why) || refused.out.contains(why), "{refused:?}");
}

/// cryptsetup's start of a reencryption of a closed volume.
fn offline(volume: &Volume) -> Command {
    cryptsetup(volume, &format!("{OFFLINE} {}", CHEAP_PBKDF2.join(" ")))
}

/// What the volume's users read, and one write of theirs.
#[track_caller]
fn serves(socket: &Path, plain: &mut [u8], fill: u8) {
    let mut client = Client::connect(socket).unwrap();
    for (number, piece) in plain.chunks(1 << 20).enumerate() {
        assert_same(&client.read((number as u64) << 20, piece.len()).unwrap(), piece, "served");
    }
    let at = usize::from(fill) << 20;
    plain[at..at + 4096].fill(fill);
    client.write(at as u64, &plain[at..at + 4096]).unwrap();
    client.flush().unwrap();
}

#[test]
fn no_program_reencrypts_a_volume_that_is_served_as_if_it_were_closed() {
    for end in ["cryptsetup", "underseal", "its server"] {
        let operator = Operator::new();
        let (volume, mut plain) =
            filled(&operator.scratch, "no_program_reencrypts_a_volume_that_is_served", &[]);
        let server = operator.serve(&volume, &[]);
        serves(&server.socket(), &mut plain, 1);
        let before = digests(&volume);
        // cryptsetup has written the start to the header by then, and no data.
        is_refused(&mut offline(&volume), BUSY, "Reencryption process is already running");
        is_refused(&mut cryptsetup(&volume, RESUME), BUSY, "Reencryption process is already running");
        is_refused(&mut reencrypt(&volume, "--resume-only"), IN_USE, "");
        assert!(dump(&volume.image).contains("online-reencrypt"));
        serves(&server.socket(), &mut plain, 2);
        if end == "its server" {
            let words = "reencrypt image --resume-only --rate full --passphrase-file";
            operator.does(&format!("{words} {}", text(&volume.passphrase)));
            // It is open still.
            is_refused(&mut offline(&volume), BUSY, "Reencryption process is already running");
            serves(&server.socket(), &mut plain, 3);
        }
        server.stop();
        match end {
            "underseal" => run(&mut reencrypt(&volume, "--resume-only")),
            _ => run(cryptsetup(&volume, RESUME).stdin(Stdio::null())),
        };
        assert!(!dump(&volume.image).contains("online-reencrypt"), "{end}");
        assert_ne!(digests(&volume), before, "{end}");
        assert_same(&volume.read(0, plain.len()), &plain, end);
    }
}

#[test]
fn keyslots_and_labels_change_and_other_readers_come_beside_a_server() {
    let operator = Operator::new();
    let (volume, mut plain) = filled(&operator.scratch, "keyslots_and_labels_change_beside_a_server", &[]);
    let other = operator.scratch.file("other", b"another passphrase");
    let server = operator.serve(&volume, &[]);
    let mut add = cryptsetup(&volume, &format!("luksAddKey {}", CHEAP_PBKDF2.join(" ")));
    run(add.arg(&other).stdin(Stdio::null()));
    run(cryptsetup(&volume, "config --label served").stdin(Stdio::null()));
    run(cryptsetup(&volume, "open --test-passphrase").stdin(Stdio::null()));
    let opens = tool("cryptsetup")
        .args(["open", "--test-passphrase", "-d", text(&other)])
        .arg(&volume.image)
        .status();
    assert!(opens.unwrap().success());
    serves(&server.socket(), &mut plain, 1);
    server.stop();
    let server = operator.serve(&volume, &["--read-only"]);
    assert_same(&volume.read(0, 1 << 20), &plain[..1 << 20], "beside a server that reads only");
    let mut offline = cryptsetup(&volume, &format!("{OFFLINE} --key-slot 0 {}", CHEAP_PBKDF2.join(" ")));
    is_refused(&mut offline, BUSY, "Reencryption process is already running");
    server.stop();
}

#[test]
fn copies_with_one_uuid_are_open_together_and_keep_a_closed_one_from_being_reencrypted() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "copies_with_one_uuid_are_open_together", &[]);
    for copy in ["one", "two"] {
        std::fs::copy(&volume.image, operator.scratch.path(copy)).unwrap();
    }
    let copy = |name: &str| Volume { image: operator.scratch.path(name), ..volume.clone() };
    let servers = ["one", "two"].map(|name| operator.serve(&copy(name), &[]));
    is_refused(&mut reencrypt(&volume, ""), IN_USE, "a copy of it with the same UUID");
    // Of two open ones each is reencrypted, one after the other.
    for name in ["one", "two"] {
        operator
            .does(&format!("reencrypt {name} --passphrase-file {} --rate full", text(&volume.passphrase)));
    }
    for server in servers {
        server.stop();
    }
    run(&mut reencrypt(&volume, ""));
    for name in ["one", "two", "image"] {
        assert_same(&copy(name).read(0, plain.len()), &plain, name);
    }
}

#[test]
fn a_volume_is_not_opened_while_cryptsetup_reencrypts_it() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "a_volume_is_not_opened_while_cryptsetup", &[]);
    let mut theirs = offline(&volume).args(["--hotzone-size", "4K"]).stdin(Stdio::null()).spawn().unwrap();
    wait_until("cryptsetup has begun", PATIENCE, || parts(&volume) > 1);
    let open = ran(volume.command("open").env("UNDERSEAL_RUNTIME_DIR", operator.directory()));
    assert!(theirs.try_wait().unwrap().is_none(), "it ended too soon to be a test");
    assert_eq!(open.code, IN_USE, "{open:?}");
    theirs.kill().unwrap();
    theirs.wait().unwrap();
    // A lock file whose holder was killed keeps nobody off.
    let server = operator.serve(&volume, &["--reencrypt=full"]);
    crate::reencrypt::beside::wait_for(&operator, "image", "done");
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "at the end");
}

#[test]
fn a_server_that_takes_a_volume_over_keeps_it_from_being_reencrypted_from_the_first() {
    for options in [&["--hand-over"][..], &["--hand-over", "--read-only"]] {
        let operator = Operator::new();
        let (volume, plain) = filled(&operator.scratch, "a_server_that_takes_a_volume_over_keeps_it", &[]);
        let server = operator.serve(&volume, options);
        operator.does("upgrade image");
        is_refused(&mut offline(&volume), BUSY, "Reencryption process is already running");
        // The header says by now that a reencryption is under way, and the next server serves what there is.
        operator.does("upgrade image");
        is_refused(&mut cryptsetup(&volume, RESUME), BUSY, "Reencryption process is already running");
        let mut client = Client::connect(&server.socket()).unwrap();
        assert_same(&client.read(0, 1 << 20).unwrap(), &plain[..1 << 20], "served");
        drop(client);
        operator.does("close image");
        drop(server);
        wait_until("it is closed", Duration::from_secs(20), || {
            ran(cryptsetup(&volume, RESUME).stdin(Stdio::null())).code == Some(0)
        });
        assert_same(&volume.read(0, plain.len()), &plain, "at the end");
    }
}

#[test]
fn a_server_says_that_its_data_was_moved_away_by_cryptsetup() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "a_server_says_that_its_data_was_moved_away", &[]);
    let mut server = operator.serve(&volume, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &plain[..4096]).unwrap();
    client.flush().unwrap();
    // cryptsetup takes the lock only when the first data are over the header.
    let header = operator.scratch.path("header");
    let decrypt = format!("{OFFLINE} --decrypt --header {}", text(&header));
    is_refused(&mut cryptsetup(&volume, &decrypt), BUSY, "Reencryption process is already running");
    assert_ne!(std::fs::read(&volume.image).unwrap()[..6], *b"LUKS\xba\xbe", "the header is where it was");
    client.write(0, &[1; 4096]).unwrap();
    assert!(client.flush().is_err(), "the write is not where the decryption goes on");
    drop(client);
    operator.is_refused("close image", 1, "the last flush");
    assert_eq!(server.wait().code(), Some(8));
    assert!(server.log().contains("its LUKS header is gone from byte 0"), "{}", server.log());
}
