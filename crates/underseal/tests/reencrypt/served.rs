//! An open volume, and programs that would reencrypt it as if it were closed: the lock of
//! reencryptions keeps them off.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::*;
use crate::control::operator::Ran;
use crate::reencrypt::online::wait_for;
use crate::support::mounts::{Loop, cannot_mount, skip};
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

/// A loop device over the image, where there are any.
fn attached(image: &Path) -> Option<Loop> {
    if let Some(reason) = cannot_mount() {
        skip("a served block device", reason);
        return None;
    }
    Some(Loop::attach(image, &[]))
}

/// cryptsetup's start of a reencryption of a closed volume.
fn offline(volume: &Volume) -> Command {
    cryptsetup(volume, &format!("{OFFLINE} {}", CHEAP_PBKDF2.join(" ")))
}

/// Asserts that clients read `plain`, and writes one block as a client.
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
            // The volume is still open.
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
fn a_served_block_device_keeps_its_clients_while_its_header_changes() {
    let operator = Operator::new();
    let (file, mut plain) = filled(&operator.scratch, "a_served_block_device_keeps_its_clients", &[]);
    let Some(device) = attached(&file.image) else { return };
    let volume = Volume { image: device.device().to_owned(), ..file.clone() };
    let server = operator.serve(&volume, &["--name", "image"]);
    serves(&server.socket(), &mut plain, 1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::connect(&server.socket()).unwrap();
            while !is_over.load(SeqCst) {
                client.write(0, &plain[..4096]).unwrap();
                client.flush().unwrap();
            }
        });
        let backup = operator.scratch.path("backup");
        let header = |words: &[&str], of: &Volume| {
            let mut command = crate::support::volume::underseal();
            command.arg("header").arg(words[0]).arg(&of.image).args(&words[1..]);
            run(&mut command)
        };
        header(&["backup", text(&backup)], &volume);
        for number in 0..5 {
            // By either name.
            let of = if number % 2 == 0 { &volume } else { &file };
            header(&["set", "--label", &format!("number {number}")], of);
        }
        header(&["restore", text(&backup), "--force"], &volume);
        let words = "reencrypt image --rate full --passphrase-file";
        operator.does(&format!("{words} {}", text(&volume.passphrase)));
        is_over.store(true, SeqCst);
    });
    serves(&server.socket(), &mut plain, 2);
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "reencrypted");
}

#[test]
fn a_loop_device_over_an_image_that_is_open_is_in_use() {
    let operator = Operator::new();
    let (file, plain) = filled(&operator.scratch, "a_loop_device_over_an_image_that_is_open", &[]);
    let Some(device) = attached(&file.image) else { return };
    let volume = Volume { image: device.device().to_owned(), ..file.clone() };
    let open = |volume: &Volume| {
        ran(volume
            .command("open")
            .args(["--name", "other"])
            .env("UNDERSEAL_RUNTIME_DIR", operator.directory()))
    };
    for (served, other) in [(&file, &volume), (&volume, &file)] {
        let server = operator.serve(served, &["--name", "image"]);
        let refused = open(other);
        assert_eq!(refused.code, IN_USE, "{refused:?}");
        server.stop();
    }
    assert_same(&volume.read(0, plain.len()), &plain, "as before");
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
    // Two open copies are reencrypted one after the other.
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
    // A lock file whose holder was killed is ignored.
    let server = operator.serve(&volume, &["--reencrypt=full"]);
    crate::reencrypt::online::wait_for(&operator, "image", "done");
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
        // The header says by now that a reencryption is under way, and the next server serves what
        // there is.
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

/// flock(1), as scripts that copy images have it, takes the lock that headers are changed under.
#[test]
fn clients_wait_for_no_program_that_holds_the_header_s_lock() {
    const HELD: Duration = Duration::from_secs(4);
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "clients_wait_for_no_program", &[]);
    let server = operator.serve(&volume, &[]);
    let pass = text(&volume.passphrase);
    operator.does(&format!("reencrypt image --passphrase-file {pass} --rate 4M --no-wait"));
    let image = File::open(&volume.image).unwrap();
    let mut client = Client::connect(&server.socket()).unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        flock(&image, FlockOperation::LockExclusive).unwrap();
        let since = Instant::now();
        while since.elapsed() < HELD {
            for offset in (0..plain.len()).step_by(1 << 20) {
                let asked = Instant::now();
                client.write(offset as u64, &plain[offset..offset + 4096]).unwrap();
                longest = longest.max(asked.elapsed());
                // A busy loop would find no other wait, and keep a processor from other tests.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        flock(&image, FlockOperation::Unlock).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(longest < HELD / 2, "a client waited for {longest:?}");
    operator.does("reencrypt image --resume --rate full");
    wait_for(&operator, "image", "done");
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "at the end");
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
    operator.is_refused("close image", 8, "the last flush");
    assert_eq!(server.wait().code(), Some(8));
    assert!(server.log().contains("its LUKS header is gone"), "{}", server.log());
}

/// The lock that keeps cryptsetup off has the UUID of the opening in its name.
#[test]
fn a_server_acknowledges_nothing_once_cryptsetup_has_changed_the_uuid() {
    for is_detached in [false, true] {
        let operator = Operator::new();
        let (mut volume, plain) = filled_to(&operator.scratch, "a_server_acknowledges_nothing", 4, &[]);
        let mut header = volume.image.clone();
        if is_detached {
            header = operator.scratch.path("header");
            std::fs::copy(&volume.image, &header).unwrap();
            volume.options = vec!["--header".to_owned(), text(&header).to_owned()];
        }
        let mut server = operator.serve(&volume, &[]);
        let mut client = Client::connect(&server.socket()).unwrap();
        client.write(0, &plain[..4096]).unwrap();
        client.flush().unwrap();
        let mut change = tool("cryptsetup");
        change.args(["luksUUID", "-q", "--uuid", "77777777-2222-4333-8444-555555555555"]);
        run(change.arg(&header));
        client.write(0, &[1; 4096]).unwrap();
        assert!(client.flush().is_err(), "another program may reencrypt the volume");
        assert!(client.write(0, &[1; 4096]).is_err());
        drop(client);
        operator.is_refused("close image", 8, "the last flush");
        assert_eq!(server.wait().code(), Some(8));
        assert!(server.log().contains("another UUID"), "{}", server.log());
    }
}

#[test]
fn a_volume_in_a_part_of_an_image_misses_its_header_too() {
    const START: u64 = 1 << 20;
    let operator = Operator::new();
    let (volume, _) = filled_to(&operator.scratch, "a_volume_in_a_part_of_an_image", 1, &[]);
    let whole = std::fs::read(&volume.image).unwrap();
    std::fs::write(&volume.image, [vec![0; 1 << 20], whole].concat()).unwrap();
    let mut server = operator.serve(&volume, &["--offset-bytes", "1M"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    operator.is_refused("reencrypt image", 6, "in a part of its image");
    let other = File::options().write(true).open(&volume.image).unwrap();
    other.write_all_at(&[2; 32 << 10], START).unwrap();
    assert!(client.flush().is_err(), "data lies where the header was");
    drop(client);
    operator.is_refused("close image", 8, "the last flush");
    assert_eq!(server.wait().code(), Some(8));
}
