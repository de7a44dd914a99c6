//! The handshake: fixed newstyle negotiation over any blocking `Read + Write`.
//!
//! ```text
//!   greet --> option --> option --> ... --+--> Step::Ready     GO, EXPORT_NAME
//!               |                         +--> Step::StartTls  upgrade the transport, then run again over it
//!               +-- replies.rs            +--> Step::Left      ABORT, or the client closed between options
//!               +-- options.rs
//! ```
//!
//! What a client may cost is bounded: an option's data, the number of options, and, by the transport, the time. Nothing
//! is read beyond the last option's last byte.

mod options;
mod replies;

use std::io::{Read, Write};

use self::{
    options::{Fault, InfoRequest, MetaRequest},
    replies::Replies,
};
use super::{
    exports::{ExportInfo, Exports},
    logging::Printable,
    protocol::{
        BASE_ALLOCATION, ClientFlags, HandshakeFlags, INIT_PASSWD, MAX_STRING, OPTION_MAGIC,
        TransmissionFlags, option, option_reply as reply,
    },
};
use crate::{Error, ErrorKind, Result};

/// One client's negotiation.
pub struct Handshake<'a> {
    exports: &'a Exports,
    tls: TlsUse,
    gate: &'a dyn Admission,
    client: Option<ClientFlags>,
    secured: bool,
    structured: bool,
    /// The export for which `base:allocation` was chosen last.
    allocation: Option<usize>,
    options: u32,
}

/// Where a negotiation stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The client was promised TLS: upgrade the transport and [run](Handshake::run) on over it.
    StartTls,
    /// The transmission phase begins with the next byte.
    Ready(Negotiated),
    /// The client wanted no more.
    Left,
}

/// What was agreed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// Index into the server's exports.
    pub export: usize,
    /// Reads must be answered with structured replies.
    pub structured_replies: bool,
    /// The context id of `base:allocation`, if the client chose it: only then is BLOCK_STATUS allowed.
    pub base_allocation: Option<u32>,
    /// The client promised to keep to the export's block sizes.
    pub block_sizes: bool,
    /// The flags that were sent.
    pub flags: TransmissionFlags,
    /// The connection is TLS.
    pub tls: bool,
}

/// How far a server goes with TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsUse {
    /// STARTTLS is refused.
    Off,
    /// The client decides.
    Offered,
    /// Nothing is answered before STARTTLS.
    Required,
}

/// What a negotiation asks of the server around it.
pub trait Admission {
    /// The client has answered the greeting.
    fn heard(&self);

    /// May this client enter the transmission phase? `Ok` takes a place.
    ///
    /// # Errors
    /// Why it may not.
    fn admit(&self) -> std::result::Result<(), Refusal>;

    /// The server is stopping: options are answered with ERR_SHUTDOWN.
    fn stopping(&self) -> bool;
}

/// Why a client is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// So many clients are being served already.
    Full(usize),
    /// The server is stopping.
    Stopping,
}

/// The id under which `base:allocation` is sent. Clients must take any.
const ALLOCATION_ID: u32 = 1;
/// Longest option data that is looked at: the longest name with every query a client could mean, several times over.
const MAX_OPTION: u32 = 64 << 10;
/// Longest option data that is read and thrown away to keep in step. Beyond it the connection ends.
const MAX_SKIP: u32 = 1 << 20;
/// Options one client may send. The busiest client known (qemu, libnbd) sends fewer than ten.
const MAX_OPTIONS: u32 = 256;

impl<'a> Handshake<'a> {
    /// A negotiation not yet begun.
    pub fn new(exports: &'a Exports, tls: TlsUse, gate: &'a dyn Admission) -> Self {
        Self {
            exports,
            tls,
            gate,
            client: None,
            secured: false,
            structured: false,
            allocation: None,
            options: 0,
        }
    }

    /// Negotiates until there is a [`Step`] to take. After [`Step::StartTls`], call it again with the TLS transport.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`]: the client broke the rules or asked, with EXPORT_NAME, for what cannot be refused in
    /// words. [`ErrorKind::Timeout`] and [`ErrorKind::Io`]: the transport failed. The connection must be closed.
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

    /// Reads an option's header: its number and the length of its data. `None` if the client closed instead.
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

    /// The option that cannot be refused in words: it starts or the connection ends.
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

    fn reply_to(
        &mut self,
        option: u32,
        data: &[u8],
        replies: &mut Replies,
    ) -> std::result::Result<Option<Step>, Fault> {
        if option == option::ABORT {
            replies.ack();
            return Ok(Some(Step::Left));
        }
        if self.gate.stopping() {
            return Err(Refusal::Stopping.into());
        }
        if option != option::STARTTLS && self.tls == TlsUse::Required && !self.secured {
            return Err(Fault::new(reply::ERR_TLS_REQD, "this server requires TLS"));
        }
        match option {
            option::STARTTLS => return self.start_tls(data, replies).map(Some),
            option::LIST => self.list(data, replies)?,
            option::INFO => {
                self.describe(data, replies)?;
            }
            option::GO => return self.go(data, replies).map(Some),
            option::STRUCTURED_REPLY => {
                options::no_data(data)?;
                self.structured = true;
            }
            option::LIST_META_CONTEXT => self.list_contexts(data, replies)?,
            option::SET_META_CONTEXT => self.set_contexts(data, replies)?,
            _ => return Err(Fault::new(reply::ERR_UNSUP, "this server does not know the option")),
        }
        replies.ack();
        Ok(None)
    }

    fn start_tls(&mut self, data: &[u8], replies: &mut Replies) -> std::result::Result<Step, Fault> {
        options::no_data(data)?;
        if self.tls == TlsUse::Off {
            return Err(Fault::new(reply::ERR_POLICY, "this server has no certificate for TLS"));
        }
        if self.secured {
            return Err(Fault::invalid("TLS was started before"));
        }
        // What was agreed in plain text may have been agreed with somebody in the middle.
        (self.secured, self.structured, self.allocation) = (true, false, None);
        replies.ack();
        Ok(Step::StartTls)
    }

    fn list(&self, data: &[u8], replies: &mut Replies) -> std::result::Result<(), Fault> {
        options::no_data(data)?;
        for export in self.exports.iter() {
            replies.server(export);
        }
        Ok(())
    }

    fn go(&mut self, data: &[u8], replies: &mut Replies) -> std::result::Result<Step, Fault> {
        let (index, request) = self.describe(data, replies)?;
        if needs_block_sizes(&self.exports[index]) && !request.block_size {
            return Err(Fault::new(reply::ERR_BLOCK_SIZE_REQD, "ask for NBD_INFO_BLOCK_SIZE and keep to it"));
        }
        self.gate.admit()?;
        replies.ack();
        Ok(Step::Ready(self.negotiated(index, request.block_size)))
    }

    /// What INFO and GO have in common.
    fn describe<'d>(
        &self,
        data: &'d [u8],
        replies: &mut Replies,
    ) -> std::result::Result<(usize, InfoRequest<'d>), Fault> {
        let request = InfoRequest::parse(data)?;
        let index = self.find(request.name)?;
        let export = &self.exports[index];
        replies.info_export(export.size, self.flags(export));
        // Unasked too: a client that does not know block sizes ignores them, and one that does may be spared an error.
        replies.info_block_size(export);
        if request.wants_name {
            replies.info_name(&export.name);
        }
        if request.wants_description && !export.description.is_empty() {
            replies.info_description(&export.description);
        }
        Ok((index, request))
    }

    fn list_contexts(&self, data: &[u8], replies: &mut Replies) -> std::result::Result<(), Fault> {
        let request = MetaRequest::parse(data)?;
        self.needs_structured()?;
        self.find(request.name)?;
        let wanted = request.queries.is_empty()
            || request.queries.iter().any(|&query| query == BASE_ALLOCATION.as_bytes() || query == b"base:");
        if wanted {
            replies.meta_context(0, BASE_ALLOCATION);
        }
        Ok(())
    }

    fn set_contexts(&mut self, data: &[u8], replies: &mut Replies) -> std::result::Result<(), Fault> {
        // Even a request that fails replaces what was chosen before.
        self.allocation = None;
        let request = MetaRequest::parse(data)?;
        self.needs_structured()?;
        let index = self.find(request.name)?;
        if request.queries.contains(&BASE_ALLOCATION.as_bytes()) {
            self.allocation = Some(index);
            replies.meta_context(ALLOCATION_ID, BASE_ALLOCATION);
        }
        Ok(())
    }

    fn needs_structured(&self) -> std::result::Result<(), Fault> {
        self.structured.then_some(()).ok_or_else(|| Fault::invalid("negotiate structured replies first"))
    }

    fn find(&self, name: &[u8]) -> std::result::Result<usize, Fault> {
        self.exports
            .find(name)
            .ok_or_else(|| Fault::new(reply::ERR_UNKNOWN, format!("there is no export {}", Printable(name))))
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

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::Full(_) => reply::ERR_POLICY,
            Refusal::Stopping => reply::ERR_SHUTDOWN,
        };
        Self::new(kind, refusal.text())
    }
}

/// A minimum block that clients do not expect unless they are told.
fn needs_block_sizes(export: &ExportInfo) -> bool {
    export.min_block > 512
}

/// Sends the greeting and reads the client's flags; `None` if it closed instead.
fn greet(io: &mut (impl Read + Write)) -> Result<Option<ClientFlags>> {
    let offered = HandshakeFlags::FIXED_NEWSTYLE | HandshakeFlags::NO_ZEROES;
    let mut greeting = [0; 18];
    greeting[..8].copy_from_slice(&INIT_PASSWD.to_be_bytes());
    greeting[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    greeting[16..].copy_from_slice(&offered.bits().to_be_bytes());
    io.write_all(&greeting)?;
    io.flush()?;
    let mut flags = [0; 4];
    if !read_or_end(io, &mut flags)? {
        return Ok(None);
    }
    let bits = u32::from_be_bytes(flags);
    ClientFlags::from_bits(bits)
        .map(Some)
        .ok_or_else(|| violation(format!("client flags {bits:#010x} are not known")))
}

/// Fills the buffer, or finds the stream at its end before the first byte.
fn read_or_end(io: &mut impl Read, buffer: &mut [u8]) -> Result<bool> {
    let first = loop {
        match io.read(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            done => break done?,
        }
    };
    if first > 0 {
        io.read_exact(&mut buffer[first..])?;
    }
    Ok(first > 0)
}

/// Memory grows with the bytes that come, not with those that were announced.
fn read_data(io: &mut impl Read, length: u32) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    io.take(length.into()).read_to_end(&mut data)?;
    if data.len() < length as usize {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(data)
}

fn skip(io: &mut impl Read, length: u32) -> Result<()> {
    if length > MAX_SKIP {
        return Err(violation(format!("an option with {length} bytes of data")));
    }
    let skipped = std::io::copy(&mut io.take(length.into()), &mut std::io::sink())?;
    if skipped < length.into() {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(())
}

fn violation(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, text)
}
