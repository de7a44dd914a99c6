//! What is on disk: headers in, segments out.
//!
//! ```text
//!   header bytes --parse--> Header --unlock(passphrase)--> volume key --activate--> Volume
//!                                                                                     |
//!                                    segments: logical range, lower offset, cipher, IV offset
//! ```

mod error;
mod volume;

pub use error::{Error, ErrorKind};
pub use volume::{Segment, Volume};

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
