//! Written and read back.

use std::collections::HashSet;
use std::fs;

use crate::support::scratch::assert_same;
use crate::support::volume::underseal;
use crate::support::{Scratch, Server, bytes, output, run, seed};
use crate::table::{decrypt, encrypt, key, table};

#[test]
fn what_is_encrypted_decrypts_again_with_sectors_of_every_size() {
    let plain = bytes(seed("trips"), 384 << 10);
    let scratch = Scratch::new();
    let len = plain.len();
    let mut ciphertexts = HashSet::new();
    for large in ["", " iv_large_sectors"] {
        for sector in [512, 4096, 16384, 65536] {
            let disk = bytes(1, len + 65536);
            scratch.file("disk", &disk);
            let count = if large.is_empty() { 1 } else { 2 };
            let (key, len_sectors) = (key(64), len >> 9);
            let lines = format!(
                "0 {len_sectors} crypt aes-xts-plain64 {key} 1280 disk 64 {count} sector_size:{sector}{large}"
            );
            encrypt(&scratch, &lines, &plain);
            assert_same(&decrypt(&scratch, &lines), &plain, &lines);
            let now = fs::read(scratch.path("disk")).unwrap();
            assert_same(&now[..32768], &disk[..32768], "before the table");
            assert_same(&now[32768 + len..], &disk[32768 + len..], "behind the table");
            assert!(now[32768..32768 + 512] != plain[..512], "{lines}: it is encrypted");
            ciphertexts.insert(now);
        }
    }
    // Counting sectors of 512 bytes in sectors of 512 bytes changes nothing.
    assert_eq!(ciphertexts.len(), 7);
}

#[test]
fn several_lines_over_several_devices_are_one_volume() {
    let scratch = Scratch::new();
    scratch.sparse("a", 1 << 20);
    scratch.sparse("b", 1 << 20);
    let key = key(64);
    let lines = format!(
        "0 512 crypt aes-xts-plain64 {key} 0 a 0 1 sector_size:4096\n512 512 zero\n1024 512 linear b 64\n\
         1536 512 crypt serpent-xts-plain64 {key} 7 b 1024\n"
    );
    let mut plain = bytes(seed("several"), 1 << 20);
    encrypt(&scratch, &lines, &plain);
    assert_same(
        &fs::read(scratch.path("b")).unwrap()[32768..][..256 << 10],
        &plain[512 << 10..768 << 10],
        "linear",
    );
    plain[256 << 10..512 << 10].fill(0);
    assert_same(&decrypt(&scratch, &lines), &plain, "all lines");
    // Each encrypted line by itself.
    for (line, at) in [
        (format!("0 512 crypt aes-xts-plain64 {key} 0 a 0 1 sector_size:4096"), 0),
        (format!("0 512 crypt serpent-xts-plain64 {key} 7 b 1024"), 768 << 10),
    ] {
        assert_same(&decrypt(&scratch, &line), &plain[at..at + (256 << 10)], &line);
    }
    // An error line fails what reaches it.
    let with_error = format!("{lines}2048 8 error\n");
    let ran = output(table(&scratch, "decrypt", &with_error).args(["-q", "-o", "back"]));
    assert_eq!(ran.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("error segment"));
}

#[test]
fn a_table_comes_from_stdin_too() {
    let scratch = Scratch::new();
    scratch.sparse("disk", 1 << 20);
    let lines = scratch.file("lines", format!("0 8 crypt aes-xts-plain64 {} 0 disk 0\n", key(64)).as_bytes());
    let plain = scratch.file("plain", &bytes(3, 4096));
    let from_stdin = |what: &str, options: &[&str]| {
        let mut command = underseal();
        command.current_dir(scratch.folder()).args(["table", what, "--table", "-", "-q"]).args(options);
        output(command.stdin(fs::File::open(&lines).unwrap()))
    };
    assert!(from_stdin("encrypt", &["-i", "plain"]).status.success());
    assert!(from_stdin("decrypt", &["-o", "-"]).stdout == fs::read(plain).unwrap());
    assert_eq!(from_stdin("encrypt", &[]).status.code(), Some(2));
}

#[test]
fn a_table_is_served() {
    let scratch = Scratch::new();
    scratch.sparse("a", 1 << 20);
    scratch.sparse("b", 1 << 20);
    let (key, folder) = (key(64), scratch.folder().display());
    let lines = format!(
        "0 1024 crypt aes-xts-plain64 {key} 0 {folder}/a 128 1 sector_size:65536\n\
         1024 1024 crypt aes-cbc-essiv:sha256 {half} 0 {folder}/b 0\n",
        half = &key[..64]
    );
    let server = Server::start_command(table(&scratch, "open", &lines), &[]);
    let plain = bytes(seed("served"), 1 << 20);
    let path = scratch.file("plain", &plain);
    run(crate::support::tool("nbdcopy").arg(&path).arg(server.uri()));
    let log = server.stop();
    assert!(log.contains("CPU path"), "{log}");
    assert_same(&decrypt(&scratch, &lines), &plain, "what came through NBD");
}
