//! A volume's reencryption, as its control socket sees it: somebody who does it, and may be told
//! how.

use underseal_cipher::Key;
use underseal_volume::KeyCheck;

use super::protocol::{Rate, Refusal};
use super::status::Reencryption;

/// Who reencrypts the volume of a server while it is used.
pub trait Reencrypter: Send + Sync {
    /// Goes on with the reencryption that the volume's header, or its state file, says is under
    /// way. `old` and `new` are its keys, empty where there is none.
    ///
    /// # Errors
    /// Why it cannot; nothing is changed then.
    fn start(&self, old: &Key, new: &Key, rate: Rate) -> Result<(), Refusal>;

    /// Rests between two steps.
    ///
    /// # Errors
    /// When none runs.
    fn pause(&self) -> Result<(), Refusal>;

    /// Ends the rest.
    ///
    /// # Errors
    /// When none runs.
    fn go_on(&self) -> Result<(), Refusal>;

    /// Ends it where it is, between two steps; returns when it has ended.
    ///
    /// # Errors
    /// When none runs, or it cannot end in time.
    fn stop(&self) -> Result<(), Refusal>;

    /// Another rate.
    ///
    /// # Errors
    /// When none runs.
    fn set_rate(&self, rate: Rate) -> Result<(), Refusal>;

    /// How far it is; none where the volume is in no reencryption, and was in none since it was
    /// opened.
    fn status(&self) -> Option<Reencryption>;

    /// What tells the volume's key from others, where it may be another one by now than when the
    /// volume was opened.
    fn key_check(&self) -> Option<KeyCheck>;
}
