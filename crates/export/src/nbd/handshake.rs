//! The handshake: fixed newstyle negotiation over any blocking `Read + Write`.
//!
//! ```text
//!   greet --> option --> option --> ... --+--> Step::Ready     GO, EXPORT_NAME
//!               |                         +--> Step::StartTls  upgrade to TLS, then run again
//!               |                         +--> Step::Left      ABORT, or closed between options
//!               +-- stream.rs    the greeting, and an option's bytes
//!               +-- options.rs   parses the bytes
//!               +-- answers.rs   the effect of each option
//!               +-- replies.rs   the replies
//! ```
//!
//! The cost that a client can cause is bounded: an option's data, the number of options, and, by
//! the transport, the time. Nothing is read beyond the last option's last byte.

mod answers;
mod options;
mod replies;
mod stream;

use std::io::{Read, Write};

use self::{
    replies::Replies,
    stream::{greet, read_data, read_or_end, skip},
};
use super::{
    exports::{ExportInfo, Exports},
    protocol::{ClientFlags, MAX_STRING, OPTION_MAGIC, TransmissionFlags, option, option_reply as reply},
};
use crate::net::Printable;
use crate::{Error, ErrorKind, Result};

/// A client's negotiation.
pub struct Handshake<'a> {
    exports: &'a Exports,
    tls: TlsUse,
    gate: &'a dyn Admission,
    client: Option<ClientFlags>,
    secured: bool,
    offers_structured: bool,
    structured: bool,
    /// The export for which `base:allocation` was chosen last.
    allocation: Option<usize>,
    options: u32,
}

/// The end of a run of the negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The client was promised TLS: upgrade the transport and call [`run`](Handshake::run) again
    /// over it.
    StartTls,
    /// The transmission phase begins with the next byte.
    Ready(Negotiated),
    /// The client has ended the negotiation.
    Left,
}

/// The result of a negotiation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The export's index among the server's.
    pub export: usize,
    /// Reads must be answered with structured replies.
    pub structured_replies: bool,
    /// The context id of `base:allocation`, if the client chose it: only then is BLOCK_STATUS
    /// allowed.
    pub base_allocation: Option<u32>,
    /// The client promised to respect the export's block sizes.
    pub block_sizes: bool,
    /// The flags that were sent.
    pub flags: TransmissionFlags,
    /// The connection is TLS.
    pub tls: bool,
}

/// How a server uses TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsUse {
    /// STARTTLS is refused.
    Off,
    /// The client decides.
    Offered,
    /// Other options are refused before STARTTLS.
    Required,
}

/// The server's part in a negotiation: limits and the stop.
pub trait Admission {
    /// Notes that the client has answered the greeting.
    fn heard(&self);

    /// Asks whether this client may enter the transmission phase. `Ok` counts it as connected.
    ///
    /// The reason why the client is refused.
    fn admit(&self) -> std::result::Result<(), Refusal>;

    /// Returns true while the server stops: options are answered with ERR_SHUTDOWN.
    fn stopping(&self) -> bool;
}

/// Why a client is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// This number of clients is connected already.
    Full(usize),
    /// The server is stopping.
    Stopping,
}

/// The id under which `base:allocation` is sent. Clients must accept any.
const ALLOCATION_ID: u32 = 1;
/// Longest option data that is parsed: several times the longest name with every query that a
/// client could send.
const MAX_OPTION: u32 = 64 << 10;
/// Longest option data that is read and dropped to stay in step. Beyond it the connection ends.
const MAX_SKIP: u32 = 1 << 20;
/// Options one client may send. The busiest client known (qemu, libnbd) sends fewer than ten.
const MAX_OPTIONS: u32 = 256;

impl<'a> Handshake<'a> {
    /// A negotiation that has not begun.
    pub fn new(exports: &'a Exports, tls: TlsUse, gate: &'a dyn Admission) -> Self {
        Self {
            exports,
            tls,
            gate,
            client: None,
            secured: false,
            offers_structured: true,
            structured: false,
            allocation: None,
            options: 0,
        }
    }

    /// The same negotiation, refusing structured replies, and block status with them.
    ///
    /// A client such as libnbd takes four calls to read a structured reply and two to read a simple
    /// one.
    #[must_use]
    pub fn with_simple_replies(mut self, simple: bool) -> Self {
        self.offers_structured = !simple;
        self
    }

    /// Negotiates until there is a [`Step`] to take. After [`Step::StartTls`], call it again with
    /// the TLS transport.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`]: the client broke the protocol, or sent an EXPORT_NAME that must be
    /// refused, for which the protocol has no error reply. [`ErrorKind::Timeout`] and
    /// [`ErrorKind::Io`]: the transport failed. The caller must close the connection.
    pub fn run(&mut self, io: &mut (impl Read + Write)) -> Result<Step> {
        let client = match self.client {
            Some(client) => client,
            None => match greet(io)? {
                Some(client) => *self.client.insert(client),
                None => return Ok(Step::Left),
            },
        };
        self.gate.heard();
        loop {
            let Some((option, length)) = self.next_option(io)? else { return Ok(Step::Left) };
            if !client.contains(ClientFlags::FIXED_NEWSTYLE) && option != option::EXPORT_NAME {
                return Err(violation(format!(
                    "option {option} from a client that does not speak fixed newstyle"
                )));
            }
            if option == option::EXPORT_NAME {
                return self.export_name(io, length, client);
            }
            if let Some(step) = self.answer(io, option, length)? {
                return Ok(step);
            }
        }
    }

    /// Reads an option's header: its number and the length of its data. Returns `None` if the
    /// client closed the connection instead.
    fn next_option(&mut self, io: &mut impl Read) -> Result<Option<(u32, u32)>> {
        let mut header = [0; 16];
        if !read_or_end(io, &mut header)? {
            return Ok(None);
        }
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Err(violation(format!("more than {MAX_OPTIONS} options")));
        }
        let [m0, m1, m2, m3, m4, m5, m6, m7, o0, o1, o2, o3, l0, l1, l2, l3] = header;
        let magic = u64::from_be_bytes([m0, m1, m2, m3, m4, m5, m6, m7]);
        if magic != OPTION_MAGIC {
            return Err(violation(format!(
                "an option begins with {magic:#018x}, not with {OPTION_MAGIC:#018x}"
            )));
        }
        Ok(Some((u32::from_be_bytes([o0, o1, o2, o3]), u32::from_be_bytes([l0, l1, l2, l3]))))
    }

    /// Answers EXPORT_NAME, which has no error reply: transmission starts or the connection ends.
    fn export_name(
        &mut self,
        io: &mut (impl Read + Write),
        length: u32,
        client: ClientFlags,
    ) -> Result<Step> {
        if self.tls == TlsUse::Required && !self.secured {
            return Err(violation("EXPORT_NAME before STARTTLS, which this server requires"));
        }
        if length as usize > MAX_STRING {
            return Err(violation(format!(
                "an export name of {length} bytes; the protocol allows {MAX_STRING}"
            )));
        }
        let name = read_data(io, length)?;
        let Some(index) = self.exports.find(&name) else {
            return Err(violation(format!("no export {}", Printable(&name))));
        };
        let export = &self.exports[index];
        if needs_block_sizes(export) {
            return Err(violation(format!(
                "EXPORT_NAME for export {}, whose minimum block of {} bytes a client must ask for with GO",
                Printable(&name),
                export.min_block
            )));
        }
        self.gate.admit().map_err(|refusal| violation(refusal.text()))?;
        let negotiated = self.negotiated(index, false);
        let mut answer = Vec::with_capacity(134);
        answer.extend(export.size.to_be_bytes());
        answer.extend(negotiated.flags.bits().to_be_bytes());
        if !client.contains(ClientFlags::NO_ZEROES) {
            answer.resize(answer.len() + 124, 0);
        }
        io.write_all(&answer)?;
        io.flush()?;
        Ok(Step::Ready(negotiated))
    }

    /// Reads one option's data and replies to it.
    fn answer(&mut self, io: &mut (impl Read + Write), option: u32, length: u32) -> Result<Option<Step>> {
        let mut replies = Replies::to(option);
        let step = if length > MAX_OPTION {
            skip(io, length)?;
            replies.error(reply::ERR_TOO_BIG, "the option's data is too long");
            None
        } else {
            let data = read_data(io, length)?;
            self.reply_to(option, &data, &mut replies).unwrap_or_else(|fault| {
                replies.error(fault.reply, &fault.text);
                None
            })
        };
        let sent = replies.send(io);
        if step == Some(Step::Left) {
            // A client may abort and close without waiting for the reply.
            return Ok(step);
        }
        sent?;
        Ok(step)
    }

    fn flags(&self, export: &ExportInfo) -> TransmissionFlags {
        let hidden = if self.structured { TransmissionFlags::empty() } else { TransmissionFlags::SEND_DF };
        (export.flags | TransmissionFlags::HAS_FLAGS) - hidden
    }

    fn negotiated(&self, export: usize, block_sizes: bool) -> Negotiated {
        Negotiated {
            export,
            structured_replies: self.structured,
            base_allocation: (self.allocation == Some(export)).then_some(ALLOCATION_ID),
            block_sizes,
            flags: self.flags(&self.exports[export]),
            tls: self.secured,
        }
    }
}

impl Refusal {
    fn text(self) -> String {
        match self {
            Self::Full(limit) => format!("all {limit} connections are taken; try again later"),
            Self::Stopping => "the server is stopping".into(),
        }
    }
}

/// True for a minimum block above the size that clients assume by default.
fn needs_block_sizes(export: &ExportInfo) -> bool {
    export.min_block > 512
}

fn violation(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, text)
}
