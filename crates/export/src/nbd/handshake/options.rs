//! The data of options, parsed without a copy. A value that exists was well formed.

use crate::nbd::protocol::{MAX_STRING, info, option_reply as reply};

/// The data of INFO and GO: an export's name and the requested information.
#[derive(Debug)]
pub(super) struct InfoRequest<'a> {
    pub(super) name: &'a [u8],
    pub(super) wants_name: bool,
    pub(super) wants_description: bool,
    pub(super) block_size: bool,
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT: an export's name and queries.
#[derive(Debug)]
pub(super) struct MetaRequest<'a> {
    pub(super) name: &'a [u8],
    pub(super) queries: Vec<&'a [u8]>,
}

/// The error of an option: the reply's type and its text for people.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) reply: u32,
    pub(super) text: String,
}

impl Fault {
    pub(super) fn new(reply: u32, text: impl Into<String>) -> Self {
        Self { reply, text: text.into() }
    }

    pub(super) fn invalid(text: &str) -> Self {
        Self::new(reply::ERR_INVALID, text)
    }
}

type Parsed<T> = Result<T, Fault>;

impl<'a> InfoRequest<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Parsed<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u16()?;
        let mut wanted = Self { name, wants_name: false, wants_description: false, block_size: false };
        for _ in 0..count {
            match fields.u16()? {
                info::NAME => wanted.wants_name = true,
                info::DESCRIPTION => wanted.wants_description = true,
                info::BLOCK_SIZE => wanted.block_size = true,
                // EXPORT is sent in any case; unknown information requests must be ignored.
                _ => {}
            }
        }
        fields.end()?;
        Ok(wanted)
    }
}

impl<'a> MetaRequest<'a> {
    pub(super) fn parse(data: &'a [u8]) -> Parsed<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u32()?;
        // A query takes at least the 4 bytes of its length, so the length of the data limits the
        // number of queries, whatever `count` is.
        let queries = (0..count).map(|_| fields.string()).collect::<Parsed<_>>()?;
        fields.end()?;
        Ok(Self { name, queries })
    }
}

pub(super) fn no_data(data: &[u8]) -> Parsed<()> {
    Fields(data).end()
}

/// The unparsed rest of an option's data.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn u16(&mut self) -> Parsed<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Parsed<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk().ok_or_else(truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    /// Parses a length and the string of that length.
    fn string(&mut self) -> Parsed<&'a [u8]> {
        let length = self.u32()? as usize;
        let (string, rest) = self.0.split_at_checked(length).ok_or_else(truncated)?;
        if length > MAX_STRING {
            return Err(Fault::new(reply::ERR_TOO_BIG, "a string is longer than 4096 bytes"));
        }
        self.0 = rest;
        Ok(string)
    }

    fn end(&self) -> Parsed<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Fault::invalid("the option has more data than it should"))
        }
    }
}

fn truncated() -> Fault {
    Fault::invalid("the option's data ends in the middle of a field")
}
