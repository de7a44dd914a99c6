//! Headers that take another one's place while a volume is open.

use super::online::{wait_for, wait_for_progress, words};
use super::*;
use crate::support::scratch::assert_same;

#[test]
fn a_restored_header_of_another_key_does_not_reencrypt_the_open_volume() {
    let operator = Operator::new();
    let (volume, plain) = filled(&operator.scratch, "a_restored_header_of_another_key", &[]);
    let header = |verb: &str, of: &str| {
        let file = operator.scratch.path(of);
        format!("header {verb} {} {}", text(&volume.image), text(&file))
    };
    operator.does(&header("backup", "old"));
    let server = operator.serve(&volume, &[]);
    operator.does(&words(&volume, ""));
    operator.does(&header("backup", "new"));
    operator.does(&format!("{} --force", header("restore", "old")));
    operator.is_refused(&words(&volume, ""), 2, "another header was restored");
    operator.does(&format!("{} --force", header("restore", "new")));
    operator.does(&words(&volume, ""));
    server.stop();
    assert_same(&volume.read(0, plain.len()), &plain, "reencrypted twice");
}

#[test]
fn a_reencryption_whose_header_was_replaced_fails_before_the_next_step() {
    let operator = Operator::new();
    let header = operator.scratch.path("header");
    let apart = ["--header", text(&header)];
    let volume = Volume::at(&operator.scratch, "image").format("32M", &apart).with(apart);
    let plain = bytes(crate::support::seed("a_reencryption_whose_header_was_replaced"), 32 << 20);
    volume.write(0, &plain);
    let server = operator.serve(&volume, &[]);
    operator.does(&words(&volume, "--rate 2M --no-wait"));
    wait_for_progress(&operator, "image");
    std::fs::copy(&header, operator.scratch.path("other")).unwrap();
    std::fs::rename(operator.scratch.path("other"), &header).unwrap();
    wait_for(&operator, "image", "failed");
    let status = operator.status("image");
    assert!(status["reencryption"]["error"].to_string().contains("replaced"), "{status}");
    server.kill();
}
