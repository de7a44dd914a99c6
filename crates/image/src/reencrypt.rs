//! Reencryption of closed volumes in place: another key, cipher or sector size, the encryption of
//! plain data, decryption.
//!
//! ```text
//!   ReencryptionOptions --begin/--> a header that says what becomes of the data, and how far it is
//!                                      |
//!                    progress <--watch-+-- steps   one after the other; each survives a power cut
//!                                      |
//!                                      '--> ReencryptionEnd   finished, or stopped and resumable
//! ```

mod begin;
mod named;
mod options;
mod watch;

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use underseal_cipher::Key;
use underseal_device::file_below_loop;
use underseal_volume::luks2::{Ledger, ResumeOptions};
use underseal_volume::reencrypt::state::marker;
use underseal_volume::reencrypt::{self, Options, Outcome};

pub use self::options::ReencryptionOptions;
use self::watch::WatchedSteps;
use crate::lower::{Lower, LowerDevice};
use crate::open::size_of;
use crate::traces::without_traces;
use crate::{Error, ErrorKind, Header, Result};

/// How a reencryption ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReencryptionEnd {
    /// All data is in its new form, and the old key is gone.
    Finished,
    /// The caller's progress stopped it between two steps. The volume is sound: it opens for
    /// reading as it is, and [`ReencryptionOptions::resume`] goes on.
    Stopped,
}

impl Header {
    /// Reencrypts the closed volume on an image, block device or server in place, as the options
    /// say, and returns when that is finished or was stopped. The image is locked meanwhile.
    ///
    /// `passphrase` opens the volume; of plain data that are encrypted it is the new passphrase.
    /// `progress` gets the bytes that are done and all bytes, before each step (64 MiB at most) and
    /// at the end; while another program keeps the header's lock, again every 10 seconds. With
    /// [`ControlFlow::Break`] it stops the reencryption before the next step.
    ///
    /// A crash or power cut loses nothing, unless the options have no protection
    /// ([`ReencryptionOptions::resilience`]): the same call, or one with
    /// [`ReencryptionOptions::resume`], goes on, and so does cryptsetup. Threads of this call
    /// encrypt, and end with it.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use underseal_image::{FormatOptions, Header, OpenOptions};
    /// use underseal_image::{ReencryptionEnd, ReencryptionOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("disk.img");
    /// # std::fs::File::create_new(&path)?.set_len(24 << 20)?;
    /// Header::format(&path, b"correct horse", &FormatOptions::luks2().pbkdf2(1000))?;
    /// let options = ReencryptionOptions::new().cipher("aes-cbc-essiv:sha256").key_size(32);
    /// let end = Header::reencrypt(&path, b"correct horse", &options, |done, all| {
    ///     eprintln!("{done} of {all} bytes");
    ///     ControlFlow::Continue(())
    /// })?;
    /// assert_eq!(end, ReencryptionEnd::Finished);
    /// # OpenOptions::new().passphrase(b"correct horse")?.open(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `BadOption` for options that do not fit the volume or the reencryption that is under way,
    /// and where something would be lost that the options do not give up; `Keyslot` when there is
    /// no room for the new key's keyslots; `Unsupported` for LUKS1, authenticated volumes, and a
    /// volume without a header whose own reencryption is not finished; `TooSmall`; `Busy` when
    /// another program uses the image; as [`Header::open`] and [`Header::unlock`]. After an error a
    /// reencryption that had begun can be resumed.
    pub fn reencrypt(
        path: impl AsRef<Path>,
        passphrase: &[u8],
        options: &ReencryptionOptions,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ReencryptionEnd> {
        let path = path.as_ref();
        let reencrypt = || run(&Lower::open(path, true)?, passphrase, options, &mut progress);
        without_traces(reencrypt).map_err(|e| e.in_file(path))
    }

    /// As [`Header::reencrypt`], on a file or block device that is open already, for reading and
    /// writing. The file is locked as one that is opened by its path.
    ///
    /// # Errors
    /// As [`Header::reencrypt`].
    pub fn reencrypt_file(
        file: File,
        passphrase: &[u8],
        options: &ReencryptionOptions,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ReencryptionEnd> {
        without_traces(|| run(&Lower::file(file, true)?, passphrase, options, &mut progress))
    }

    /// As [`Header::reencrypt`], on a program's own device, which is written to from several
    /// threads and must keep what it has synced. The program keeps others from using the device.
    ///
    /// # Errors
    /// As [`Header::reencrypt`].
    pub fn reencrypt_on(
        device: Arc<dyn LowerDevice>,
        passphrase: &[u8],
        options: &ReencryptionOptions,
        mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ReencryptionEnd> {
        without_traces(|| run(&Lower::custom(device, true)?, passphrase, options, &mut progress))
    }
}

/// Refuses an image without a header that is in the middle of a reencryption: some of its bytes
/// have the old key, some the new one. Of a loop device the file below it counts.
pub(crate) fn refuse_marked(image: &Path) -> Result<()> {
    let below = file_below_loop(image);
    let Some(found) = marker::look(below.as_deref().unwrap_or(image))? else { return Ok(()) };
    let what = format!(
        "the image is in the middle of a reencryption: {} says which bytes are old; finish it with \
         `underseal reencrypt --resume-only --state`",
        found.state.display()
    );
    Err(Error::new(ErrorKind::Unsupported, what))
}

fn run(
    data: &Lower,
    passphrase: &[u8],
    options: &ReencryptionOptions,
    progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<ReencryptionEnd> {
    options.check()?;
    data.refuse_looped()?;
    let (on, key) = begin::ready(data, &Key::new(passphrase)?, options)?;
    let resume = ResumeOptions {
        detached: options.header.is_some(),
        allow_null: false,
        hot_zone: options.hotzone_size,
    };
    let mut ledger = Ledger::resume(&on, &key, size_of(data)?, &resume)?;
    drop(key);
    let steps = WatchedSteps::new(progress);
    match reencrypt::run(data, &mut ledger, &steps, &Options::default())? {
        Outcome::Finished => {
            steps.finished();
            Ok(ReencryptionEnd::Finished)
        }
        Outcome::Stopped => Ok(ReencryptionEnd::Stopped),
    }
}
