//! The packets of a header: in the form of OpenPGP (RFC 2440), with eCryptfs's own contents.
//!
//! ```text
//!   tag 3    8C  length  4  cipher  3  hash  salt[8]  60  wrapped key     then tag 11, the token
//!   tag 11   ED  length  62  8  "_CONSOLE"  0[4]  signature[8]
//!   tag 1    01  length  3  signature[8]  1  RSA ciphertext               shown, not opened
//! ```

use crate::{Cipher, Error, ErrorKind, Result, Signature};

/// The file's key, wrapped for one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPacket {
    /// The key is wrapped for a passphrase.
    Passphrase {
        /// The cipher's code.
        code: u8,
        /// The salt of the passphrase.
        salt: [u8; 8],
        /// The wrapped key.
        wrapped: Vec<u8>,
        /// The token's signature.
        signature: Signature,
    },
    /// The key is wrapped for a public key, whose owner is a program beside the kernel (ecryptfsd),
    /// which no longer exists.
    PublicKey {
        /// The token's signature.
        signature: Signature,
        /// The encrypted cipher code, key and checksum.
        ciphertext: Vec<u8>,
    },
}

const TAG_1: u8 = 0x01;
const TAG_3: u8 = 0x8c;
const TAG_11: u8 = 0xed;
/// "_CONSOLE": not to be stored by readers (RFC 2440, 5.9).
const LITERAL: [u8; 14] = *b"\x62\x08_CONSOLE\0\0\0\0";
/// The number of bytes of tag 3 in front of the wrapped key.
const BEFORE_KEY: usize = 13;
const MAX_WRAPPED: usize = 64;
const MAX_PUBLIC: usize = 512;

impl KeyPacket {
    /// Returns the signature of the token.
    pub fn signature(&self) -> Signature {
        match self {
            Self::Passphrase { signature, .. } | Self::PublicKey { signature, .. } => *signature,
        }
    }

    /// Returns the file's cipher.
    ///
    /// # Errors
    /// `BadHeader` for an unknown cipher; `Unsupported` for a public key, whose ciphertext contains
    /// the cipher.
    pub fn cipher(&self) -> Result<Cipher> {
        match self {
            Self::Passphrase { code, wrapped, .. } => Cipher::from_code(*code, wrapped.len()),
            Self::PublicKey { .. } => {
                Err(Error::new(ErrorKind::Unsupported, "its key is wrapped for a public key"))
            }
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Passphrase { code, salt, wrapped, signature } => {
                out.push(TAG_3);
                write_length(BEFORE_KEY + wrapped.len(), out);
                out.extend_from_slice(&[4, *code, 3, 1]);
                out.extend_from_slice(salt);
                out.push(0x60);
                out.extend_from_slice(wrapped);
                out.push(TAG_11);
                write_length(LITERAL.len() + 8, out);
                out.extend_from_slice(&LITERAL);
                out.extend_from_slice(&signature.to_bytes());
            }
            Self::PublicKey { signature, ciphertext } => {
                out.push(TAG_1);
                write_length(10 + ciphertext.len(), out);
                out.push(3);
                out.extend_from_slice(&signature.to_bytes());
                out.push(1);
                out.extend_from_slice(ciphertext);
            }
        }
    }
}

/// Reads the packets up to the first byte that begins no packet, where the kernel stops too.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<KeyPacket>> {
    let mut rest = PacketReader { bytes };
    let mut packets = Vec::new();
    loop {
        packets.push(match rest.bytes.first() {
            Some(&TAG_3) => passphrase(&mut rest)?,
            Some(&TAG_1) => public_key(&mut rest)?,
            Some(&TAG_11) => return Err(bad("a signature has no key")),
            _ if packets.is_empty() => return Err(bad("there is no key in it")),
            _ => return Ok(packets),
        });
    }
}

fn passphrase(rest: &mut PacketReader<'_>) -> Result<KeyPacket> {
    let mut body = rest.packet(TAG_3)?;
    let [version, code, specifier, _hash] = body.array()?;
    if version != 4 || specifier != 3 {
        return Err(bad(format!("a wrapped key of version {version}.{specifier}, not 4.3")));
    }
    let salt = body.array()?;
    let [_iterations] = body.array()?;
    let wrapped = body.bytes.to_vec();
    if !(1..=MAX_WRAPPED).contains(&wrapped.len()) {
        return Err(bad(format!("a wrapped key of {} bytes", wrapped.len())));
    }
    if rest.bytes.first() != Some(&TAG_11) {
        return Err(bad("a key without the signature that should follow it"));
    }
    let mut body = rest.packet(TAG_11)?;
    let [_format, name_bytes] = body.array()?;
    body.skip(usize::from(name_bytes))?;
    let _date: [u8; 4] = body.array()?;
    let signature = Signature::new(body.array()?);
    Ok(KeyPacket::Passphrase { code, salt, wrapped, signature })
}

fn public_key(rest: &mut PacketReader<'_>) -> Result<KeyPacket> {
    let mut body = rest.packet(TAG_1)?;
    let [version] = body.array()?;
    let signature = Signature::new(body.array()?);
    let [_algorithm] = body.array()?;
    if version != 3 || body.bytes.len() > MAX_PUBLIC {
        return Err(bad(format!(
            "a public key's packet of version {version} and {} bytes",
            body.bytes.len()
        )));
    }
    Ok(KeyPacket::PublicKey { signature, ciphertext: body.bytes.to_vec() })
}

/// Writes one byte for a length below 192, otherwise two.
pub(crate) fn write_length(length: usize, out: &mut Vec<u8>) {
    debug_assert!(length < 192 + 32 * 256);
    match length.checked_sub(192).map(u16::try_from) {
        None => out.push(length.to_le_bytes()[0]),
        Some(over) => {
            let [high, low] = over.unwrap_or(0).to_be_bytes();
            out.extend_from_slice(&[high.wrapping_add(192), low]);
        }
    }
}

/// The rest of some bytes.
pub(crate) struct PacketReader<'a> {
    pub(crate) bytes: &'a [u8],
}

impl<'a> PacketReader<'a> {
    /// Returns the body of a packet whose tag was checked already.
    pub(crate) fn packet(&mut self, tag: u8) -> Result<PacketReader<'a>> {
        let [found] = self.array()?;
        debug_assert_eq!(found, tag);
        let length = match self.array()? {
            [first] if first < 192 => usize::from(first),
            [first] if first < 224 => {
                let [second] = self.array()?;
                (usize::from(first) - 192) * 256 + usize::from(second) + 192
            }
            [first] => return Err(bad(format!("a packet's length begins with {first}"))),
        };
        let Some((body, rest)) = self.bytes.split_at_checked(length) else { return Err(self.cut()) };
        self.bytes = rest;
        Ok(PacketReader { bytes: body })
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk().ok_or_else(|| self.cut())?;
        self.bytes = rest;
        Ok(*first)
    }

    fn skip(&mut self, count: usize) -> Result<()> {
        self.bytes = self.bytes.get(count..).ok_or_else(|| self.cut())?;
        Ok(())
    }

    fn cut(&self) -> Error {
        bad("a packet is longer than its container")
    }
}

fn bad(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadHeader, context)
}
