//! NBD messages on the wire, for a client and for a server, without any I/O.
//!
//! ```text
//!   request.rs   the 28-byte header of a transmission request, parsed
//!   reply.rs     simple replies and structured chunks, encoded into the caller's buffer
//!   errno.rs     the eight error values for clients
//!   here         flag words, magics, options, reply types
//! ```
//!
//! Everything is big-endian. Values are from proto.md, "Values": `doc/proto.md` of
//! <https://github.com/NetworkBlockDevice/nbd>.

#![forbid(unsafe_code)]

mod errno;
mod reply;
mod request;

pub use errno::Errno;
pub use reply::{
    BLOCK_DESCRIPTOR_LEN, BLOCK_STATUS_HEADER_LEN, CHUNK_HEADER_LEN, ERROR_HEADER_LEN,
    ERROR_OFFSET_HEADER_LEN, OFFSET_DATA_HEADER_LEN, OFFSET_HOLE_LEN, SIMPLE_REPLY_LEN, block_descriptor,
    block_status_header, error_chunk, error_offset_chunk, none_chunk, offset_data_header, offset_hole_chunk,
    simple_reply,
};
pub use request::{BadMagic, Cookie, REQUEST_LEN, RequestHeader, RequestType};

bitflags::bitflags! {
    /// The server's capabilities in its greeting ("handshake flags").
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct HandshakeFlags: u16 {
        /// Options other than EXPORT_NAME are answered.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The 124 zeroes after EXPORT_NAME may be left out.
        const NO_ZEROES = 1 << 1;
    }

    /// The client's answer to the greeting. An unknown bit closes the connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ClientFlags: u32 {
        /// The client knows fixed newstyle.
        const FIXED_NEWSTYLE = 1 << 0;
        /// The client needs no padding after EXPORT_NAME.
        const NO_ZEROES = 1 << 1;
    }

    /// The capabilities of an export ("transmission flags").
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TransmissionFlags: u16 {
        /// Always set.
        const HAS_FLAGS = 1 << 0;
        /// Writes are refused with EPERM.
        const READ_ONLY = 1 << 1;
        /// FLUSH works.
        const SEND_FLUSH = 1 << 2;
        /// [`CommandFlags::FUA`] works.
        const SEND_FUA = 1 << 3;
        /// The medium is rotational.
        const ROTATIONAL = 1 << 4;
        /// TRIM works.
        const SEND_TRIM = 1 << 5;
        /// WRITE_ZEROES and [`CommandFlags::NO_HOLE`] work.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// [`CommandFlags::DF`] works; only sent after structured replies were negotiated.
        const SEND_DF = 1 << 7;
        /// A flush on one connection covers the writes that any connection saw completed.
        const CAN_MULTI_CONN = 1 << 8;
        /// CACHE works.
        const SEND_CACHE = 1 << 10;
        /// [`CommandFlags::FAST_ZERO`] works.
        const SEND_FAST_ZERO = 1 << 11;
    }

    /// Flags of a request. Unknown bits are kept, so that a server can refuse them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct CommandFlags: u16 {
        /// Reply only when the data is on stable storage.
        const FUA = 1 << 0;
        /// WRITE_ZEROES: leave the area allocated.
        const NO_HOLE = 1 << 1;
        /// READ: at most one content chunk.
        const DF = 1 << 2;
        /// BLOCK_STATUS: only one extent.
        const REQ_ONE = 1 << 3;
        /// WRITE_ZEROES: fail with ENOTSUP rather than be as slow as a write.
        const FAST_ZERO = 1 << 4;
        /// Keeps all other bits.
        const _ = !0;
    }

    /// Status of an extent in the `base:allocation` context.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ExtentState: u32 {
        /// Not allocated: a write may fail with ENOSPC.
        const HOLE = 1 << 0;
        /// Reads as zeroes.
        const ZERO = 1 << 1;
    }
}

/// First word of the greeting: "NBDMAGIC".
pub const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and the first of every option: "IHAVEOPT".
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply's chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The longest string the protocol allows, in bytes: export names, descriptions, queries, error
/// messages.
pub const MAX_STRING: usize = 4096;
/// The port registered for NBD.
pub const PORT: u16 = 10809;
/// The only metadata context in the standard.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The payload that every client may use without negotiated block sizes: 32 MiB.
pub const DEFAULT_MAX_PAYLOAD: u32 = 1 << 25;

/// Options of the handshake (proto.md, "Option types").
pub mod option {
    /// Chooses an export and starts. The only failure is closing the connection.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the session.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Starts TLS on the connection.
    pub const STARTTLS: u32 = 5;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and starts.
    pub const GO: u32 = 7;
    /// Enables structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options (proto.md, "Option reply types").
pub mod option_reply {
    const ERROR: u32 = 1 << 31;

    /// Done.
    pub const ACK: u32 = 1;
    /// An export of a list.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR + 1;
    /// The option is known, but forbidden here.
    pub const ERR_POLICY: u32 = ERROR + 2;
    /// The option's data is wrong, or it came at the wrong time.
    pub const ERR_INVALID: u32 = ERROR + 3;
    /// TLS is required first.
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    /// The client must ask for block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR + 8;
    /// The option is too long.
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
}

/// Chunks of a structured reply (proto.md, "Structured reply types").
pub mod chunk {
    /// Flag: the reply ends with this chunk.
    pub const DONE: u16 = 1 << 0;
    /// The bit of every error type.
    pub const IS_ERROR: u16 = 1 << 15;

    /// The end of a reply without further data.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error of the whole request.
    pub const ERROR: u16 = IS_ERROR + 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = IS_ERROR + 2;
}

/// Information about an export (`NBD_INFO_*`).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A description for users.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}
