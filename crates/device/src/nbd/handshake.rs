//! The client's side of newstyle negotiation, without I/O: bytes in, bytes out, and in the end an
//! export.
//!
//! ```text
//!   greeting -> STRUCTURED_REPLY -> (SET_META_CONTEXT) -> GO -> Ready
//!                                                         | the server knows no GO
//!                                                         +-> EXPORT_NAME -> Ready
//! ```
//!
//! A server cannot make the client keep more than [`MOST`] bytes or listen to more than [`REPLIES`]
//! messages.

use std::fmt;

use underseal_nbd_protocol::{
    BASE_ALLOCATION, ClientFlags, DEFAULT_MAX_PAYLOAD, HandshakeFlags, INIT_PASSWD, MAX_STRING, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, TransmissionFlags, info, option, option_reply as reply,
};

/// The longest message of a server in the handshake: an error text or description, with its header.
const MOST: usize = 4 * MAX_STRING;
/// The most messages before the export is chosen. A server that sends more is refused.
const REPLIES: u32 = 128;
/// A minimum block beyond this is forbidden by proto.md.
const LARGEST_MIN_BLOCK: u32 = 64 << 10;
/// Second word of the oldstyle greeting.
const OLDSTYLE: u64 = 0x0000_4202_8186_1253;

/// An export as the server describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerExport {
    /// The export's size in bytes.
    pub size: u64,
    /// The server's features.
    pub flags: TransmissionFlags,
    /// The unit of offsets and lengths.
    pub min_block: u32,
    /// The unit of requests that cost the server nothing extra.
    pub preferred_block: u32,
    /// The longest payload.
    pub max_block: u32,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// The number of the context `base:allocation`, if it was asked for and exists.
    pub allocation: Option<u32>,
}

/// The reason why a server cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeRefusal(String);

impl HandshakeRefusal {
    fn new(why: impl Into<String>) -> Self {
        Self(why.into())
    }
}

impl From<&str> for HandshakeRefusal {
    fn from(why: &str) -> Self {
        Self(why.into())
    }
}

impl fmt::Display for HandshakeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HandshakeRefusal {}

/// A negotiation.
pub struct ClientHandshake {
    name: String,
    wants_allocation: bool,
    step: Step,
    no_zeroes: bool,
    replies: u32,
    said: Option<(u64, TransmissionFlags)>,
    blocks: Option<[u32; 3]>,
    structured: bool,
    allocation: Option<u32>,
    output: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Greeting,
    Option(u32),
    ExportName,
}

impl ClientHandshake {
    /// Begins a negotiation for the export `name`; with `wants_allocation`, also for block status.
    pub fn new(name: &str, wants_allocation: bool) -> Self {
        Self {
            name: name.into(),
            wants_allocation,
            step: Step::Greeting,
            no_zeroes: false,
            replies: 0,
            said: None,
            blocks: None,
            structured: false,
            allocation: None,
            output: Vec::new(),
        }
    }

    /// Takes the bytes to be sent, and leaves none.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the number of further bytes, at least 1, that the message beginning with `input`
    /// needs. No more are read: following bytes belong to the transmission phase.
    ///
    /// # Errors
    /// The message is malformed, or too long.
    pub fn wants(&self, input: &[u8]) -> Result<usize, HandshakeRefusal> {
        let len = match self.step {
            Step::Greeting => 18,
            Step::ExportName => 10 + if self.no_zeroes { 0 } else { 124 },
            Step::Option(_) => match input.get(16..20) {
                None => 20,
                Some(len) => {
                    let len = u32_at(len, 0) as usize;
                    if len > MOST {
                        return Err(HandshakeRefusal::new(format!(
                            "a message of {len} bytes in the handshake"
                        )));
                    }
                    20 + len
                }
            },
        };
        Ok(len.saturating_sub(input.len()))
    }

    /// Takes a whole message, for which [`wants`](Self::wants) asks for no more bytes.
    ///
    /// # Errors
    /// The server speaks another protocol, or refuses the export.
    pub fn take(&mut self, input: &[u8]) -> Result<Option<ServerExport>, HandshakeRefusal> {
        match self.step {
            Step::Greeting => self.greeting(input).map(|()| None),
            Step::ExportName => {
                let flags = TransmissionFlags::from_bits_truncate(u16_at(input, 8));
                self.said = Some((u64_at(input, 0), flags));
                self.ready().map(Some)
            }
            Step::Option(option) => self.reply(option, input),
        }
    }

    fn greeting(&mut self, input: &[u8]) -> Result<(), HandshakeRefusal> {
        if u64_at(input, 0) != INIT_PASSWD {
            return Err(HandshakeRefusal::new("the peer is no NBD server"));
        }
        let second = u64_at(input, 8);
        let flags = HandshakeFlags::from_bits_truncate(u16_at(input, 16));
        if second == OLDSTYLE || (second == OPTION_MAGIC && !flags.contains(HandshakeFlags::FIXED_NEWSTYLE)) {
            return Err(HandshakeRefusal::new(
                "the server speaks an old NBD protocol; a newer one is needed (newstyle fixed)",
            ));
        }
        if second != OPTION_MAGIC {
            return Err(HandshakeRefusal::new("the peer is no NBD server"));
        }
        self.no_zeroes = flags.contains(HandshakeFlags::NO_ZEROES);
        let mut answer = ClientFlags::FIXED_NEWSTYLE;
        answer.set(ClientFlags::NO_ZEROES, self.no_zeroes);
        self.output.extend(answer.bits().to_be_bytes());
        self.ask(option::STRUCTURED_REPLY, &[]);
        Ok(())
    }

    fn reply(&mut self, asked: u32, input: &[u8]) -> Result<Option<ServerExport>, HandshakeRefusal> {
        if u64_at(input, 0) != OPTION_REPLY_MAGIC || u32_at(input, 8) != asked {
            return Err(HandshakeRefusal::new("the server's answers are out of step"));
        }
        self.replies += 1;
        if self.replies > REPLIES {
            return Err(HandshakeRefusal::new("the server's answer to an option has no end"));
        }
        let (kind, data) = (u32_at(input, 12), &input[20..]);
        match (asked, kind) {
            (_, reply::ERR_TLS_REQD) => Err(HandshakeRefusal::new(
                "the server wants TLS, which is not spoken to lower devices; use a Unix socket or an SSH tunnel",
            )),
            (option::STRUCTURED_REPLY, reply::ACK) => {
                self.structured = true;
                if self.wants_allocation {
                    self.ask_allocation()
                } else {
                    self.go()
                }
                Ok(None)
            }
            (option::STRUCTURED_REPLY, kind) if is_error(kind) => {
                self.go();
                Ok(None)
            }
            (option::SET_META_CONTEXT, reply::META_CONTEXT) => {
                if data.get(4..) == Some(BASE_ALLOCATION.as_bytes()) {
                    self.allocation = Some(u32_at(data, 0));
                }
                Ok(None)
            }
            (option::SET_META_CONTEXT, kind) if kind == reply::ACK || is_error(kind) => {
                self.go();
                Ok(None)
            }
            (option::GO, reply::INFO) => self.info(data).map(|()| None),
            (option::GO, reply::ACK) => self.ready().map(Some),
            (option::GO, reply::ERR_UNSUP) => {
                // The reply to this option has no length and no type, only the export.
                self.ask(option::EXPORT_NAME, self.name.clone().as_bytes());
                self.step = Step::ExportName;
                Ok(None)
            }
            (option::GO, kind) if is_error(kind) => Err(self.refusal(kind, data)),
            _ => Err(HandshakeRefusal::new(format!("the server's answer of type {kind} makes no sense"))),
        }
    }

    fn info(&mut self, data: &[u8]) -> Result<(), HandshakeRefusal> {
        let bad = || HandshakeRefusal::new("the server's description of the export has another length");
        match data.get(..2).map(|kind| u16_at(kind, 0)) {
            Some(info::EXPORT) if data.len() == 12 => {
                self.said = Some((u64_at(data, 2), TransmissionFlags::from_bits_truncate(u16_at(data, 10))));
                Ok(())
            }
            Some(info::BLOCK_SIZE) if data.len() == 14 => {
                self.blocks = Some([u32_at(data, 2), u32_at(data, 6), u32_at(data, 10)]);
                Ok(())
            }
            None | Some(info::EXPORT | info::BLOCK_SIZE) => Err(bad()),
            Some(_) => Ok(()),
        }
    }

    fn refusal(&self, kind: u32, data: &[u8]) -> HandshakeRefusal {
        let why = match kind {
            reply::ERR_UNKNOWN => "the server has no export of that name",
            reply::ERR_POLICY => "the server's policy forbids it",
            reply::ERR_SHUTDOWN => "the server is stopping",
            reply::ERR_INVALID => "the server calls the question invalid",
            _ => "the server refuses",
        };
        let said: String = String::from_utf8_lossy(&data[..data.len().min(200)])
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        let said = if said.is_empty() { said } else { format!(": \"{said}\"") };
        HandshakeRefusal::new(format!("export {:?}: {why}{said}", self.name))
    }

    fn ready(&self) -> Result<ServerExport, HandshakeRefusal> {
        let Some((size, flags)) = self.said else {
            return Err(HandshakeRefusal::new("the server does not say how large the export is"));
        };
        if i64::try_from(size).is_err() {
            return Err(HandshakeRefusal::new(format!("an export of {size} bytes")));
        }
        // Without block sizes those hold that every server accepts (proto.md, "Block size
        // constraints").
        let [min, preferred, max] = self.blocks.unwrap_or([512, 4096, DEFAULT_MAX_PAYLOAD]);
        let min = min.max(1);
        if !min.is_power_of_two() || min > LARGEST_MIN_BLOCK || max < min {
            return Err(HandshakeRefusal::new(format!("blocks of {min} to {max} bytes cannot be")));
        }
        Ok(ServerExport {
            size,
            flags,
            min_block: min,
            preferred_block: preferred.clamp(min.max(512), 32 << 20).next_power_of_two(),
            // A little below the largest length, in whole blocks.
            max_block: max.min(1 << 30) / min * min,
            structured: self.structured,
            allocation: self.allocation,
        })
    }

    fn ask_allocation(&mut self) {
        let mut data = Vec::new();
        push_string(&mut data, self.name.as_bytes());
        data.extend(1_u32.to_be_bytes());
        push_string(&mut data, BASE_ALLOCATION.as_bytes());
        self.ask(option::SET_META_CONTEXT, &data);
    }

    fn go(&mut self) {
        let mut data = Vec::new();
        push_string(&mut data, self.name.as_bytes());
        data.extend(1_u16.to_be_bytes());
        data.extend(info::BLOCK_SIZE.to_be_bytes());
        self.ask(option::GO, &data);
    }

    fn ask(&mut self, option: u32, data: &[u8]) {
        self.step = Step::Option(option);
        self.output.extend(OPTION_MAGIC.to_be_bytes());
        self.output.extend(option.to_be_bytes());
        push_string(&mut self.output, data);
    }
}

/// Appends bytes after their number. All strings here are short.
fn push_string(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(bytes);
}

fn is_error(kind: u32) -> bool {
    kind >> 31 == 1
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// Reads zeros where the message is too short: they are refused later.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let byte = |at| u16::from(bytes.get(at).copied().unwrap_or(0));
    byte(at) << 8 | byte(at + 1)
}
