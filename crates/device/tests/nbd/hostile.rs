//! Servers that violate the protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use super::{NbdDevice, address, refusal, said};
use underseal_device::Blocking;
use underseal_nbd_protocol::{OPTION_REPLY_MAGIC, REQUEST_LEN, info, option, option_reply as reply};

const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";

/// Sends the same bytes to every client, and closes.
fn says(folder: &Path, words: Vec<u8>) -> String {
    let socket = folder.join("s");
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&words);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    format!("nbd+unix:///?socket={}&reconnect-delay=0", socket.display())
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap().to_be_bytes();
    [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &len, data].concat()
}

fn export(size: u64) -> Vec<u8> {
    [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &0x1ed_u16.to_be_bytes()].concat()
}

#[test]
fn handshakes_that_are_none_are_refused() {
    let folder = tempfile::Builder::new().prefix("us-").tempdir_in("/tmp").unwrap();
    let after = |parts: &[Vec<u8>]| [GREETING.to_vec(), parts.concat()].concat();
    let structured = || answer(option::STRUCTURED_REPLY, reply::ACK, &[]);
    let unsupported = |kind| answer(option::STRUCTURED_REPLY, kind, &[]);
    let go = |kind, data: &[u8]| answer(option::GO, kind, data);
    let long =
        [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &[0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]].concat();
    let table: Vec<(Vec<u8>, &str)> = vec![
        (Vec::new(), "closed the connection"),
        (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), "no NBD server"),
        (b"NBDMAGICIHAVENOT\0\x03".to_vec(), "no NBD server"),
        (b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0".to_vec(), "old NBD"),
        (b"NBDMAGICIHAVEOPT\0\0".to_vec(), "old NBD"),
        (GREETING[..7].to_vec(), "closed the connection"),
        (after(&[b"1234567890123456\0\0\0\0".to_vec()]), "out of step"),
        (after(&[long]), "a message of 4294967295 bytes"),
        (after(&[answer(option::GO, reply::ACK, &[])]), "out of step"),
        (after(&[answer(option::STRUCTURED_REPLY, reply::ACK, &[]), structured()]), "out of step"),
        (after(&[unsupported(reply::ERR_TLS_REQD)]), "wants TLS"),
        (after(&[answer(option::STRUCTURED_REPLY, 77, &[])]), "makes no sense"),
        (after(&[structured(), go(reply::ACK, &[])]), "how large"),
        (after(&[structured(), go(reply::INFO, &export(1 << 20)[..11])]), "another length"),
        (after(&[structured(), go(reply::INFO, &[])]), "another length"),
        (
            after(&[structured(), go(reply::INFO, &export(u64::MAX)), go(reply::ACK, &[])]),
            "18446744073709551615",
        ),
        (after(&[structured(), go(reply::INFO, &[0, 99]).repeat(1000)]), "no end"),
        (after(&[structured(), go(reply::ERR_POLICY, b"\x1b[31mno\xff")]), "policy"),
        (after(&[structured(), go(reply::ERR_SHUTDOWN, &[])]), "stopping"),
        (after(&[structured(), go(reply::ERR_UNSUP, &[]), vec![0; 5]]), "closed the connection"),
    ];
    for (words, part) in table {
        let error = refusal(&says(folder.path(), words.clone()), false);
        assert!(error.contains(part), "{:?}: {error}", String::from_utf8_lossy(&words));
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[test]
fn a_server_of_few_words_is_understood() {
    let folder = tempfile::Builder::new().prefix("us-").tempdir_in("/tmp").unwrap();
    // The server has no structured replies and no GO: it answers EXPORT_NAME.
    let words = [
        GREETING,
        &answer(option::STRUCTURED_REPLY, reply::ERR_UNSUP, &[]),
        &answer(option::GO, reply::ERR_UNSUP, &[]),
        &export(1 << 20)[2..],
    ];
    let device = NbdDevice::open(address(&says(folder.path(), words.concat())), false).unwrap();
    assert_eq!((device.export().size, device.export().structured), (1 << 20, false));
}

#[test]
fn replies_that_were_not_asked_for_end_the_connection() {
    let simple = |error: u32| {
        move |cookie: &[u8]| [&0x6744_6698_u32.to_be_bytes()[..], &error.to_be_bytes(), cookie].concat()
    };
    fn chunk(flags: u16, kind: u16, cookie: &[u8], body: &[u8], len: usize) -> Vec<u8> {
        let len = u32::try_from(len).unwrap().to_be_bytes();
        let head =
            [&0x668e_33ef_u32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes(), cookie, &len];
        [&head.concat(), body].concat()
    }
    fn data(flags: u16, cookie: &[u8], at: u64, len: usize) -> Vec<u8> {
        chunk(flags, 1, cookie, &[&at.to_be_bytes()[..], &vec![9; len]].concat(), len + 8)
    }
    fn hole(flags: u16, cookie: &[u8], at: u64, len: u32) -> Vec<u8> {
        chunk(flags, 2, cookie, &[&at.to_be_bytes()[..], &len.to_be_bytes()].concat(), 12)
    }
    type Script = Box<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;
    // The request is a read of 4096 bytes at 8192.
    let scripts: Vec<(&str, Script)> = vec![
        ("noise", Box::new(|_| vec![0xaa; 100])),
        ("another cookie", Box::new(|c| data(1, &c.iter().map(|b| b ^ 1).collect::<Vec<_>>(), 8192, 4096))),
        ("a huge index", Box::new(|_| data(1, &[0xff; 8], 8192, 4096))),
        ("a simple reply to a read", Box::new(simple(0))),
        ("before", Box::new(|c| data(1, c, 8191, 4096))),
        ("behind", Box::new(|c| data(1, c, 8193, 4096))),
        ("far behind", Box::new(|c| data(1, c, u64::MAX, 1))),
        ("too much", Box::new(|c| data(1, c, 8192, 4097))),
        ("a length that wraps", Box::new(|c| chunk(1, 1, c, &8192_u64.to_be_bytes(), u32::MAX as usize))),
        ("too little", Box::new(|c| data(1, c, 8192, 4095))),
        ("nothing", Box::new(|c| chunk(1, 0, c, &[], 0))),
        ("twice", Box::new(|c| [data(0, c, 8192, 4096), data(1, c, 8192, 4096)].concat())),
        ("overlap", Box::new(|c| [hole(0, c, 8192, 2048), data(1, c, 10_000, 2288)].concat())),
        ("an empty part", Box::new(|c| data(0, c, 8192, 0))),
        ("an empty hole", Box::new(|c| hole(0, c, 8192, 0))),
        ("a hole beyond", Box::new(|c| hole(0, c, 8192, u32::MAX))),
        ("an unknown chunk", Box::new(|c| chunk(1, 77, c, &[1, 2, 3], 3))),
        ("block status", Box::new(|c| chunk(1, 5, c, &[0; 12], 12))),
        ("a short error", Box::new(|c| chunk(1, 0x8001, c, &[0; 5], 5))),
        ("a long error", Box::new(|c| chunk(1, 0x8001, c, &[0; 100], 1 << 30))),
        ("an error that goes on and on", Box::new(|c| chunk(0, 0x8001, c, &[0; 6], 6).repeat(10_000))),
        ("a good beginning", Box::new(|c| data(1, c, 8192, 4096)[..1000].to_vec())),
        ("a shutdown", Box::new(simple(108))),
        ("errors", Box::new(|c| chunk(1, 0x8001, c, &[0, 0, 0, 0, 0, 0], 6))),
        ("a simple error", Box::new(simple(5))),
    ];
    for (name, script) in scripts {
        let folder = tempfile::Builder::new().prefix("us-").tempdir_in("/tmp").unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let words = [
                GREETING,
                &answer(option::STRUCTURED_REPLY, reply::ACK, &[]),
                &answer(option::GO, reply::INFO, &export(1 << 20)),
                &answer(option::GO, reply::ACK, &[]),
            ];
            stream.write_all(&words.concat()).unwrap();
            // Flags and two options; the second asks for an empty name and block sizes.
            let mut said = [0; 4 + 16 + 16 + 8 + REQUEST_LEN];
            stream.read_exact(&mut said).unwrap();
            let request = &said[said.len() - REQUEST_LEN..];
            // The client may have closed the connection.
            let _ = stream.write_all(&script(&request[8..16]));
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let uri = format!("nbd+unix:///?socket={}&reconnect-delay=0", socket.display());
        let device = NbdDevice::open(address(&uri), false).unwrap();
        let mut io = Blocking::new(&device).unwrap();
        let error = io.read(8192, &mut [0; 4096]).expect_err(name);
        assert_eq!(error.errno(), Some(5), "{name}: {}", said(&error));
        drop((io, device));
        server.join().unwrap();
    }
}
