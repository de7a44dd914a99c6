//! The same work over every server.

use std::path::Path;

use crate::nbd_lower::backing::Backing;
use crate::support::fio::verifying;
use crate::support::scratch::assert_same;
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, text, underseal};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

/// Writes and verifies with fio on several connections, and reads all bytes on others. The writes
/// are there when the volume is opened again.
fn works(volume: &Volume, block: &str) {
    let mark = bytes(seed("mark"), 300_000);
    volume.write(1 << 20, &mark);
    assert_same(&volume.read(1 << 20, mark.len()), &mark, "what was written before");
    // Tests run side by side, and each has a folder of its own.
    let name = text(volume.passphrase.parent().and_then(Path::file_name).unwrap().as_ref());
    let server = Server::start(volume, &["--name", name]);
    let status = run(underseal().args(["status", name]));
    assert!(status.contains("nbd+unix"), "{status}");
    let mut fio = verifying(&server, 2, 8 << 20);
    fio.args(["--offset=4M", "--rw=randrw", "--fsync=32"]);
    run(fio.args([format!("--bsrange={block}-128k"), format!("--blockalign={block}")]));
    run(tool("nbdcopy").arg(server.uri()).arg("null:"));
    let script = ["-f", "raw", "-c", "write -f -P 7 64k 64k", "-c", "write -z 128k 64k", "-c", "flush"];
    run(tool("qemu-io").args(script).arg(server.uri()));
    let log = server.stop();
    assert!(!log.contains("ERROR") && !log.contains("WARN"), "{log}");
    assert_eq!(volume.read(64 << 10, 64 << 10), [7; 64 << 10]);
    assert_eq!(volume.read(128 << 10, 64 << 10), [0; 64 << 10]);
    assert_same(&volume.read(1 << 20, mark.len()), &mark, "what was written first");
}

#[test]
fn over_nbdkits_memory_on_many_connections() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "48M"]);
    works(&lower.formatted(&scratch, "", &[]), "4096");
}

#[test]
fn a_volume_is_encrypted_anew_on_a_server() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "40M"]);
    let volume = lower.formatted(&scratch, "", &[]);
    let data = bytes(seed("anew"), 1 << 20);
    volume.write(0, &data);
    run(volume.command("reencrypt").arg("-q").args(CHEAP_PBKDF2));
    assert_same(&volume.read(0, data.len()), &data, "under another key");
}

/// A volume without a header: the state is beside, and both tables name the server.
#[test]
fn plain_data_on_a_server_are_encrypted_with_a_state() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "8M"]);
    let uri = lower.uri("");
    let data = bytes(seed("with_a_state"), 8 << 20);
    let file = scratch.file("data", &data);
    run(tool("nbdcopy").arg(&file).arg(&uri));
    let key = "5".repeat(64) + &"6".repeat(64);
    let old = scratch.file("old", format!("0 16384 linear {uri} 0\n").as_bytes());
    let new = scratch.file("new", format!("0 16384 crypt aes-xts-plain64 {key} 0 {uri} 0\n").as_bytes());
    let mut command = underseal();
    command.args(["reencrypt", "-q", "--force", &uri, "--state"]).arg(scratch.path("state"));
    run(command.arg("--old-table").arg(old).arg("--new-table").arg(&new));
    let mut read = underseal();
    read.args(["table", "decrypt", "--table"]).arg(&new).arg("-o").arg(scratch.path("plain"));
    run(&mut read);
    assert_same(&std::fs::read(scratch.path("plain")).unwrap(), &data, "under the new table");
}

#[test]
fn over_one_connection_of_a_slow_server() {
    let scratch = Scratch::new();
    let filters = ["--filter=multi-conn", "--filter=delay", "--filter=nozero", "memory", "48M"];
    let options = ["multi-conn-mode=disable", "delay-read=1ms", "delay-write=1ms", "zeromode=none"];
    let lower = Backing::nbdkit(&scratch, &[&filters[..], &options].concat());
    works(&lower.formatted(&scratch, "", &["--sector-size", "512"]), "512");
}

#[test]
fn over_a_server_with_blocks_of_its_own() {
    let scratch = Scratch::new();
    let filter = ["--filter=blocksize-policy", "memory", "48M", "blocksize-error-policy=error"];
    let sizes = ["blocksize-minimum=4096", "blocksize-preferred=64K", "blocksize-maximum=128K"];
    let lower = Backing::nbdkit(&scratch, &[&filter[..], &sizes].concat());
    let volume = lower.formatted(&scratch, "", &[]);
    works(&volume, "4096");
    let server = Server::start(&volume, &[]);
    let info = run(tool("nbdinfo").arg(server.uri()));
    assert!(
        info.contains("block_size_minimum: 4096") && info.contains("block_size_preferred: 65536"),
        "{info}"
    );
    server.stop();
}

#[test]
fn over_qemu_nbd_with_one_client_and_with_many() {
    for shared in ["1", "8"] {
        let scratch = Scratch::new();
        let image = scratch.sparse("image", 48 << 20);
        let args = ["-t", "-f", "raw", "-k", "SOCKET", "--shared", shared, text(&image)];
        let lower = Backing::start(&scratch, "qemu-nbd", &args);
        works(&lower.formatted(&scratch, "", &["--type", "luks1"]), "512");
    }
}

#[test]
fn over_another_volume() {
    let scratch = Scratch::new();
    let image = Volume::luks2(&scratch, "64M");
    let below = Server::start(&image, &[]);
    let passphrase = scratch.file("above.pass", PASSPHRASE.as_bytes());
    let above = Volume { image: below.uri().into(), passphrase, options: Vec::new() };
    let mut format = underseal();
    // The lower volume reads as noise: nothing was written through it yet.
    format.arg("format").arg(&above.image).args(["-q", "--force"]).args(CHEAP_PBKDF2);
    run(format.arg("--passphrase-file").arg(&above.passphrase));
    works(&above, "4096");
    below.stop();
}

#[test]
fn what_cryptsetup_formatted_opens_over_nbdkit_and_ours_opens_as_a_file() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 32 << 20);
    let passphrase = scratch.file("pass", PASSPHRASE.as_bytes());
    let cheap = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
    let mut format = tool("cryptsetup");
    run(format.args(["luksFormat", "-q", "--type", "luks2"]).args(cheap).arg(&image).arg(&passphrase));
    let lower = Backing::nbdkit(&scratch, &["file", text(&image)]);
    let remote = lower.volume(&scratch, "");
    let info = run(underseal().arg("info").arg(&remote.image));
    assert!(info.contains("luks2"), "{info}");
    let data = bytes(seed("cryptsetup"), 1 << 20);
    remote.write(12_345, &data);
    drop(lower);
    let file = Volume { image, passphrase, options: Vec::new() };
    assert_same(&file.read(12_345, data.len()), &data, "the same image as a file");
}

#[test]
fn a_table_and_a_detached_header_may_lie_on_servers_too() {
    let scratch = Scratch::new();
    let data = Backing::nbdkit(&scratch, &["memory", "8M"]);
    let header = scratch.path("header");
    let mut format = underseal();
    format.args(["format", "-q", "--header"]).arg(&header).arg(data.uri("")).args(CHEAP_PBKDF2);
    let volume = data.volume(&scratch, "");
    run(format.arg("--passphrase-file").arg(&volume.passphrase));
    let headers =
        Backing::start_at(scratch.path("headers"), "nbdkit", &["-f", "-U", "SOCKET", "file", text(&header)]);
    let bytes = bytes(seed("table"), 100_000);
    let detached = volume.with(["--header".to_owned(), headers.uri("")]);
    detached.write(0, &bytes);
    assert_same(&detached.read(0, bytes.len()), &bytes, "a detached header");

    let key = "00112233445566778899aabbccddeeff".repeat(2);
    let line = format!("0 16384 crypt aes-xts-plain64 {key} 0 {} 0\n", data.uri(""));
    let table = scratch.file("table", line.as_bytes());
    let plain = scratch.file("plain", &bytes);
    run(underseal().args(["table", "encrypt", "-q", "--table"]).arg(&table).arg("-i").arg(&plain));
    let back = scratch.path("back");
    run(underseal().args(["table", "decrypt", "-q", "--table"]).arg(&table).arg("-o").arg(&back));
    assert_same(&std::fs::read(back).unwrap()[..bytes.len()], &bytes, "a table");
}

#[test]
fn holes_of_the_lower_export_are_told_of() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "48M"]);
    let volume = lower.formatted(&scratch, "", &[]);
    volume.write(4 << 20, &bytes(1, 1 << 20));
    let server = Server::start(&volume, &[]);
    let map = run(tool("nbdinfo").args(["--map", "--totals"]).arg(server.uri()));
    // A hole stores nothing and reads as noise, so it is not reported as zeros.
    assert!(map.contains("hole") && !map.contains("zero"), "{map}");
    assert!(map.lines().any(|line| line.contains("data")), "{map}");
    server.stop();
}
