//! Requests and replies as bytes (the kernel's `include/uapi/linux/fuse.h`, protocol 7.9 and later).
//!
//! ```text
//!   head:  request header (40) | the operation's arguments (up to 40)     parse()
//!   body:  a write's payload   | the rest of longer arguments
//! ```

/// What is received apart from the payload: exactly a write's header and arguments.
pub(super) const HEAD: usize = HEADER + 40;
const HEADER: usize = 40;

/// The longest name that arrives whole in the head, its NUL included.
const NAME: usize = HEAD - HEADER;

/// Open flags of a reply.
pub(super) const FOPEN_DIRECT_IO: u32 = 1;
/// What the page cache holds of the file is still good.
pub(super) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// Direct writes need not take turns.
pub(super) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// A request: whose, and what for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call<'a> {
    /// Its number, for the reply.
    pub(super) unique: u64,
    /// The file that it is about.
    pub(super) node: u64,
    pub(super) operation: Operation<'a>,
}

/// What the kernel wants. `flags` are the open file's, as open(2) takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    GetAttr,
    SetAttr {
        valid: u32,
        size: u64,
    },
    Open {
        flags: u32,
    },
    OpenDir,
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        size: u32,
        flags: u32,
    },
    ReadDir {
        offset: u64,
        size: u32,
    },
    StatFs,
    Fsync,
    Fallocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    /// There is nothing to do.
    Done,
    /// Wants no reply.
    Silent,
    Other(u32),
}

/// Reads a request of which `len` bytes have come, the first of them in `head`; nothing when it is not whole.
pub(super) fn parse(head: &[u8; HEAD], len: usize) -> Option<Call<'_>> {
    if len < HEADER || u32_at(head, 0) as usize != len {
        return None;
    }
    let args = &head[HEADER..len.min(HEAD)];
    let operation = operation(u32_at(head, 4), args, len)?;
    Some(Call { unique: u64_at(head, 8), node: u64_at(head, 16), operation })
}

fn operation(opcode: u32, args: &[u8], len: usize) -> Option<Operation<'_>> {
    let has = |n: usize| (args.len() >= n).then_some(());
    Some(match opcode {
        1 => {
            // A longer name is none of ours.
            let whole = if len <= HEADER + NAME { args } else { &[] };
            Operation::Lookup { name: whole.split(|&b| b == 0).next().unwrap_or_default() }
        }
        // FORGET, INTERRUPT, BATCH_FORGET: nothing is counted, and what has begun is soon over.
        2 | 36 | 42 => Operation::Silent,
        3 => Operation::GetAttr,
        4 => has(24).map(|()| Operation::SetAttr { valid: u32_at(args, 0), size: u64_at(args, 16) })?,
        14 => has(4).map(|()| Operation::Open { flags: u32_at(args, 0) })?,
        15 => has(40).map(|()| Operation::Read { offset: u64_at(args, 8), size: u32_at(args, 16) })?,
        16 => {
            has(40)?;
            let size = u32_at(args, 16);
            if len - HEAD != size as usize {
                return None;
            }
            Operation::Write { offset: u64_at(args, 8), size, flags: u32_at(args, 32) }
        }
        17 => Operation::StatFs,
        20 => Operation::Fsync,
        27 => Operation::OpenDir,
        28 => has(40).map(|()| Operation::ReadDir { offset: u64_at(args, 8), size: u32_at(args, 16) })?,
        // RELEASE, RELEASEDIR, FSYNCDIR, DESTROY.
        18 | 29 | 30 | 38 => Operation::Done,
        43 => has(28).map(|()| Operation::Fallocate {
            offset: u64_at(args, 8),
            len: u64_at(args, 16),
            mode: u32_at(args, 24),
        })?,
        other => Operation::Other(other),
    })
}

/// A file's attributes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attr {
    pub(super) node: u64,
    pub(super) size: u64,
    /// Type and permissions.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) block: u32,
    /// Seconds since 1970, for all of its times.
    pub(super) time: u64,
}

/// How long the kernel may believe attributes and names, in seconds. They never change, but the server may go.
const VALID: u64 = 1;

/// The part of a reply that comes after its header, where that is not the file's data.
pub(super) struct Body {
    bytes: [u8; 128],
    len: usize,
}

impl Body {
    pub(super) const EMPTY: Self = Self { bytes: [0; 128], len: 0 };

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn attr(attr: &Attr) -> Self {
        Self::EMPTY.u64(VALID).u64(0).with_attr(attr)
    }

    pub(super) fn entry(attr: &Attr) -> Self {
        // Node, generation, the name's validity, the attributes', and the nanoseconds of both.
        Self::EMPTY.u64(attr.node).u64(0).u64(VALID).u64(VALID).u64(0).with_attr(attr)
    }

    /// A name that is not there, for as long as names are believed.
    pub(super) fn no_entry() -> Self {
        Self::EMPTY.u64(0).u64(0).u64(VALID).zeros(104)
    }

    pub(super) fn open(flags: u32) -> Self {
        Self::EMPTY.u64(0).u32(flags).u32(0)
    }

    pub(super) fn written(size: u32) -> Self {
        Self::EMPTY.u32(size).u32(0)
    }

    pub(super) fn statfs(size: u64, files: u64, block: u32) -> Self {
        let blocks = size / u64::from(block.max(1));
        // Blocks, free and available ones; files, free ones; block size, longest name, fragment size; nothing.
        Self::EMPTY
            .u64(blocks)
            .u64(0)
            .u64(0)
            .u64(files)
            .u64(0)
            .u32(block)
            .u32(255)
            .u32(block)
            .u32(0)
            .zeros(24)
    }

    fn with_attr(self, attr: &Attr) -> Self {
        let Attr { node, size, mode, uid, gid, block, time } = *attr;
        // Node, size, 512-byte blocks, three times and their nanoseconds, mode, links, owner, device, block, flags.
        let times = self.u64(node).u64(size).u64(size / 512).u64(time).u64(time).u64(time).zeros(12);
        times.u32(mode).u32(1).u32(uid).u32(gid).u32(0).u32(block).u32(0)
    }

    fn u64(self, value: u64) -> Self {
        self.push(&value.to_ne_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    fn zeros(self, len: usize) -> Self {
        self.push(&[0; 128][..len])
    }

    fn push(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }
}

/// A reply's header.
pub(super) fn reply_header(unique: u64, error: i32, body: usize) -> [u8; 16] {
    let mut header = [0; 16];
    let len = u32::try_from(header.len() + body).unwrap_or(u32::MAX);
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Appends a folder's entry, unless it would make the listing longer than `room`. `next` is where a later listing
/// goes on.
pub(super) fn push_dirent(listing: &mut Vec<u8>, room: usize, attr: &Attr, next: u64, name: &str) -> bool {
    let end = (listing.len() + 24 + name.len()).next_multiple_of(8);
    if end > room {
        return false;
    }
    listing.extend(attr.node.to_ne_bytes());
    listing.extend(next.to_ne_bytes());
    listing.extend(u32::try_from(name.len()).unwrap_or(0).to_ne_bytes());
    // The file's type as getdents(2) has it.
    listing.extend((attr.mode >> 12).to_ne_bytes());
    listing.extend(name.as_bytes());
    listing.resize(end, 0);
    true
}

/// # Panics
/// When the bytes are not there.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// # Panics
/// When the bytes are not there.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTR: Attr = Attr { node: 7, size: 8192, mode: 0o100_600, uid: 1, gid: 2, block: 4096, time: 3 };

    fn request(opcode: u32, args: &[u8], payload: usize) -> ([u8; HEAD], usize) {
        let mut head = [0; HEAD];
        let len = HEADER + args.len() + payload;
        head[..4].copy_from_slice(&u32::try_from(len).unwrap().to_ne_bytes());
        head[4..8].copy_from_slice(&opcode.to_ne_bytes());
        head[8] = 42;
        head[16] = 1;
        head[HEADER..HEADER + args.len()].copy_from_slice(args);
        (head, len)
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_write_is_its_head_and_its_payload() {
        let (head, len) = request(16, &words(&[0, 4096, 512, 0, 0x4000]), 512);
        let operation = Operation::Write { offset: 4096, size: 512, flags: 0x4000 };
        assert_eq!(parse(&head, len), Some(Call { unique: 42, node: 1, operation }));
    }

    #[test]
    fn what_is_not_whole_is_no_request() {
        let (head, len) = request(16, &words(&[0, 4096, 512, 0, 0]), 512);
        assert_eq!(parse(&head, len - 1), None, "shorter than it says");
        let (head, len) = request(16, &words(&[0, 4096, 512, 0, 0]), 511);
        assert_eq!(parse(&head, len), None, "a payload of another length");
        for opcode in [4, 14, 15, 16, 28, 43] {
            let (head, len) = request(opcode, &[], 0);
            assert_eq!(parse(&head, len), None, "{opcode} without arguments");
        }
        assert_eq!(parse(&[0; HEAD], 8), None, "shorter than a header");
    }

    #[test]
    fn a_name_ends_at_its_nul_and_one_too_long_is_nobodys() {
        let (head, len) = request(1, b"segment0\0", 0);
        assert_eq!(parse(&head, len).unwrap().operation, Operation::Lookup { name: b"segment0" });
        let (head, len) = request(1, &[b'x'; 40], 1);
        assert_eq!(parse(&head, len).unwrap().operation, Operation::Lookup { name: b"" });
    }

    #[test]
    fn replies_have_the_kernels_lengths() {
        assert_eq!(Body::attr(&ATTR).bytes().len(), 104);
        assert_eq!(Body::entry(&ATTR).bytes().len(), 128);
        assert_eq!(Body::no_entry().bytes().len(), 128);
        assert_eq!(Body::open(1).bytes().len(), 16);
        assert_eq!(Body::written(1).bytes().len(), 8);
        assert_eq!(Body::statfs(1, 1, 512).bytes().len(), 80);
    }

    #[test]
    fn a_listing_stays_within_its_room() {
        let mut listing = Vec::new();
        assert!(push_dirent(&mut listing, 64, &ATTR, 1, "a"));
        assert_eq!(listing.len(), 32);
        assert!(push_dirent(&mut listing, 64, &ATTR, 2, "12345678"));
        assert!(!push_dirent(&mut listing, 64, &ATTR, 3, "c"));
        assert_eq!(listing.len(), 64);
    }
}
