//! Protectors, each of which is an entry that wraps the VMK for one secret.

use std::fmt;

use underseal_cipher::Key;

use super::block::Block;
use super::entries::{Entries, kind, text, value};
use super::guid::{FileTime, Guid};
use crate::fields::Fields;
use crate::{Error, ErrorKind, Result};

/// Bytes of a VMK entry before its nested entries.
const HEAD: usize = 28;

/// The kinds of protectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProtectorKind {
    /// A key that is stored beside: protection is suspended, or was never turned on.
    ClearKey,
    /// This machine's TPM.
    Tpm,
    /// A key file, usually on a USB stick.
    StartupKey,
    /// The TPM and a key file.
    TpmStartupKey,
    /// The TPM and a PIN.
    TpmPin,
    /// The TPM, a PIN and a key file.
    TpmPinStartupKey,
    /// 48 digits.
    RecoveryPassword,
    /// A smart card, or another certificate.
    SmartCard,
    /// A password.
    Password,
    /// An undocumented number; unlocking by a server in the network is one of these.
    Unknown(u16),
}

impl ProtectorKind {
    fn new(number: u16) -> Self {
        match number {
            0x0000 => Self::ClearKey,
            0x0100 => Self::Tpm,
            0x0200 => Self::StartupKey,
            0x0300 => Self::TpmStartupKey,
            0x0500 => Self::TpmPin,
            0x0700 => Self::TpmPinStartupKey,
            0x0800 => Self::RecoveryPassword,
            0x1000 => Self::SmartCard,
            0x2000 => Self::Password,
            other => Self::Unknown(other),
        }
    }

    /// Whether a secret that a person has opens it, without the machine it was made on.
    pub fn is_supported(self) -> bool {
        use ProtectorKind::{ClearKey, Password, RecoveryPassword, StartupKey};
        matches!(self, ClearKey | Password | RecoveryPassword | StartupKey)
    }

    /// Why it is not supported, where it is not.
    pub fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::ClearKey | Self::StartupKey | Self::RecoveryPassword | Self::Password => None,
            Self::Tpm | Self::TpmStartupKey | Self::TpmPin | Self::TpmPinStartupKey => {
                Some("its key lies in the TPM of the machine that encrypted the volume")
            }
            Self::SmartCard => Some("its key lies on a smart card"),
            Self::Unknown(_) => Some("it is of no documented kind (unlocking by network is one of these)"),
        }
    }
}

impl fmt::Display for ProtectorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClearKey => "clear key",
            Self::Tpm => "TPM",
            Self::StartupKey => "startup key",
            Self::TpmStartupKey => "TPM and startup key",
            Self::TpmPin => "TPM and PIN",
            Self::TpmPinStartupKey => "TPM, PIN and startup key",
            Self::RecoveryPassword => "recovery password",
            Self::SmartCard => "smart card",
            Self::Password => "password",
            Self::Unknown(number) => return write!(f, "unknown protector {number:#06x}"),
        })
    }
}

/// A protector of the VMK.
#[derive(Debug)]
pub struct Protector {
    /// The protector's GUID, by which Windows names recovery passwords and startup keys.
    pub guid: Guid,
    /// When it was changed last.
    pub changed: FileTime,
    /// The kind of secret that the protector takes.
    pub kind: ProtectorKind,
    /// The protector's name, empty for most protectors.
    pub name: String,
    /// The hint that goes with a password, empty for most.
    pub hint: String,
    /// The salt of passwords and recovery passwords.
    pub salt: Option<[u8; 16]>,
    /// The clear key.
    pub(super) clear: Option<Key>,
    /// The wrapped VMK: nonce, tag, data.
    pub(super) wrapped: Vec<u8>,
}

impl Protector {
    /// All protectors of a block, in order.
    ///
    /// Returns `BadHeader` for a damaged list, and `Memory`.
    pub(super) fn all(block: &Block) -> Result<Vec<Self>> {
        let mut all = Vec::new();
        for entry in block.entries() {
            let entry = entry?;
            if (entry.kind, entry.value) == (kind::VMK, value::VMK) {
                all.push(Self::parse(entry.data)?);
            }
        }
        Ok(all)
    }

    fn parse(data: &[u8]) -> Result<Self> {
        let fields = Fields(data);
        let mut protector = Self {
            guid: Guid(fields.array(0)?),
            changed: FileTime(fields.le64(16)?),
            kind: ProtectorKind::new(fields.le16(26)?),
            name: String::new(),
            hint: String::new(),
            salt: None,
            clear: None,
            wrapped: Vec::new(),
        };
        // New versions of Windows bring nested entries of unknown kinds: they are passed over.
        for entry in Entries(&data[HEAD..]) {
            let entry = entry?;
            match entry.value {
                value::TEXT => protector.name = text(entry.data),
                value::HINT => protector.hint = text(entry.data),
                value::STRETCH => protector.salt = Some(Fields(entry.data).array(4)?),
                value::KEY if protector.kind == ProtectorKind::ClearKey => {
                    protector.clear = Some(Key::new(entry.data.get(4..).unwrap_or(&[]))?);
                }
                value::CCM if protector.wrapped.is_empty() => protector.wrapped = entry.data.to_vec(),
                _ => {}
            }
        }
        Ok(protector)
    }

    /// Bytes of the wrapped VMK, without nonce and tag.
    pub fn wrapped_len(&self) -> usize {
        self.wrapped.len().saturating_sub(super::ccm::HEAD)
    }

    /// The damage of a protector of a supported kind, as an error.
    pub(super) fn damaged(&self, what: &str) -> Error {
        Error::new(ErrorKind::BadHeader, format!("the {} {} has no {what}", self.kind, self.guid))
    }
}

/// The form shown to users: `recovery password {GUID}`.
impl fmt::Display for Protector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {{{}}}", self.kind, self.guid)
    }
}
