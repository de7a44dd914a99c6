//! New volumes of VeraCrypt.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use underseal_cipher::Key;
use underseal_formats::tcrypt::{Chain, NewHeaders, NewOptions, Pim, Prf};
use underseal_volume::ImageContents;

use crate::foreign::password;
use crate::lower::Lower;
use crate::new::refuse_what_is_there;
use crate::open::size_of;
use crate::setters::setters;
use crate::traces::without_traces;
use crate::{Error, ErrorKind, Result};

/// Options of a new volume of VeraCrypt.
#[derive(Debug, Clone)]
pub struct VeracryptOptions {
    chain: Chain,
    prf: Prf,
    pim: Pim,
    sector_size: u32,
    quick: bool,
    hidden: Option<u64>,
    key_files: Vec<PathBuf>,
    force: bool,
}

/// How the making of a volume ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Formatted {
    /// The volume opens.
    Completed,
    /// The caller's progress stopped it: no header was written, and headers that were there before
    /// are gone.
    Stopped,
}

impl VeracryptOptions {
    /// AES in XTS, SHA-512, and VeraCrypt's default rounds; a normal volume that takes all of the
    /// image.
    ///
    /// # Errors
    /// `Unsupported` where this build lacks the cipher.
    pub fn new() -> Result<Self> {
        Ok(Self {
            chain: Chain::of_veracrypt("aes")?,
            prf: Prf::Sha512,
            pim: Pim::default(),
            sector_size: 512,
            quick: false,
            hidden: None,
            key_files: vec![],
            force: false,
        })
    }

    /// The ciphers, in VeraCrypt's or cryptsetup's words: `serpent-twofish-aes`,
    /// `AES(Twofish(Serpent))`.
    ///
    /// # Errors
    /// `BadOption` for ciphers that VeraCrypt does not have.
    pub fn cipher(mut self, name: &str) -> Result<Self> {
        self.chain = Chain::of_veracrypt(name)?;
        Ok(self)
    }

    /// The function under the key derivation: `sha512`, `whirlpool`, `argon2id`.
    ///
    /// # Errors
    /// `BadOption` for another name.
    pub fn prf(mut self, name: &str) -> Result<Self> {
        self.prf = name.parse()?;
        Ok(self)
    }

    /// VeraCrypt's Personal Iterations Multiplier; 0 for none. One that makes fewer rounds than the
    /// default wants a passphrase of 20 bytes, or key files.
    ///
    /// # Errors
    /// `BadOption` for one that VeraCrypt does not take.
    pub fn pim(mut self, pim: u32) -> Result<Self> {
        self.pim = Pim::new(pim)?;
        Ok(self)
    }

    setters! {
        /// The sector size of the file system to be, 512 to 4096 bytes.
        sector_size(options, bytes: u32) options.sector_size = bytes;

        /// Leaves under the data what the image holds, which shows how much of it is ever written.
        /// By default all of it is filled with random bytes.
        quick(options, quick: bool) options.quick = quick;

        /// Makes a hidden volume of this size at the end of a volume that is there. What the outer
        /// file system has there is lost, so this wants [`VeracryptOptions::force`] too. An image
        /// that holds a known format has no outer volume, and is refused also with force.
        hidden(options, bytes: u64) options.hidden = Some(bytes);

        /// Adds a key file, or all files of a folder.
        key_file(options, path: impl Into<PathBuf>) options.key_files.push(path.into());

        /// Overwrites what is there.
        force(options, force: bool) options.force = force;
    }
}

/// Makes a new volume of VeraCrypt on an image or block device of the right size, or a hidden
/// volume inside of one. The passphrase may be empty where there are key files.
///
/// Old headers are overwritten first, then the data are filled with random bytes, and the new
/// headers are written last. `progress` gets the bytes that were written so far and all bytes,
/// about each MiB; with [`ControlFlow::Break`] it stops the filling.
///
/// # Errors
/// `BadOption` for options that do not fit, and when the image holds a LUKS header or a file
/// system, unless a normal volume is forced; `TooSmall`; `WrongPassphrase` for an empty
/// passphrase without key files, and one that is too long; `Busy` when another program uses the
/// image; `Io`, `Memory`.
pub fn format_veracrypt(
    path: impl AsRef<Path>,
    passphrase: &[u8],
    options: &VeracryptOptions,
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Formatted> {
    let path = path.as_ref();
    let format = || -> Result<Formatted> {
        let passphrase = Key::new(passphrase)?;
        let len = if options.key_files.is_empty() { passphrase.len() } else { usize::MAX };
        options.pim.check_passphrase(options.prf, false, len)?;
        let image = Lower::open(path, true)?;
        refuse(&image, options)?;
        let password = password(Some(&passphrase), options.key_files.iter())?;
        let &VeracryptOptions { chain, prf, pim, sector_size, quick, hidden, .. } = options;
        let new = NewOptions { chain, prf, pim, sector_size, quick, hidden };
        let headers = NewHeaders::prepare(size_of(&image)?, &password, &new)?;
        let made = headers.make(&image, &mut progress)?;
        Ok(if made.is_break() { Formatted::Stopped } else { Formatted::Completed })
    };
    without_traces(format).map_err(|e| e.in_file(path))
}

/// Refuses to overwrite what is there without force. A hidden volume goes into an outer one, which
/// looks like noise: force is for what its file system loses, not for a known format.
fn refuse(image: &Lower, options: &VeracryptOptions) -> Result<()> {
    if options.hidden.is_none() {
        return if options.force { Ok(()) } else { refuse_what_is_there(image) };
    }
    let refused = |what: String| Err(Error::new(ErrorKind::BadOption, what));
    if let ImageContents::Known(name) = ImageContents::of(image)? {
        return refused(format!("the image holds {name}, and no outer volume: make that one first"));
    }
    if !options.force {
        let what = "the hidden volume takes the end of the outer one, and what lies there is lost: pass force if \
                    the outer file system uses nothing of it";
        return refused(what.into());
    }
    Ok(())
}
