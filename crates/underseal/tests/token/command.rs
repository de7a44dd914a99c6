//! A passphrase that a program finds; among them one that asks a KMS as HashiCorp Vault's transit
//! engine is asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::support::output;
use crate::token::disk::{Disk, PASSPHRASE};

fn script(disk: &Disk, name: &str, text: &str) -> PathBuf {
    let path = disk.scratch.file(name, format!("#!/bin/sh\n{text}\n").as_bytes());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn opened_by(disk: &Disk, command: &str) -> Result<(), (i32, String)> {
    disk.opens(disk.read().args(["--passphrase-command", command]))
}

#[test]
fn what_a_program_prints_is_the_passphrase_without_one_newline() {
    let disk = Disk::new();
    let all = script(&disk, "all", &format!("printf '%s\\n' '{PASSPHRASE}'"));
    opened_by(&disk, all.to_str().unwrap()).unwrap();
    opened_by(&disk, &format!("cat {}", disk.file("pass").display())).unwrap();
    let two = script(&disk, "two", &format!("printf '%s\\n\\n' '{PASSPHRASE}'"));
    assert_eq!(opened_by(&disk, two.to_str().unwrap()).unwrap_err().0, 3);
    for (text, why) in [
        ("exit 3", "exit status: 3"),
        ("true", "prints no passphrase"),
        ("printf x; exit 1", "exit status: 1"),
    ] {
        let path = script(&disk, "bad", text);
        let (status, said) = opened_by(&disk, path.to_str().unwrap()).unwrap_err();
        assert!(status == 1 && said.contains(why), "{text}: {said}");
    }
    let (status, said) = opened_by(&disk, "/nowhere/at/all").unwrap_err();
    assert!(status == 1 && said.contains("/nowhere/at/all"), "{said}");
}

/// Answers one request as Vault's `transit/decrypt/KEY` does.
fn vault(listener: &TcpListener, plaintext: &str) {
    let (stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(&stream);
    let (mut head, mut len, mut token) = (String::new(), 0, false);
    reader.read_line(&mut head).unwrap();
    assert!(
        head.starts_with("PUT /v1/transit/decrypt/disk ")
            || head.starts_with("POST /v1/transit/decrypt/disk "),
        "{head}"
    );
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let lower = line.trim().to_ascii_lowercase();
        if lower.is_empty() {
            break;
        }
        token |= lower == "x-vault-token: s.test";
        len = lower.strip_prefix("content-length: ").map_or(len, |n| n.parse().unwrap());
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    assert!(token && String::from_utf8(body).unwrap().contains("vault:v1:abc"));
    let answer = format!("{{\"data\":{{\"plaintext\":\"{plaintext}\"}}}}");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len());
    (&stream).write_all((head + &answer).as_bytes()).unwrap();
}

#[test]
fn the_documented_program_for_vaults_transit_engine_opens_a_volume() {
    let disk = Disk::new();
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tokens.md")).unwrap();
    let text = docs.split("```sh\n#!/bin/sh").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let program = script(&disk, "from-vault", text);
    std::fs::write(disk.file("disk.vault"), "vault:v1:abc").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let encoded = Command::new("base64").arg("-w0").arg(disk.file("pass")).output().unwrap();
    let encoded = String::from_utf8(encoded.stdout).unwrap();
    let server = std::thread::spawn(move || vault(&listener, &encoded));
    let line = format!("{} {} disk", program.display(), disk.file("disk.vault").display());
    std::fs::write(disk.file("token"), "s.test").unwrap();
    let mut read = disk.read();
    read.args(["--passphrase-command", &line])
        .env("VAULT_ADDR", address)
        .env("no_proxy", "127.0.0.1")
        .env("VAULT_TOKEN_FILE", disk.file("token"));
    let ran = output(&mut read);
    assert!(ran.status.success(), "{ran:?}");
    server.join().unwrap();
}

#[test]
fn a_caller_that_ignores_its_children_has_the_passphrase_too() {
    let disk = Disk::new();
    let mut read = disk.read();
    read.args(["--passphrase-command", &format!("cat {}", disk.file("pass").display())]);
    let mut ignores = Command::new("env");
    ignores.arg("--ignore-signal=CHLD").arg(read.get_program()).args(read.get_args());
    ignores.envs(read.get_envs().filter_map(|(name, value)| Some((name, value?))));
    disk.opens(&mut ignores).unwrap();
}
