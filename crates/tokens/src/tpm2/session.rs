//! A session with a TPM: a holder of the session's key proves each command, and parameters on the
//! bus are encrypted (part 1, chapters 19 and 21).

use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::rand::SystemRandom;
use underseal_cipher::Key;

use super::channel::{Channel, Refused, malformed};
use super::wire::{Reader, Writer};
use super::{hmac, sha256};
use crate::{Error, ErrorKind, Result};

const NULL: u32 = 0x4000_0007;
const AES: u16 = 0x0006;
const SHA256: u16 = 0x000b;
const CFB: u16 = 0x0043;
/// The attributes of a session: parameters from the caller are encrypted, parameters from the TPM
/// are.
const DECRYPT: u8 = 0x20;
const ENCRYPT: u8 = 0x40;

/// The purpose of a session.
#[derive(Debug, Clone, Copy)]
pub(super) enum For {
    Hmac = 0,
    Policy = 1,
    Trial = 3,
}

pub(super) struct Session {
    pub(super) handle: u32,
    /// Empty without a salt: then nothing is encrypted.
    key: Key,
    nonce: Vec<u8>,
}

/// A command with an authorization: its handles' names and its parameters.
pub(super) struct Command<'c> {
    pub(super) code: u32,
    pub(super) handle: u32,
    pub(super) name: &'c [u8],
    pub(super) parameters: &'c [u8],
    /// The authorization value of the handle's object, if the policy asks for it.
    pub(super) auth: &'c [u8],
}

impl Session {
    /// Starts a session, salted with a secret for `key` (a point of P-256) if given.
    pub(super) fn start(
        channel: &mut Channel,
        of: For,
        salted: Option<(u32, &[u8; 64])>,
    ) -> Result<std::result::Result<Self, Refused>> {
        let mut nonce = vec![0; 32];
        getrandom::fill(&mut nonce).map_err(|_| Error::new(ErrorKind::System, "no random bytes"))?;
        let (key_handle, salt, encrypted) = match salted {
            Some((handle, point)) => {
                let (salt, encrypted) = salt(point)?;
                (handle, Some(salt), encrypted)
            }
            None => (NULL, None, Vec::new()),
        };
        let body = Writer::default().u32(key_handle).u32(NULL).sized(&nonce).sized(&encrypted).u8(of as u8);
        let body = body.u16(AES).u16(128).u16(CFB).u16(SHA256);
        let answer = match channel.send(0x8001, 0x176, &body.0)? {
            Ok(answer) => answer,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut answer = Reader(answer.as_bytes());
        let handle = answer.u32().ok_or_else(malformed)?;
        channel.loaded(handle);
        let theirs = answer.sized().ok_or_else(malformed)?.to_vec();
        let key = match salt {
            Some(salt) => kdf_a(salt.as_bytes(), b"ATH\0", &theirs, &nonce)?,
            None => Key::zeroed(0)?,
        };
        Ok(Ok(Self { handle, key, nonce: theirs }))
    }

    /// Sends a command with this session's authorization. Returns the answer's parameters. The
    /// first parameter is encrypted on its way to the TPM if `hidden`, and always on its way back.
    /// The session ends with it.
    pub(super) fn authorize(
        self,
        channel: &mut Channel,
        command: &Command<'_>,
        hidden: bool,
        returns_secret: bool,
    ) -> Result<std::result::Result<Key, Refused>> {
        let mut ours = [0; 32];
        getrandom::fill(&mut ours).map_err(|_| Error::new(ErrorKind::System, "no random bytes"))?;
        let mut key = Key::zeroed(self.key.len() + command.auth.len())?;
        key.as_mut_bytes()[..self.key.len()].copy_from_slice(self.key.as_bytes());
        key.as_mut_bytes()[self.key.len()..].copy_from_slice(command.auth);
        let secured = !self.key.is_empty();
        let mut attributes = 0;
        let mut parameters = Key::new(command.parameters)?;
        if secured && hidden {
            attributes |= DECRYPT;
            let first = first_buffer(&mut parameters).ok_or_else(malformed)?;
            cfb(&key, &ours, &self.nonce, first, true)?;
        }
        if secured && returns_secret {
            attributes |= ENCRYPT;
        }
        let digest = sha256(&[&command.code.to_be_bytes(), command.name, parameters.as_bytes()]);
        let proof = hmac(key.as_bytes(), &[&digest, &ours, &self.nonce, &[attributes]]);
        let proof = if key.is_empty() { &[][..] } else { &proof };
        let session = Writer::default().u32(self.handle).sized(&ours).u8(attributes).sized(proof).0;
        let len = u32::try_from(session.len()).unwrap_or(0);
        let head = Writer::default().u32(command.handle).u32(len).raw(&session).0;
        let mut body = Key::zeroed(head.len() + parameters.len())?;
        body.as_mut_bytes()[..head.len()].copy_from_slice(&head);
        body.as_mut_bytes()[head.len()..].copy_from_slice(parameters.as_bytes());
        let answer = match channel.send(0x8002, command.code, body.as_bytes())? {
            Ok(answer) => answer,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut rest = Reader(answer.as_bytes());
        let len = rest.u32().ok_or_else(malformed)?;
        let returned = rest.take(len as usize).ok_or_else(malformed)?;
        let theirs = rest.sized().ok_or_else(malformed)?;
        let attributes = rest.u8().ok_or_else(malformed)?;
        let proof = rest.sized().ok_or_else(malformed)?;
        if !key.is_empty() {
            let digest = sha256(&[&0_u32.to_be_bytes(), &command.code.to_be_bytes(), returned]);
            let expected = hmac(key.as_bytes(), &[&digest, theirs, &ours, &[attributes]]);
            if Key::new(&expected)? != Key::new(proof)? {
                return Err(Error::new(ErrorKind::Failed, "the answer is not from the expected TPM"));
            }
        }
        let mut returned = Key::new(returned)?;
        if secured && returns_secret {
            let first = first_buffer(&mut returned).ok_or_else(malformed)?;
            cfb(&key, theirs, &ours, first, false)?;
        }
        Ok(Ok(returned))
    }
}

/// A random secret that only the owner of `point` can compute, and the public point that conveys
/// it.
fn salt(point: &[u8; 64]) -> Result<(Key, Vec<u8>)> {
    let failed = || Error::new(ErrorKind::Failed, "no secret can be agreed on with the TPM's key");
    let random = SystemRandom::new();
    let ours = EphemeralPrivateKey::generate(&ECDH_P256, &random).map_err(|_| failed())?;
    let public = ours.compute_public_key().map_err(|_| failed())?;
    let (x, y) = public.as_ref().get(1..65).map(|point| point.split_at(32)).ok_or_else(failed)?;
    let theirs = UnparsedPublicKey::new(&ECDH_P256, [&[4][..], point].concat());
    let salt = agree_ephemeral(ours, &theirs, |z| {
        Key::new(&sha256(&[&1_u32.to_be_bytes(), z, b"SECRET\0", x, &point[..32]]))
    });
    let told = Writer::default().sized(x).sized(y).0;
    Ok((salt.map_err(|_| failed())??, told))
}

/// Derives 32 bytes from a key (KDFa).
fn kdf_a(key: &[u8], label: &[u8], u: &[u8], v: &[u8]) -> Result<Key> {
    Ok(Key::new(&hmac(key, &[&1_u32.to_be_bytes(), label, u, v, &256_u32.to_be_bytes()]))?)
}

/// Encrypts or decrypts in place: AES-128 in cipher feedback, with key and IV derived from both
/// nonces.
fn cfb(key: &Key, newer: &[u8], older: &[u8], data: &mut [u8], encrypt: bool) -> Result<()> {
    let made = kdf_a(key.as_bytes(), b"CFB\0", newer, older)?;
    let (key, iv) = made.as_bytes().split_at(16);
    let cipher = Aes128::new_from_slice(key).map_err(|_| malformed())?;
    let mut before: [u8; 16] = iv.try_into().map_err(|_| malformed())?;
    for piece in data.chunks_mut(16) {
        let mut block = before.into();
        cipher.encrypt_block(&mut block);
        for (at, byte) in piece.iter_mut().enumerate() {
            let given = *byte;
            *byte ^= block[at];
            // The ciphertext is fed back, in both directions.
            before[at] = if encrypt { *byte } else { given };
        }
    }
    Ok(())
}

/// Returns the contents of the first buffer in parameters.
fn first_buffer(parameters: &mut Key) -> Option<&mut [u8]> {
    let len = Reader(parameters.as_bytes()).u16()?;
    parameters.as_mut_bytes().get_mut(2..2 + usize::from(len))
}
