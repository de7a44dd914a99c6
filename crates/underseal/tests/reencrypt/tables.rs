use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::*;
use crate::operator::Ran;
use crate::support::Server;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::volume::underseal;

const FIRST: &str = "5d3c91f07a62e8b4c1479f0326ad58ee90b7f41c3ad8652e7bf60914c28da3e7";
const SECOND: &str = "b81f6ca02d97e354fb08416be7d22a9c13ce750f84ba69d1265efa3870c4990d";
/// From the second MiB of its image on.
const DATA: usize = 15 << 20;

/// An image with plain bytes, and the tables of what becomes of it.
struct Case {
    operator: Operator,
    plain: Vec<u8>,
}

impl Case {
    fn new(test: &str) -> Self {
        let case = Self { operator: Operator::new(), plain: bytes(support::seed(test), DATA) };
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

    #[track_caller]
    fn holds(&self, table: &str) {
        let mut command = underseal();
        command.args(["table", "decrypt", "-q", "--table"]).arg(self.path(table));
        assert_same(&support::output(&mut command).stdout, &self.plain, table);
    }

    fn reencrypt(&self, from: &str, to: &str, options: &str) -> Command {
        let mut command = underseal();
        command.arg("reencrypt").arg(self.path("image")).arg("--state").arg(self.path("state"));
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
        let ran = Ran::from(support::output(&mut case.reencrypt(from, to, options)));
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
    run(case.reencrypt("small", "large", "--init-only --hotzone-size 64K").stdout(Stdio::null()));
    let mut command = case.reencrypt("small", "large", "--resume-only --rate 4M");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    child.kill().unwrap();
    child.wait().unwrap();

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
    let wrong = Ran::from(support::output(&mut case.reencrypt("huge", "large", "--resume-only")));
    assert_eq!(wrong.code, Some(3), "{wrong:?}");
    let again = Ran::from(support::output(&mut case.reencrypt("small", "large", "--init-only")));
    assert_eq!(again.code, Some(2), "{again:?}");
    assert!(image == std::fs::read(case.path("image")).unwrap(), "nothing was changed");
    let server = case.open("small", "large", &["--reencrypt=full", "--name", "table"]);
    crate::beside::wait_for(&case.operator, "table", "done");
    server.stop();
    case.holds("large");
}
