//! Replies of the transmission phase, written into the caller's buffer: no allocation, no I/O.
//!
//! Each function writes at the start of `out` and returns the number of bytes written, which is the
//! constant beside it (error chunks add their message). A shorter buffer is a bug of the caller and
//! panics.
//!
//! ```text
//!   simple reply   magic u32 | error u32 | cookie               16 bytes, then a read's data
//!   chunk          magic u32 | flags u16 | type u16 | cookie | payload length u32
//!                                                               20 bytes, then the payload
//!     NONE            (nothing)
//!     OFFSET_DATA     offset u64, data
//!     OFFSET_HOLE     offset u64, length u32
//!     BLOCK_STATUS    context u32, (length u32, state u32)*
//!     ERROR           error u32, length u16, message
//!     ERROR_OFFSET    error u32, length u16, message, offset u64
//! ```
//!
//! `done` marks the last chunk of a reply. A content chunk may carry it only if nothing can fail
//! after it.

use super::chunk::{BLOCK_STATUS, DONE, ERROR, ERROR_OFFSET, NONE, OFFSET_DATA, OFFSET_HOLE};
use super::{Cookie, Errno, ExtentState, MAX_STRING, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC};

/// Bytes of [`simple_reply`].
pub const SIMPLE_REPLY_LEN: usize = 16;
/// Bytes of a chunk's header, and of [`none_chunk`].
pub const CHUNK_HEADER_LEN: usize = 20;
/// Bytes of [`offset_data_header`].
pub const OFFSET_DATA_HEADER_LEN: usize = CHUNK_HEADER_LEN + 8;
/// Bytes of [`offset_hole_chunk`].
pub const OFFSET_HOLE_LEN: usize = CHUNK_HEADER_LEN + 12;
/// Bytes of [`block_status_header`].
pub const BLOCK_STATUS_HEADER_LEN: usize = CHUNK_HEADER_LEN + 4;
/// Bytes of [`block_descriptor`].
pub const BLOCK_DESCRIPTOR_LEN: usize = 8;
/// Bytes of [`error_chunk`] without its message.
pub const ERROR_HEADER_LEN: usize = CHUNK_HEADER_LEN + 6;
/// Bytes of [`error_offset_chunk`] without its message.
pub const ERROR_OFFSET_HEADER_LEN: usize = CHUNK_HEADER_LEN + 14;

/// Writes a simple reply. `None` is success; a successful read's data follows.
pub fn simple_reply(out: &mut [u8], cookie: Cookie, error: Option<Errno>) -> usize {
    Writer(out, 0)
        .u32(SIMPLE_REPLY_MAGIC)
        .u32(error.map_or(0, Errno::number))
        .bytes(&cookie)
        .end(SIMPLE_REPLY_LEN)
}

/// Writes the end of a reply without further data.
pub fn none_chunk(out: &mut [u8], cookie: Cookie) -> usize {
    chunk(out, NONE, true, cookie, 0).end(CHUNK_HEADER_LEN)
}

/// The header before `length` bytes of data read at `offset`.
///
/// # Panics
/// When `length` is zero, which the protocol forbids, or so large that the payload's length needs
/// more than 32 bits.
pub fn offset_data_header(out: &mut [u8], cookie: Cookie, done: bool, offset: u64, length: u32) -> usize {
    assert!(length > 0, "a content chunk describes at least one byte");
    let payload = length.checked_add(8).expect("a chunk's length fits 32 bits");
    chunk(out, OFFSET_DATA, done, cookie, payload).u64(offset).end(OFFSET_DATA_HEADER_LEN)
}

/// Writes a chunk for `length` bytes at `offset` that read as zeroes.
///
/// # Panics
/// When `length` is zero.
pub fn offset_hole_chunk(out: &mut [u8], cookie: Cookie, done: bool, offset: u64, length: u32) -> usize {
    assert!(length > 0, "a content chunk describes at least one byte");
    chunk(out, OFFSET_HOLE, done, cookie, 12).u64(offset).u32(length).end(OFFSET_HOLE_LEN)
}

/// The header before `extents` descriptors (1 to 2^20) of one metadata context.
///
/// # Panics
/// When `extents` is zero or more than 2^20.
pub fn block_status_header(out: &mut [u8], cookie: Cookie, done: bool, context: u32, extents: u32) -> usize {
    assert!((1..=1 << 20).contains(&extents), "a block status has 1 to 2^20 extents");
    chunk(out, BLOCK_STATUS, done, cookie, 4 + 8 * extents).u32(context).end(BLOCK_STATUS_HEADER_LEN)
}

/// An extent of a block status: `length` bytes in `state`.
pub fn block_descriptor(out: &mut [u8], length: u32, state: ExtentState) -> usize {
    Writer(out, 0).u32(length).u32(state.bits()).end(BLOCK_DESCRIPTOR_LEN)
}

/// An error chunk. The message, for people, is cut to the room in `out` and the protocol's 4096
/// bytes.
pub fn error_chunk(out: &mut [u8], cookie: Cookie, done: bool, error: Errno, message: &str) -> usize {
    let message = shorten(message, out.len().saturating_sub(ERROR_HEADER_LEN));
    let (length, payload) = message_len(message, 6);
    chunk(out, ERROR, done, cookie, payload)
        .u32(error.number())
        .u16(length)
        .bytes(message.as_bytes())
        .end(ERROR_HEADER_LEN + message.len())
}

/// Writes a chunk for a request that failed at `offset` of the export. The message is cut as in
/// [`error_chunk`].
pub fn error_offset_chunk(
    out: &mut [u8],
    cookie: Cookie,
    done: bool,
    error: Errno,
    offset: u64,
    message: &str,
) -> usize {
    let message = shorten(message, out.len().saturating_sub(ERROR_OFFSET_HEADER_LEN));
    let (length, payload) = message_len(message, 14);
    chunk(out, ERROR_OFFSET, done, cookie, payload)
        .u32(error.number())
        .u16(length)
        .bytes(message.as_bytes())
        .u64(offset)
        .end(ERROR_OFFSET_HEADER_LEN + message.len())
}

fn chunk(out: &mut [u8], kind: u16, done: bool, cookie: Cookie, payload: u32) -> Writer<'_> {
    Writer(out, 0)
        .u32(STRUCTURED_REPLY_MAGIC)
        .u16(if done { DONE } else { 0 })
        .u16(kind)
        .bytes(&cookie)
        .u32(payload)
}

/// Returns the longest prefix that fits and ends between characters.
fn shorten(message: &str, room: usize) -> &str {
    let mut end = message.len().min(room).min(MAX_STRING);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[expect(clippy::cast_possible_truncation, reason = "a shortened message has at most MAX_STRING bytes")]
fn message_len(message: &str, fixed: u32) -> (u16, u32) {
    const { assert!(MAX_STRING <= u16::MAX as usize) };
    (message.len() as u16, message.len() as u32 + fixed)
}

/// A writer of consecutive bytes; `end` checks their number.
struct Writer<'a>(&'a mut [u8], usize);

impl Writer<'_> {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        let end = self.1 + bytes.len();
        self.0[self.1..end].copy_from_slice(bytes);
        self.1 = end;
        self
    }

    fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    fn end(self, promised: usize) -> usize {
        debug_assert_eq!(self.1, promised);
        promised
    }
}

const _: () = {
    assert!(SIMPLE_REPLY_LEN == size_of::<u32>() * 2 + size_of::<Cookie>());
    assert!(CHUNK_HEADER_LEN == size_of::<u32>() * 2 + size_of::<u16>() * 2 + size_of::<Cookie>());
};

#[cfg(test)]
mod tests {
    use super::*;

    const COOKIE: Cookie = *b"COOKIE!!";

    fn written(encode: impl FnOnce(&mut [u8]) -> usize) -> String {
        let mut out = [0xee; 64];
        let length = encode(&mut out);
        assert!(out[length..].iter().all(|&b| b == 0xee), "wrote beyond what was returned");
        out[..length].iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn replies_are_byte_for_byte_what_the_protocol_says() {
        let cookie = "434f4f4b49452121";
        let table = [
            (written(|o| simple_reply(o, COOKIE, None)), format!("6744669800000000{cookie}")),
            (written(|o| simple_reply(o, COOKIE, Some(Errno::Inval))), format!("6744669800000016{cookie}")),
            (written(|o| none_chunk(o, COOKIE)), format!("668e33ef00010000{cookie}00000000")),
            (
                written(|o| offset_data_header(o, COOKIE, true, 0x1000, 512)),
                format!("668e33ef00010001{cookie}00000208 0000000000001000"),
            ),
            (
                written(|o| offset_hole_chunk(o, COOKIE, false, 0x2000, 0x1000)),
                format!("668e33ef00000002{cookie}0000000c 0000000000002000 00001000"),
            ),
            (
                written(|o| block_status_header(o, COOKIE, true, 7, 2)),
                format!("668e33ef00010005{cookie}00000014 00000007"),
            ),
            (
                written(|o| block_descriptor(o, 4096, ExtentState::HOLE | ExtentState::ZERO)),
                "00001000 00000003".into(),
            ),
            (
                written(|o| error_chunk(o, COOKIE, true, Errno::Io, "bad")),
                format!("668e33ef00018001{cookie}00000009 00000005 0003 626164"),
            ),
            (
                written(|o| error_offset_chunk(o, COOKIE, false, Errno::NoSpc, 0x10, "")),
                format!("668e33ef00008002{cookie}0000000e 0000001c 0000 0000000000000010"),
            ),
        ];
        for (got, want) in table {
            assert_eq!(got, want.replace(' ', ""));
        }
    }

    #[test]
    fn long_message_is_cut_between_characters() {
        let mut out = [0; ERROR_HEADER_LEN + 4];
        // Each character has two bytes, and the third does not fit.
        assert_eq!(error_chunk(&mut out, COOKIE, true, Errno::Io, "\u{e9}\u{e9}\u{e9}"), out.len());
        assert_eq!(&out[ERROR_HEADER_LEN..], "\u{e9}\u{e9}".as_bytes());
        let mut out = [0; ERROR_HEADER_LEN + 3];
        assert_eq!(error_chunk(&mut out, COOKIE, true, Errno::Io, "\u{e9}\u{e9}"), out.len() - 1);
        let mut out = vec![0; 10_000];
        assert_eq!(
            error_chunk(&mut out, COOKIE, true, Errno::Io, &"x".repeat(9000)),
            ERROR_HEADER_LEN + MAX_STRING
        );
    }
}
