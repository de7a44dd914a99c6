//! A whole NBD connection: a client that sends arbitrary bytes, and a server with a volume.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use underseal_export::nbd::protocol::{
    CommandFlags, INIT_PASSWD, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_LEN, RequestHeader, RequestType,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, TransmissionFlags, option,
};
use underseal_export::nbd::{ExportInfo, Exports, MAX_PAYLOAD, Server, ServerConfig, VolumeHandler};
use underseal_export::net::{Endpoint, listen};

use super::{SIZE, mapping};

/// Bits of the first byte.
const LARGE_SECTORS: u8 = 1;
const STRUCTURED: u8 = 2;
const CONTEXTS: u8 = 4;
/// With this bit the rest of the input is the client's stream from its first byte on, or from its
/// first request on; without it, the rest is a list of random requests.
const RAW_HANDSHAKE: u8 = 8;
const RAW_REQUESTS: u8 = 16;

/// Bytes of the input that make a request.
const ENTRY: usize = 8;

/// The types of structured replies with a read's data.
const DATA: u16 = 1;
const DONE: u16 = 1;

/// Serves one client that sends these bytes and disconnects. Returns true when its requests were
/// answered.
pub(crate) fn connection(bytes: &[u8]) -> bool {
    let Some((&mode, rest)) = bytes.split_first() else { return false };
    let mut requests = Vec::new();
    let said = match mode & (RAW_HANDSHAKE | RAW_REQUESTS) {
        0 => [handshake(mode), roll(rest, &mut requests)].concat(),
        RAW_REQUESTS => [&handshake(mode), rest].concat(),
        _ => rest.to_vec(),
    };
    let heard = serve(mode & LARGE_SECTORS != 0, &said);
    assert!(heard.starts_with(&INIT_PASSWD.to_be_bytes()), "the greeting");
    if mode & (RAW_HANDSHAKE | RAW_REQUESTS) != 0 {
        return false;
    }
    check(&heard, &requests);
    !requests.is_empty()
}

/// Returns all bytes that the server sends.
fn serve(large_sectors: bool, said: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s");
    let mapping = mapping(large_sectors);
    let export = ExportInfo {
        name: String::new(),
        description: "of a fuzzer".into(),
        size: SIZE as u64,
        min_block: mapping.block(),
        preferred_block: mapping.preferred_block(),
        max_block: MAX_PAYLOAD,
        flags: TransmissionFlags::all() - TransmissionFlags::READ_ONLY - TransmissionFlags::ROTATIONAL,
    };
    let config = ServerConfig::new(Exports::new(vec![export]).expect("one export"));
    let listeners = listen(&Endpoint::Unix(path.clone())).expect("a socket");
    let handler = Arc::new(VolumeHandler::new(vec![mapping]));
    let server = Server::new(config, listeners, handler).expect("a server");
    let stopper = server.stopper();
    thread::scope(|scope| {
        let served = scope.spawn(|| server.run());
        let mut client = UnixStream::connect(&path).expect("it listens");
        let mut ear = client.try_clone().expect("a descriptor");
        let heard = scope.spawn(move || {
            let mut heard = Vec::new();
            // The server may close the connection early.
            let _ = ear.read_to_end(&mut heard);
            heard
        });
        // The server may close the connection before it has read all bytes.
        let _ = client.write_all(said);
        let _ = client.shutdown(Shutdown::Write);
        let heard = heard.join().expect("it only listens");
        stopper.stop();
        served.join().expect("the server did not panic").expect("it ended in time");
        heard
    })
}

fn handshake(mode: u8) -> Vec<u8> {
    let mut stream = 3_u32.to_be_bytes().to_vec();
    let mut say = |number: u32, data: &[u8]| {
        stream.extend(OPTION_MAGIC.to_be_bytes());
        stream.extend(number.to_be_bytes());
        stream.extend(u32::try_from(data.len()).expect("short").to_be_bytes());
        stream.extend(data);
    };
    if mode & STRUCTURED != 0 {
        say(option::STRUCTURED_REPLY, &[]);
        if mode & CONTEXTS != 0 {
            let context = b"base:allocation";
            say(option::SET_META_CONTEXT, &[&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15][..], context].concat());
        }
    }
    // GO for the default export, with its block sizes.
    say(option::GO, &[0, 0, 0, 0, 0, 1, 0, 3]);
    stream
}

/// Makes requests of the input; each payload repeats a byte.
fn roll(dice: &[u8], requests: &mut Vec<RequestHeader>) -> Vec<u8> {
    let mut stream = Vec::new();
    for (number, entry) in dice.chunks_exact(ENTRY).enumerate() {
        let &[what, flags, a, b, c, d, scale, fill] = entry else { unreachable!() };
        let command = [
            RequestType::Read,
            RequestType::Write,
            RequestType::Flush,
            RequestType::Trim,
            RequestType::WriteZeroes,
            RequestType::BlockStatus,
            RequestType::Cache,
            RequestType::Other(what.into()),
        ][usize::from(what & 7)];
        let (at, len) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let offset = match scale & 3 {
            0 => u64::from(at) * 512,
            1 => u64::from(at) * 4096,
            2 => u64::from(at),
            _ => u64::MAX - u64::from(at),
        };
        let length = match scale >> 2 & 3 {
            0 => u32::from(len % 64) * 4096,
            1 => u32::from(len) * 512,
            2 => len.into(),
            _ => u32::MAX - u32::from(len),
        };
        // A payload above the server's limit for skipping ends the connection.
        let length = if command == RequestType::Write { length % (256 << 10) } else { length };
        let request = RequestHeader {
            flags: CommandFlags::from_bits_retain(flags.into()),
            command,
            cookie: (number as u64 + 1).to_be_bytes(),
            offset,
            length,
        };
        stream.extend(request.encode());
        stream.resize(stream.len() + request.payload_len() as usize, fill);
        requests.push(request);
        // The stream fits into the buffers of any socket.
        if stream.len() > 4 << 20 {
            break;
        }
    }
    assert!(stream.len() >= requests.len() * REQUEST_LEN);
    stream
}

/// Parses numbers from the front.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, len: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at_checked(len).expect("a reply that is cut off");
        self.0 = rest;
        taken
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("2 bytes"))
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("4 bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().expect("8 bytes"))
    }
}

/// Checks that each request is answered once, with the right data.
fn check(heard: &[u8], requests: &[RequestHeader]) {
    let mut heard = Reader(&heard[18..]);
    // Skips the replies to options.
    while heard.0.starts_with(&OPTION_REPLY_MAGIC.to_be_bytes()) {
        heard.take(16);
        let len = heard.u32();
        heard.take(len as usize);
    }
    let mut open: HashMap<[u8; 8], (&RequestHeader, u64)> =
        requests.iter().map(|request| (request.cookie, (request, 0))).collect();
    while !heard.0.is_empty() {
        match heard.u32() {
            SIMPLE_REPLY_MAGIC => {
                let (error, cookie) = (heard.u32(), heard.u64().to_be_bytes());
                let (request, _) = open.remove(&cookie).expect("a request that is open");
                if error == 0 && request.command == RequestType::Read {
                    heard.take(request.length as usize);
                }
            }
            STRUCTURED_REPLY_MAGIC => {
                let (flags, kind, cookie) = (heard.u16(), heard.u16(), heard.u64().to_be_bytes());
                let len = heard.u32();
                heard.take(len as usize);
                let (request, read) = open.get_mut(&cookie).expect("a request that is open");
                if kind == DATA {
                    assert_eq!(request.command, RequestType::Read);
                    *read += u64::from(len) - 8;
                    assert!(*read <= request.length.into(), "more than was asked for");
                }
                if flags & DONE != 0 {
                    open.remove(&cookie);
                }
            }
            other => panic!("{other:#x} begins no reply"),
        }
    }
    let unanswered = open.values().map(|(request, _)| request).collect::<Vec<_>>();
    assert!(unanswered.is_empty(), "{unanswered:?}");
}
