use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::*;
use crate::control::operator::Ran;
use crate::support::Server;
use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tool;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::underseal;

const FIRST: &str = "5d3c91f07a62e8b4c1479f0326ad58ee90b7f41c3ad8652e7bf60914c28da3e7";
const SECOND: &str = "b81f6ca02d97e354fb08416be7d22a9c13ce750f84ba69d1265efa3870c4990d";
/// From the second MiB of its image on.
const DATA: usize = 15 << 20;

/// An image with plain bytes, and the tables of what becomes of it.
struct Case {
    operator: Operator,
    plain: Vec<u8>,
    /// The state's name.
    state: &'static str,
}

impl Case {
    fn new(test: &str) -> Self {
        let plain = bytes(crate::support::seed(test), DATA);
        let case = Self { operator: Operator::new(), plain, state: "state" };
        case.operator.scratch.sparse("image", 16 << 20);
        case.table("linear", "linear");
        case.table("small", &format!("crypt aes-xts-plain64 {FIRST} 0"));
        case.table("large", &format!("crypt aes-cbc-essiv:sha256 {SECOND} 0"));
        case.table("huge", &format!("crypt aes-xts-plain64 {SECOND} 0"));
        case
    }

    fn path(&self, name: &str) -> PathBuf {
        self.operator.scratch.path(name)
    }

    fn table(&self, name: &str, target: &str) {
        let sectors = DATA >> 9;
        let options = match name {
            "large" => " 1 sector_size:4096",
            "huge" => " 2 sector_size:65536 iv_large_sectors",
            _ => "",
        };
        let line = format!("0 {sectors} {target} {} 2048{options}\n", self.path("image").display());
        self.operator.scratch.file(name, line.as_bytes());
    }

    fn fill(&self, table: &str) {
        let source = self.operator.scratch.file("plain", &self.plain);
        let mut command = underseal();
        command.args(["table", "encrypt", "-q", "--table"]).arg(self.path(table)).arg("-i").arg(source);
        run(&mut command);
    }

    /// Begins, and is killed in the middle.
    fn begin(&self, from: &str, to: &str) {
        run(self.reencrypt(from, to, "--init-only --hotzone-size 64K").stdout(Stdio::null()));
        let mut command = self.reencrypt(from, to, "--resume-only --rate 4M");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let on = std::fs::File::open(self.path("state")).unwrap();
        wait_until("some of it is new", PATIENCE, || {
            let mut copies = vec![0; 32 << 10];
            on.read_exact_at(&mut copies, 0).unwrap();
            let done = |needle: &str| String::from_utf8_lossy(&copies).matches(needle).count();
            // Both copies know of a step that is over.
            done("\"done\":\"") == 2 && done("\"done\":\"0\"") == 0
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asserts that a command is refused, for the reason `why`, and writes nothing.
    #[track_caller]
    fn is_refused(&self, mut command: Command, why: &str) {
        let before = std::fs::read(self.path("image")).unwrap();
        let ran = Ran::from(crate::support::output(command.stdin(Stdio::null())));
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(why), "{why}: {ran:?}");
        assert!(before == std::fs::read(self.path("image")).unwrap(), "something was written");
    }

    /// Whatever would take the image for a whole one is refused.
    #[track_caller]
    fn is_refused_as_whole(&self, image: &Path, key: &Path, why: &str) {
        for words in [
            "read --type plain -o /dev/null",
            "read --type plain --offset-bytes 512 -o /dev/null",
            "write --type plain --input /dev/null",
            "open --type plain --nbd unix:nbd",
            "format --force",
            "format --type plain --force",
            "reencrypt --encrypt --reduce-device-size 1M",
        ] {
            let mut command = self.operator.command(words);
            command.arg(image).arg("--passphrase-file").arg(key);
            self.is_refused(command, why);
        }
        let mut integrity = self.operator.command("integrity open --nbd unix:nbd --integrity crc32c");
        integrity.arg(image);
        self.is_refused(integrity, why);
    }

    fn decrypt(&self, table: &str) -> Command {
        let mut command = underseal();
        command.args(["table", "decrypt", "-q", "--table"]).arg(self.path(table));
        command
    }

    #[track_caller]
    fn holds(&self, table: &str) {
        assert_same(&crate::support::output(&mut self.decrypt(table)).stdout, &self.plain, table);
    }

    fn reencrypt(&self, from: &str, to: &str, options: &str) -> Command {
        let mut command = underseal();
        command.arg("reencrypt").arg(self.path("image")).arg("--state").arg(self.path(self.state));
        command.arg("--old-table").arg(self.path(from)).arg("--new-table").arg(self.path(to));
        command.args(["--pbkdf-force-iterations", "1000"]);
        command.args(options.split_whitespace());
        command
    }

    fn open(&self, from: &str, to: &str, options: &[&str]) -> Server {
        let mut command = self.operator.command("table open");
        command.arg("--table").arg(self.path(from)).arg("--new-table").arg(self.path(to));
        command.arg("--state").arg(self.path("state"));
        Server::start_command(command, options)
    }
}

#[test]
fn a_table_becomes_another_one_with_any_sectors() {
    for (from, to, options) in [
        ("small", "large", ""),
        ("large", "small", "--resilience journal --direction backward"),
        ("small", "huge", ""),
        ("huge", "large", ""),
        ("linear", "small", ""),
        ("large", "linear", "--hotzone-size 1M"),
    ] {
        let case = Case::new("a_table_becomes_another_one_with_any_sectors");
        case.fill(from);
        let ran = Ran::from(crate::support::output(&mut case.reencrypt(from, to, options)));
        assert_eq!(ran.code, Some(0), "{from} to {to}: {ran:?}");
        assert!(ran.out.contains("the new table opens it now"), "{ran:?}");
        case.holds(to);
        // Once more is not once too often.
        run(case.reencrypt(from, to, "--resume-only").stdout(Stdio::null()));
        case.holds(to);
    }
}

#[test]
fn what_was_begun_is_served_as_it_stands_and_goes_on_under_users() {
    let case = Case::new("what_was_begun_is_served_as_it_stands");
    case.fill("small");
    case.begin("small", "large");
    let server = case.open("small", "large", &["--name", "table"]);
    assert!(case.operator.does("status table").contains("stopped"));
    let mut client = Client::connect(&server.socket()).unwrap();
    assert_same(&client.read(0, DATA).unwrap(), &case.plain, "as it stands");
    drop(client);
    let paths = ["small", "large"].map(|name| case.path(name).display().to_string());
    let tables = format!("--old-table {} --new-table {}", paths[0], paths[1]);
    let state = case.path("state").display().to_string();
    case.operator.does(&format!("reencrypt table --resume-only --state {state} {tables} --rate full"));
    server.stop();
    case.holds("large");
}

#[test]
fn other_keys_and_other_tables_are_refused() {
    let case = Case::new("other_keys_and_other_tables_are_refused");
    case.fill("small");
    run(case.reencrypt("small", "large", "--init-only").stdout(Stdio::null()));
    let image = std::fs::read(case.path("image")).unwrap();
    let wrong = Ran::from(crate::support::output(&mut case.reencrypt("huge", "large", "--resume-only")));
    assert_eq!(wrong.code, Some(3), "{wrong:?}");
    let again = Ran::from(crate::support::output(&mut case.reencrypt("small", "large", "--init-only")));
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(image == std::fs::read(case.path("image")).unwrap(), "nothing was changed");
    let log = case.path("log").display().to_string();
    let server = case.open("small", "large", &["--reencrypt=full", "--name", "table", "--log-file", &log]);
    crate::reencrypt::online::wait_for(&case.operator, "table", "done");
    server.stop();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(!log.contains("the sandbox has refused"), "{log}");
    case.holds("large");
}

#[test]
fn an_image_in_the_middle_is_refused_to_who_has_no_state_of_it() {
    let case = Case::new("an_image_in_the_middle_is_refused");
    case.fill("small");
    case.begin("small", "large");
    let marker = case.path("image.underseal-state");
    assert!(marker.exists());
    let middle = "in the middle of a reencryption";
    for table in ["small", "large"] {
        case.is_refused(case.decrypt(table), middle);
        let mut open = case.operator.command("table open");
        open.arg("--table").arg(case.path(table));
        case.is_refused(open, middle);
    }
    let key = case.operator.scratch.file("key", &[7; 32]);
    case.is_refused_as_whole(&case.path("image"), &key, middle);
    if cannot_mount().is_none() {
        let device = Loop::attach(&case.path("image"), &[]);
        case.is_refused_as_whole(device.device(), &key, middle);
    }
    let mut encrypt = case.operator.command("reencrypt --encrypt --header");
    encrypt.arg(case.path("header")).arg(case.path("image")).arg("--passphrase-file").arg(&key);
    case.is_refused(encrypt, middle);
    case.is_refused(
        case.reencrypt("small", "large", "--resume-only --resilience journal"),
        "changes nothing",
    );
    case.is_refused(case.reencrypt("small", "large", "--resume-only --hotzone-size 1M"), "changes nothing");
    // A second state for the same image is refused.
    let mut other = underseal();
    other.arg("reencrypt").arg(case.path("image")).arg("--state").arg(case.path("another"));
    other.arg("--old-table").arg(case.path("small")).arg("--new-table").arg(case.path("huge"));
    case.is_refused(other, middle);
    run(case.reencrypt("small", "large", "--resume-only").stdout(Stdio::null()));
    assert!(!marker.exists());
    case.holds("large");
}

#[test]
fn a_state_is_not_taken_for_an_image_that_nothing_says_it_is_of() {
    let case = Case::new("a_state_is_not_taken_for_another_image");
    case.fill("small");
    case.begin("small", "large");
    // Without the marker the image looks like another one of that size under the same keys.
    let marker = case.path("image.underseal-state");
    let told = std::fs::read(&marker).unwrap();
    std::fs::remove_file(&marker).unwrap();
    case.is_refused(case.reencrypt("small", "large", "--resume-only"), "is the state of this image");
    let mut open = case.operator.command("table open");
    open.arg("--table").arg(case.path("small")).arg("--new-table").arg(case.path("large"));
    open.arg("--state").arg(case.path("state"));
    case.is_refused(open, "is the state of this image");
    let text = String::from_utf8(told).unwrap();
    let at = text.find("identity\":\"").unwrap() + 11;
    let other = format!("{}ffffffff{}", &text[..at], &text[at + 8..]);
    std::fs::write(&marker, other).unwrap();
    case.is_refused(case.reencrypt("small", "large", "--resume-only --force"), "its state is");
    std::fs::write(&marker, "something else").unwrap();
    case.is_refused(case.decrypt("small"), "neither a state nor a marker");
    std::fs::remove_file(&marker).unwrap();
    // The image was moved: `--force` says that its owner knows.
    run(case
        .reencrypt("small", "large", "--resume-only --force")
        .stdout(Stdio::null())
        .stderr(Stdio::null()));
    assert!(!marker.exists());
    case.holds("large");
}

#[test]
fn a_state_beside_the_image_under_its_name_is_noticed_by_itself() {
    let mut case = Case::new("a_state_beside_the_image_is_noticed_by_itself");
    case.fill("small");
    case.state = "image.underseal-state";
    run(case.reencrypt("small", "large", "--init-only").stdout(Stdio::null()));
    case.is_refused(case.decrypt("small"), "in the middle of a reencryption");
    run(case.reencrypt("small", "large", "--resume-only").stdout(Stdio::null()));
    case.holds("large");
}

#[test]
fn a_plain_volume_is_reencrypted_by_the_tables_of_its_passphrases() {
    let mut case = Case::new("a_plain_volume_is_reencrypted_by_the_tables_of_its_passphrases");
    let [old, new] = ["first", "second"].map(|word| case.operator.scratch.file(word, word.as_bytes()));
    let image = case.path("image");
    let form = |sectors: &'static str| ["--hash", "sha512", "--data-offset", "1M", "--sector-size", sectors];
    let plain = |verb: &str, passphrase: &std::path::Path, sectors| {
        let mut command = underseal();
        command.args(verb.split(' '));
        command.arg(&image).args(form(sectors)).arg("--passphrase-file").arg(passphrase);
        command
    };
    let source = case.operator.scratch.file("plain", &case.plain);
    run(plain("write --type plain -q", &old, "512").arg("-i").arg(source));
    for (name, passphrase, sectors) in [("small", &old, "512"), ("large", &new, "4096")] {
        let table = crate::support::output(&mut plain("table plain", passphrase, sectors)).stdout;
        case.operator.scratch.file(name, &table);
    }
    case.holds("small");
    case.state = "image.underseal-state";
    run(case.reencrypt("small", "large", "").stdout(Stdio::null()));
    let mut read = plain("read --type plain", &new, "4096");
    assert_same(&crate::support::output(&mut read).stdout, &case.plain, "by its new passphrase");
}

#[test]
fn a_full_disk_has_no_room_for_a_state_before_anything_has_begun() {
    if let Some(reason) = cannot_mount() {
        return skip("a full disk", reason);
    }
    let case = Case::new("a_full_disk_has_no_room_for_a_state");
    case.fill("small");
    let disk = Mount::tmpfs(&case.path("disk"), 40 << 10);
    let state = disk.directory().join("state");
    let begin = |options: &str| {
        let mut command = underseal();
        command.arg("reencrypt").arg(case.path("image")).arg("--state").arg(&state);
        command.arg("--old-table").arg(case.path("small")).arg("--new-table").arg(case.path("large"));
        command.args(["--pbkdf-force-iterations", "1000"]).args(options.split_whitespace());
        Ran::from(crate::support::output(command.stdin(Stdio::null())))
    };
    let full = begin("");
    assert_eq!(full.code, Some(1), "{full:?}");
    assert!(full.err.contains("No space left") && full.err.contains("try: nothing has begun: "), "{full:?}");
    assert!(!state.exists() && !case.path("image.underseal-state").exists());
    case.holds("small");
    // A state that was cut off, and a file that is none.
    for bytes in [&[0; 40 << 10][..], b"something else"] {
        std::fs::write(&state, bytes).unwrap();
        let none = begin("--resume-only");
        assert_eq!(none.code, Some(5), "{none:?}");
        let remedy = format!("if nothing has begun, remove {} and begin without", state.display());
        assert!(none.err.contains(&remedy), "{none:?}");
        std::fs::remove_file(&state).unwrap();
    }
    run(case.reencrypt("small", "large", "").stdout(Stdio::null()));
    case.holds("large");
}

/// A marker without a state would refuse the image as one in the middle, and nothing could resume
/// it.
#[test]
fn a_start_that_fails_at_any_sync_leaves_neither_state_nor_marker_or_can_be_resumed() {
    let case = Case::new("a_start_that_fails_at_any_sync");
    case.fill("small");
    let begin = case.reencrypt("small", "large", "--init-only");
    let [state, marker] = ["state", "image.underseal-state"].map(|name| case.path(name));
    let mut failed = 0;
    for number in 1.. {
        let mut traced = tool("strace");
        traced.args(["-f", "-o", "/dev/null", "-e"]);
        traced.arg(format!("inject=fsync,fdatasync:error=EIO:when={number}"));
        let ran = Ran::from(
            traced.arg(begin.get_program()).args(begin.get_args()).stdin(Stdio::null()).output().unwrap(),
        );
        if ran.code == Some(0) {
            break;
        }
        failed += 1;
        assert_eq!(ran.code, Some(1), "{number}: {ran:?}");
        assert_eq!(state.exists(), marker.exists(), "{number}: {ran:?}");
        if state.exists() {
            run(case.reencrypt("small", "large", "--resume-only --init-only").stdout(Stdio::null()));
            break;
        }
        case.holds("small");
    }
    assert!(failed > 2, "{failed}");
    run(case.reencrypt("small", "large", "--resume-only").stdout(Stdio::null()));
    case.holds("large");
}

#[test]
fn a_stopped_one_names_the_whole_command_that_goes_on() {
    let case = Case::new("a_stopped_one_names_the_whole_command_that_goes_on");
    case.fill("small");
    run(case.reencrypt("small", "large", "--init-only --hotzone-size 64K").stdout(Stdio::null()));
    let mut command = case.reencrypt("small", "large", "--resume-only --rate 1M");
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let stopped = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    let path = |name: &str| case.path(name).display().to_string();
    let again = format!(
        "such as underseal reencrypt {} --resume-only --state {} --old-table {} --new-table {}",
        path("image"),
        path("state"),
        path("small"),
        path("large")
    );
    assert!(stopped.err.contains(&again), "{again}: {stopped:?}");
    case.operator.does(again.strip_prefix("such as underseal ").unwrap());
    case.holds("large");
}
