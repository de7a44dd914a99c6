//! A kernel's requests to a mounted folder.

use std::path::Path;
use std::sync::Arc;

use underseal_ecryptfs::fs::script::{self, FsScript};
use underseal_ecryptfs::fs::{Crypto, CryptoPolicy, MountKeys, Sealing};
use underseal_ecryptfs::{Cipher, HeaderLocation, Keyring, NameCipher};

/// The flags of the first byte.
const NAMES: u8 = 1;
const XATTRS: u8 = 2;
const PASSTHROUGH: u8 = 4;
const STRICT: u8 = 8;
const LONG_NAMES: u8 = 16;
/// A plain stacked filesystem.
const BARE: u8 = 32;

/// The number of input bytes for a request.
const ENTRY: usize = 10;

const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const OPENDIR: u32 = 27;
const CREATE: u32 = 35;
const TMPFILE: u32 = 51;
/// FORGET, INTERRUPT, BATCH_FORGET.
const SILENT: [u32; 3] = [2, 36, 42];
const OPERATIONS: [u32; 40] = [
    CREATE, WRITE, READ, LOOKUP, OPEN, WRITE, READ, 4, 9, CREATE, 3, 5, 6, 8, 10, 11, 12, 13, 17, 18, 20, 21,
    22, 23, 24, 25, OPENDIR, 28, 29, 30, 43, 44, 45, 46, TMPFILE, 2, 36, 42, 38, 99,
];

/// The largest size of a file: growth is filled.
const MOST: u64 = 1 << 17;

/// The known state of the filesystem: nodes and open files, from the replies.
struct Kernel {
    script: FsScript,
    nodes: Vec<u64>,
    handles: Vec<u64>,
    unique: u64,
}

/// Serves these requests over a new folder. Returns true when a file was written and read.
pub(crate) fn requests(bytes: &[u8]) -> bool {
    let Some((&mode, dice)) = bytes.split_first() else { return false };
    let folder = tempfile::tempdir().expect("a folder");
    let lower = folder.path().join("lower");
    std::fs::create_dir(&lower).expect("a folder");
    std::fs::write(lower.join("plain"), b"no header").expect("a file");
    let script = script::start(&lower, sealing(mode)).expect("a thread");
    let mut kernel = Kernel { script, nodes: vec![1], handles: vec![0], unique: 0 };
    let (mut written, mut read) = (false, false);
    for entry in dice.chunks_exact(ENTRY).take(128) {
        let (opcode, bytes) = kernel.ask(entry.try_into().expect("10 bytes"));
        written |= opcode == WRITE && bytes > 0;
        read |= opcode == READ && bytes > 0;
    }
    kernel.script.end().expect("the thread goes on to the end");
    alone(folder.path());
    written && read
}

/// Checks that nothing was created beside the lower folder.
fn alone(folder: &Path) {
    let names: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(names, ["lower"]);
}

fn sealing(mode: u8) -> Option<Sealing> {
    if mode & BARE != 0 {
        return None;
    }
    let token = Arc::new(super::token());
    let names =
        (mode & NAMES != 0).then(|| NameCipher::new(token.clone(), Cipher::DEFAULT).expect("a cipher"));
    Some(Sealing {
        keys: MountKeys { keyring: Keyring::from(super::token()), new_files: vec![token] },
        cipher: Cipher::DEFAULT,
        crypto: Crypto::new(CryptoPolicy::Inline),
        names,
        long_names: mode & LONG_NAMES != 0,
        place: if mode & XATTRS != 0 { HeaderLocation::Xattr } else { HeaderLocation::File },
        passthrough: mode & PASSTHROUGH != 0,
        encrypted_view: false,
        strict: mode & STRICT != 0,
    })
}

impl Kernel {
    /// Sends a request, and handles the reply. Returns the reply's length.
    fn ask(&mut self, dice: [u8; ENTRY]) -> (u32, usize) {
        let [what, node, handle, a, b, c, d, e, flags, cut] = dice;
        let opcode = OPERATIONS[usize::from(what) % OPERATIONS.len()];
        let pick = |from: &[u64], nth: u8| from[usize::from(nth) % from.len()];
        let (node, handle) = (pick(&self.nodes, node), pick(&self.handles, handle));
        let offset = u64::from(u16::from_le_bytes([a, b])) * [1, 2, 512, 4096][usize::from(e & 3)] % MOST;
        let size = u32::from(u16::from_le_bytes([c, d]));
        let mut body = Bytes(Vec::new());
        arguments(
            &mut body,
            opcode,
            &Arguments { handle, offset, size, flags, names: [a, b], pick: self.nodes[0] },
        );
        // Sometimes it is cut short, if it has a reply.
        if cut > 0xf0 && !SILENT.contains(&opcode) {
            body.0.truncate(usize::from(a) % (body.0.len() + 1));
        }
        self.unique += 1;
        let mut request = Bytes(Vec::new());
        let len = u32::try_from(40 + body.0.len()).expect("short");
        request.u32(&[len, opcode]).u64(&[self.unique, node]);
        // The caller: root, mostly, and a process.
        request.u32(&[if cut & 1 == 0 { 0 } else { 61_234 }, 0, 1, 0]);
        request.0.extend(body.0);
        self.script.send(&request.0).expect("the thread goes on");
        if SILENT.contains(&opcode) {
            return (opcode, 0);
        }
        (opcode, self.hear(opcode, size))
    }

    fn hear(&mut self, opcode: u32, size: u32) -> usize {
        let reply = self.script.receive().expect("a reply");
        let (header, body) = reply.split_at_checked(16).expect("the thread goes on");
        assert_eq!(header[..4], u32::try_from(reply.len()).expect("short").to_ne_bytes());
        assert_eq!(header[8..], self.unique.to_ne_bytes(), "the reply to another request");
        let error = i32::from_ne_bytes(header[4..8].try_into().expect("4 bytes"));
        assert!((-4095..=0).contains(&error) && (error == 0 || body.is_empty()), "{error}");
        if error != 0 {
            return 0;
        }
        let number = |at: usize| u64::from_ne_bytes(body[at..at + 8].try_into().expect("8 bytes"));
        match opcode {
            // LOOKUP and all calls that create an entry return a node; opens return a handle.
            LOOKUP | 6 | 8 | 9 | 13 if number(0) != 0 => self.nodes.push(number(0)),
            CREATE | TMPFILE => {
                self.nodes.push(number(0));
                self.handles.push(number(128));
            }
            OPEN | OPENDIR => self.handles.push(number(0)),
            READ => assert!(body.len() <= size as usize, "more than was asked for"),
            WRITE => return usize::try_from(number(0) & 0xffff_ffff).expect("32 bits"),
            _ => {}
        }
        body.len()
    }
}

struct Arguments {
    handle: u64,
    offset: u64,
    size: u32,
    flags: u8,
    names: [u8; 2],
    pick: u64,
}

/// Returns a name as checked by the kernel: not empty, without a slash, not upwards.
fn name(nth: u8) -> Vec<u8> {
    match nth % 10 {
        0 => b"a".into(),
        1 => b"b".into(),
        2 => b"plain".into(),
        3 => b"folder".into(),
        4 => vec![b'n'; 143],
        5 => vec![b'n'; 144],
        6 => vec![b'm'; 255],
        7 => vec![b'm'; 256],
        8 => b"ECRYPTFS_FNEK_ENCRYPTED.FWaaaaaaaaaaaaaaaaaaaaaaaa".into(),
        _ => vec![nth | 0x80, b'\n'],
    }
}

fn arguments(body: &mut Bytes, opcode: u32, with: &Arguments) {
    let &Arguments { handle, offset, size, flags, names: [first, second], pick } = with;
    let mode = 0o600 | u32::from(flags & 0o77);
    let (first, second) = (name(first), name(second));
    let xattr: &[u8] = [&b"user.a"[..], b"user.ecryptfs", b"system.posix_acl_access", b"security.capability"]
        [usize::from(flags & 3)];
    match opcode {
        LOOKUP | 10 | 11 => body.name(&first),
        2 => body.u64(&[1]),
        42 => body.u32(&[1, 0]).u64(&[handle, 1]),
        4 => body
            .u32(&[1 << 3 | u32::from(flags), 0])
            .u64(&[handle, offset, 0, 1, 2, 3])
            .u32(&[0, 0, 0, mode, 0, 0, 0, 0]),
        6 => body.name(&first).name(&second),
        8 => body.u32(&[mode | 0o010_000, 0, 0o22, 0]).name(&first),
        9 => body.u32(&[mode | 0o700, 0o22]).name(&first),
        12 => body.u64(&[pick]).name(&first).name(&second),
        45 => body.u64(&[pick]).u32(&[u32::from(flags & 7), 0]).name(&first).name(&second),
        13 => body.u64(&[handle]).name(&first),
        OPEN => body.u32(&[open_flags(flags), 0]),
        READ | 28 | 44 => body.u64(&[handle, offset]).u32(&[size, 0]).u64(&[0]).u32(&[0, 0]),
        WRITE => {
            body.u64(&[handle, offset]).u32(&[size, u32::from(flags & 4)]).u64(&[0]).u32(&[0, 0]);
            body.0.resize(body.0.len() + size as usize, flags);
            body
        }
        18 | 29 => body.u64(&[handle]).u32(&[0; 4]),
        20 | 30 => body.u64(&[handle]).u32(&[flags.into(), 0]),
        21 => {
            let len = size % 200;
            body.u32(&[len, u32::from(flags >> 6), 0, 0]).name(xattr);
            body.0.resize(body.0.len() + len as usize, flags);
            body
        }
        22 => body.u32(&[size % 300, 0]).name(xattr),
        23 => body.u32(&[size % 300, 0]),
        24 => body.name(xattr),
        CREATE => body.u32(&[open_flags(flags) | 0o100, mode, 0o22, 0]).name(&first),
        TMPFILE => body.u32(&[open_flags(flags), mode, 0o22, 0]),
        43 => body.u64(&[handle, offset, size.into()]).u32(&[u32::from(flags & 0x1b), 0]),
        46 => body.u64(&[handle, offset]).u32(&[flags.into(), 0]),
        _ => body.u64(&[handle, offset, 0]),
    };
}

/// Returns flags for opening a file: any access, sometimes with O_APPEND, O_TRUNC, O_EXCL.
fn open_flags(flags: u8) -> u32 {
    let [append, truncate, exclusive] =
        [(4, 0o2000), (8, 0o1000), (16, 0o200)].map(|(bit, flag)| if flags & bit != 0 { flag } else { 0 });
    u32::from(flags & 3) | append | truncate | exclusive
}

/// A request that grows at its end.
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(&mut self, values: &[u32]) -> &mut Self {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }

    fn u64(&mut self, values: &[u64]) -> &mut Self {
        self.0.extend(values.iter().flat_map(|value| value.to_ne_bytes()));
        self
    }

    fn name(&mut self, name: &[u8]) -> &mut Self {
        self.0.extend(name);
        self.0.push(0);
        self
    }
}
