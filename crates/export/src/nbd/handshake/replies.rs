//! Replies to one option, collected and sent together: one system call, one TLS record.

use std::io::{self, Write};

use crate::nbd::{
    exports::ExportInfo,
    protocol::{OPTION_REPLY_MAGIC, TransmissionFlags, info, option_reply as reply},
};

pub(super) struct Replies {
    option: u32,
    bytes: Vec<u8>,
}

impl Replies {
    pub(super) fn to(option: u32) -> Self {
        Self { option, bytes: Vec::new() }
    }

    pub(super) fn ack(&mut self) {
        self.push(reply::ACK, &[]);
    }

    pub(super) fn error(&mut self, kind: u32, text: &str) {
        self.push(kind, &[text.as_bytes()]);
    }

    pub(super) fn server(&mut self, export: &ExportInfo) {
        let name = export.name.as_bytes();
        self.push(reply::SERVER, &[&wire_len(name.len()), name, export.description.as_bytes()]);
    }

    pub(super) fn info_export(&mut self, size: u64, flags: TransmissionFlags) {
        self.info(info::EXPORT, &[&size.to_be_bytes(), &flags.bits().to_be_bytes()]);
    }

    pub(super) fn info_block_size(&mut self, export: &ExportInfo) {
        let sizes = [export.min_block, export.preferred_block, export.max_block].map(u32::to_be_bytes);
        self.info(info::BLOCK_SIZE, &[sizes.as_flattened()]);
    }

    pub(super) fn info_name(&mut self, name: &str) {
        self.info(info::NAME, &[name.as_bytes()]);
    }

    pub(super) fn info_description(&mut self, description: &str) {
        self.info(info::DESCRIPTION, &[description.as_bytes()]);
    }

    pub(super) fn meta_context(&mut self, id: u32, name: &str) {
        self.push(reply::META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
    }

    pub(super) fn send(&self, io: &mut impl Write) -> io::Result<()> {
        io.write_all(&self.bytes)?;
        io.flush()
    }

    fn info(&mut self, kind: u16, payload: &[&[u8]]) {
        self.push(reply::INFO, &[&[&kind.to_be_bytes()[..]], payload].concat());
    }

    fn push(&mut self, kind: u32, payload: &[&[u8]]) {
        let length = payload.iter().map(|part| part.len()).sum();
        self.bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        self.bytes.extend(self.option.to_be_bytes());
        self.bytes.extend(kind.to_be_bytes());
        self.bytes.extend(wire_len(length));
        payload.iter().for_each(|part| self.bytes.extend_from_slice(part));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "strings were checked against 4096 bytes when the server started"
)]
fn wire_len(length: usize) -> [u8; 4] {
    (length as u32).to_be_bytes()
}
