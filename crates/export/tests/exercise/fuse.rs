//! A kernel's requests to a mounted volume.

use std::collections::HashMap;
use std::ops::Range;

use underseal_export::fuse::script::{self, Script};

use super::{SIZE, mapping};

/// Bits of the first byte.
const LARGE_SECTORS: u8 = 1;
const FOLDER: u8 = 2;
const CACHE: u8 = 4;
/// Several requests are in flight at a time; otherwise each read is compared with the last write.
const TOGETHER: u8 = 8;

/// Bytes of the input that make a request, and requests under way at a time.
const ENTRY: usize = 8;
const DEPTH: usize = 8;

const READ: u32 = 15;
const WRITE: u32 = 16;
const FALLOCATE: u32 = 43;
/// An FALLOCATE that does not extend the file.
const KEEP_SIZE: u32 = 1;
/// FORGET, INTERRUPT, NOTIFY_REPLY, BATCH_FORGET.
const SILENT: [u32; 4] = [2, 36, 41, 42];
const OPERATIONS: [u32; 16] = [READ, WRITE, READ, WRITE, FALLOCATE, 20, 1, 3, 4, 14, 17, 27, 28, 18, 2, 46];

/// The longest read and write. One such request fits into a socket, and so do several shorter ones
/// that are not read yet.
const LONGEST: u32 = 128 << 10;
const LONGEST_TOGETHER: u32 = 8 << 10;

struct Call {
    opcode: u32,
    node: u64,
    offset: u64,
    size: u32,
    fill: u8,
}

/// Serves these requests. Returns true when the bytes contain any.
pub(crate) fn requests(bytes: &[u8]) -> bool {
    let Some((&mode, dice)) = bytes.split_first() else { return false };
    let folder = mode & FOLDER != 0;
    let script =
        script::start(mapping(mode & LARGE_SECTORS != 0), folder, mode & CACHE != 0).expect("a thread");
    let (depth, longest) = if mode & TOGETHER == 0 { (1, LONGEST) } else { (DEPTH, LONGEST_TOGETHER) };
    let mut plain = (depth == 1).then(|| known(&script, folder));
    let mut open = HashMap::new();
    for (number, entry) in dice.chunks_exact(ENTRY).take(256).enumerate() {
        let call = Call::roll(entry.try_into().expect("8 bytes"), longest);
        let unique = number as u64 + 1;
        script.send(&call.request(unique)).expect("the thread goes on");
        if !SILENT.contains(&call.opcode) {
            open.insert(unique, call);
        }
        if open.len() >= depth {
            answer(&script, &mut open, plain.as_mut(), folder);
        }
    }
    while !open.is_empty() {
        answer(&script, &mut open, plain.as_mut(), folder);
    }
    script.end().expect("it was asked for nothing that makes no sense");
    dice.len() >= ENTRY
}

/// Writes to the whole volume, so that its plain bytes are known.
fn known(script: &Script, folder: bool) -> Vec<u8> {
    let plain: Vec<u8> = (0..SIZE).map(|at| (at / 512).to_le_bytes()[0]).collect();
    for (at, part) in (0..).step_by(LONGEST as usize).zip(plain.chunks(LONGEST as usize)) {
        let (node, start) =
            if folder { (2 + at / (SIZE as u64 / 2), at % (SIZE as u64 / 2)) } else { (1, at) };
        let call = Call { opcode: WRITE, node, offset: start, size: LONGEST, fill: 0 };
        let mut request = call.request(u64::MAX);
        request.truncate(80);
        request.extend(part);
        script.send(&request).expect("the thread goes on");
        assert_eq!(script.receive().expect("a reply")[4..8], [0; 4], "the volume is written");
    }
    plain
}

/// Returns the part of the volume that a file shows.
fn shown(node: u64, folder: bool) -> Option<Range<usize>> {
    match (folder, node) {
        (false, 1) => Some(0..SIZE),
        (true, 2) => Some(0..SIZE / 2),
        (true, 3) => Some(SIZE / 2..SIZE),
        _ => None,
    }
}

fn answer(script: &Script, open: &mut HashMap<u64, Call>, plain: Option<&mut Vec<u8>>, folder: bool) {
    let reply = script.receive().expect("a reply");
    let (header, body) = reply.split_at_checked(16).expect("the thread goes on");
    assert_eq!(header[..4], u32::try_from(reply.len()).expect("short").to_ne_bytes());
    let error = i32::from_ne_bytes(header[4..8].try_into().expect("4 bytes"));
    assert!((-4095..=0).contains(&error) && (error == 0 || body.is_empty()), "{error}");
    let unique = u64::from_ne_bytes(header[8..].try_into().expect("8 bytes"));
    let call = open.remove(&unique).expect("a request that is open");
    if call.opcode == READ {
        assert!(body.len() <= call.size as usize, "more than was asked for");
    }
    let (Some(plain), Some(file)) = (plain, shown(call.node, folder)) else { return };
    if error != 0 {
        return;
    }
    // Within the file.
    let within = |len: u64| {
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(file.len()) + file.start;
        at(call.offset)..at(call.offset.saturating_add(len))
    };
    match call.opcode {
        READ => assert!(body == &plain[within(call.size.into())], "what was written is read"),
        WRITE => plain[within(call.size.into())].fill(call.fill),
        FALLOCATE if call.mode() > KEEP_SIZE => plain[within(call.size.into())].fill(0),
        _ => {}
    }
}

impl Call {
    fn roll([what, node, a, b, c, d, scale, fill]: [u8; ENTRY], longest: u32) -> Self {
        let opcode = OPERATIONS[usize::from(what % 16)];
        let (at, len) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let offset = match scale & 3 {
            0 => u64::from(at) * 512,
            1 => u64::from(at) * 16,
            2 => at.into(),
            _ => u64::MAX - u64::from(at),
        };
        let size = match scale >> 2 & 3 {
            0 => u32::from(len % 32) * 4096,
            1 => u32::from(len % 256) * 512,
            _ => len.into(),
        };
        Self { opcode, node: u64::from(node % 5), offset, size: size.min(longest), fill }
    }

    /// Returns the mode of an FALLOCATE.
    fn mode(&self) -> u32 {
        [0, 1, 3, 16, 17, 2][usize::from(self.fill % 6)]
    }

    fn request(&self, unique: u64) -> Vec<u8> {
        let mut args = [0; 40];
        match self.opcode {
            FALLOCATE => {
                args[8..16].copy_from_slice(&self.offset.to_ne_bytes());
                args[16..24].copy_from_slice(&u64::from(self.size).to_ne_bytes());
                args[24..28].copy_from_slice(&self.mode().to_ne_bytes());
            }
            // A name.
            1 => args[..8].copy_from_slice(if self.fill & 1 == 0 { b"segment0" } else { b"a name \xff" }),
            // SETATTR's fields, OPEN's flags.
            4 | 14 => {
                args[..4]
                    .copy_from_slice(&u32::try_from(self.offset % (1 << 32)).expect("32 bits").to_ne_bytes());
                args[16..24].copy_from_slice(&u64::from(self.size).to_ne_bytes());
            }
            _ => {
                args[8..16].copy_from_slice(&self.offset.to_ne_bytes());
                args[16..20].copy_from_slice(&self.size.to_ne_bytes());
                // O_DIRECT and O_DSYNC.
                let flags = [0, 0o40_000, 0o10_000, 0o50_000][usize::from(self.fill >> 6)];
                args[32..36].copy_from_slice(&u32::to_ne_bytes(flags));
            }
        }
        let payload = if self.opcode == WRITE { self.size as usize } else { 0 };
        let len = u32::try_from(80 + payload).expect("short");
        let mut request = [len.to_ne_bytes(), self.opcode.to_ne_bytes()].concat();
        request.extend([unique, self.node].map(u64::to_ne_bytes).concat());
        request.extend([0_u32; 4].map(u32::to_ne_bytes).concat());
        request.extend(args);
        request.resize(request.len() + payload, self.fill);
        request
    }
}
