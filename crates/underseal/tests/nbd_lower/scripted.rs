//! Servers whose requests a script answers: slow ones, failing ones, bad sectors.

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::control::operator::Operator;
use crate::nbd_lower::backing::Backing;
use crate::support::nbd::{Client, Command};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, bytes, seed};

/// nbdkit's eval plugin over the file `image`: before each read, and each flush, a piece of shell
/// script.
fn scripted(scratch: &Scratch, image: &Path, read: &str, flush: &str) -> Backing {
    let image = text(image);
    let methods = [
        format!("get_size=stat -c %s {image}"),
        format!("pread={read}; dd if={image} skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none"),
        format!("pwrite=dd of={image} seek=$4 oflag=seek_bytes conv=notrunc status=none"),
        format!("flush={flush}"),
        "can_write=exit 0".to_owned(),
        "can_flush=exit 0".to_owned(),
        "thread_model=echo parallel".to_owned(),
    ];
    let args: Vec<&str> = ["eval"].into_iter().chain(methods.iter().map(String::as_str)).collect();
    Backing::nbdkit(scratch, &args)
}

#[test]
fn a_suspension_that_comes_while_the_volume_closes_does_not_stand_for_the_last_flush() {
    let operator = Operator::new();
    let trigger = operator.scratch.path("trigger");
    let image = operator.scratch.sparse("image.lower", 32 << 20);
    let slow = format!("if [ -e {} ]; then sleep 3; fi", text(&trigger));
    let fails = format!("if [ -e {} ]; then sleep 2; echo EIO >&2; exit 1; fi", text(&trigger));
    let lower = scripted(&operator.scratch, &image, &slow, &fails);
    let volume = lower.formatted(&operator.scratch, "", &[]);
    let mut server = operator.serve(&volume, &["--name", "image"]);
    let [mut writer, mut reader] = [(); 2].map(|()| Client::connect(&server.socket()).unwrap());
    writer.write(0, &[1; 4096]).unwrap();
    drop(writer);
    std::fs::write(&trigger, "").unwrap();
    // While this read is in flight, neither closing nor suspending gets further.
    std::io::Write::write_all(&mut reader.stream, &Client::header(Command::Read, 7, 1 << 20, 4096)).unwrap();
    thread::sleep(Duration::from_millis(300));
    let closing = thread::spawn({
        let mut close = operator.command("close image");
        move || close.output().unwrap()
    });
    wait_until("it closes", PATIENCE, || server.log().contains("stopping: "));
    let suspended = operator.run("suspend image");
    let closed = closing.join().unwrap();
    let log = server.log();
    assert_ne!(closed.status.code(), Some(0), "{closed:?} {suspended:?}\n{log}");
    assert_eq!(server.wait().code(), Some(8), "{suspended:?}\n{log}");
    assert!(log.contains("flush failed"), "{log}");
}

#[test]
fn a_bad_first_sector_keeps_no_volume_closed() {
    let operator = Operator::new();
    let whole = Volume::at(&operator.scratch, "whole").format("32M", &[]);
    let plain = bytes(seed("a_bad_first_sector"), 1 << 20);
    whole.write(0, &plain);
    let bad = "if [ $4 -lt 512 ]; then echo EIO >&2; exit 1; fi";
    let lower = scripted(&operator.scratch, &whole.image, bad, "exit 0");
    let volume = lower.volume(&operator.scratch, "");
    assert_same(&volume.read(0, plain.len()), &plain, "read");
    assert!(operator.does(&format!("info {}", text(&volume.image))).contains("cannot"));
    let backup = operator.scratch.path("backup");
    operator.does(&format!("header backup {} {}", text(&volume.image), text(&backup)));
    operator.does(&format!("keyslot test {} --passphrase-file {}", text(&backup), text(&volume.passphrase)));
    let server = operator.serve(&volume, &["--name", "image"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    server.stop();
    assert_eq!(volume.read(4096, 4096), [2; 4096]);
}
