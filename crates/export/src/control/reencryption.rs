//! A volume's reencryption as the control socket sees it: a trait for the thread that reencrypts.

use underseal_cipher::Key;
use underseal_volume::KeyCheck;

use super::protocol::{Rate, Refusal};
use super::status::Reencryption;

/// The online reencryption of a server's volume.
pub trait Reencrypter: Send + Sync {
    /// Resumes the reencryption that the volume's header, or its state file, records as unfinished.
    /// `old` and `new` are its keys, empty for data without encryption.
    ///
    /// # Errors
    /// The refusal says why the reencryption cannot start; nothing is changed then.
    fn start(&self, old: &Key, new: &Key, rate: Rate) -> Result<(), Refusal>;

    /// Pauses after the current step.
    ///
    /// # Errors
    /// `State` when no reencryption runs.
    fn pause(&self) -> Result<(), Refusal>;

    /// Ends the pause.
    ///
    /// # Errors
    /// `State` when no reencryption runs.
    fn go_on(&self) -> Result<(), Refusal>;

    /// Ends the reencryption's thread after the current step, and waits for its end.
    ///
    /// # Errors
    /// `State` when no reencryption runs, `Busy` when it does not end in time.
    fn stop(&self) -> Result<(), Refusal>;

    /// Sets the rate.
    ///
    /// # Errors
    /// `State` when no reencryption runs.
    fn set_rate(&self, rate: Rate) -> Result<(), Refusal>;

    /// Returns the progress; `None` when the volume is not being reencrypted, and has not been
    /// since it was opened.
    fn status(&self) -> Option<Reencryption>;

    /// Returns the digest of the volume's key, if it has changed since the volume was opened.
    fn key_check(&self) -> Option<KeyCheck>;
}
