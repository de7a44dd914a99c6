//! The packet around an encrypted name, and its text.

use super::{PREFIX, bad, base64};
use crate::header::{PacketReader, write_length};
use crate::{Result, Signature};

/// The parts of a lower name's text.
pub(super) struct Packed {
    pub(super) signature: Signature,
    /// The cipher's code.
    pub(super) code: u8,
    pub(super) sealed: Vec<u8>,
}

const TAG_70: u8 = 0x46;

impl Packed {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut packet = vec![TAG_70];
        write_length(9 + self.sealed.len(), &mut packet);
        packet.extend_from_slice(&self.signature.to_bytes());
        packet.push(self.code);
        packet.extend_from_slice(&self.sealed);
        let mut text = PREFIX.to_vec();
        base64::encode(&packet, &mut text);
        text
    }

    pub(super) fn decode(lower: &[u8]) -> Result<Self> {
        let text =
            lower.strip_prefix(PREFIX).ok_or_else(|| bad("it does not begin as encrypted names do"))?;
        let packet = base64::decode(text)
            .ok_or_else(|| bad("its text is cut or has characters that do not belong"))?;
        let mut rest = PacketReader { bytes: &packet };
        if rest.bytes.first() != Some(&TAG_70) {
            return Err(bad("its packet is of another kind"));
        }
        let mut body = rest.packet(TAG_70).map_err(bad)?;
        let signature = Signature::new(body.array().map_err(bad)?);
        let [code] = body.array().map_err(bad)?;
        // A packet has a single text: after it only the padding of the last group of characters is
        // allowed, which must be zero.
        if rest.bytes.len() > 2 || rest.bytes.iter().any(|&byte| byte != 0) {
            return Err(bad("something follows its packet"));
        }
        Ok(Self { signature, code, sealed: body.bytes.to_vec() })
    }
}
