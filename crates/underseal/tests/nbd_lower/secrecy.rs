//! The lower server receives ciphertext, and nothing else.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use memchr::memmem::find;

use crate::nbd_lower::backing::Backing;
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, text, underseal};
use crate::support::{Scratch, Server, bytes, run, tool};

/// Passes everything on, and writes down what the client says.
fn listen_in(at: &Path, server: PathBuf) -> Arc<Mutex<Vec<u8>>> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let listener = UnixListener::bind(at).unwrap();
    let all = heard.clone();
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = UnixStream::connect(&server).unwrap();
            let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                let _ = std::io::copy(&mut from_server, &mut to_client);
                let _ = to_client.shutdown(Shutdown::Both);
            });
            let (heard, mut client, mut server) = (all.clone(), client, server);
            thread::spawn(move || {
                let mut buffer = vec![0; 1 << 16];
                while let Ok(len @ 1..) = client.read(&mut buffer) {
                    heard.lock().unwrap().extend(&buffer[..len]);
                    server.write_all(&buffer[..len]).unwrap();
                }
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    heard
}

#[test]
fn the_server_never_hears_a_plain_byte_or_a_key() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 32 << 20);
    let lower = Backing::nbdkit(&scratch, &["file", text(&image)]);
    let ear = scratch.path("ear");
    let heard = listen_in(&ear, scratch.path("lower"));

    let passphrase = scratch.file("pass", PASSPHRASE.as_bytes());
    let volume = Volume {
        image: format!("nbd+unix:///?socket={}", text(&ear)).into(),
        passphrase: passphrase.clone(),
        options: Vec::new(),
    };
    let mut format = underseal();
    format.arg("format").arg(&volume.image).arg("-q").args(CHEAP_PBKDF2);
    run(format.arg("--passphrase-file").arg(&passphrase));
    // Inline, by workers, in parts of sectors, zeros: every way that bytes go down.
    let plain = bytes(0x5ec2e7, 4 << 20);
    volume.write(777, &plain[..100_000]);
    for policy in ["inline", "kernel", "adaptive"] {
        let server = Server::start(&volume, &["--policy", policy]);
        let file = scratch.file("plain", &plain);
        run(tool("nbdcopy").args(["--flush", "--requests=16"]).arg(&file).arg(server.uri()));
        run(tool("qemu-io").args(["-f", "raw", "-c", "write -z 5M 1M", "-c", "flush"]).arg(server.uri()));
        server.stop();
    }
    let key = scratch.path("key");
    run(tool("cryptsetup")
        .args(["luksDump", "-q", "--dump-volume-key", "--volume-key-file", text(&key), "--key-file"])
        .args([&passphrase, &image]));
    let key = std::fs::read(key).unwrap();
    assert_eq!(key.len(), 64);
    drop(lower);

    let heard = heard.lock().unwrap();
    assert!(heard.len() > 3 * plain.len(), "{} bytes were heard", heard.len());
    assert!(find(&heard, PASSPHRASE.as_bytes()).is_none(), "the passphrase");
    assert!(find(&heard, &key[..32]).is_none() && find(&heard, &key[32..]).is_none(), "the volume key");
    for part in plain.chunks(8192) {
        assert!(find(&heard, &part[..16]).is_none(), "plain bytes");
    }
    // Runs of zeros were encrypted too. Headers have some: their padding and the areas around them.
    let data = 16 << 20;
    let stored = std::fs::read(image).unwrap();
    assert!(stored[data + (5 << 20)..data + (6 << 20)].chunks(16).all(|block| block != [0; 16]));
}
