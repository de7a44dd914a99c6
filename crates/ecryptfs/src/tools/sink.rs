//! Where a tree's plain form goes.

mod folder;
mod tar;

use std::io::{self, Read};
use std::path::Path;

pub use folder::FolderSink;
pub(super) use folder::empty;
pub use tar::TarSink;

use super::attributes::TreeAttributes;
use crate::{Error, Result};

/// Why a file's bytes did not get through: what their reader says, or else what the sink does.
fn why(e: io::Error, sink: impl FnOnce(io::Error) -> Error) -> Error {
    e.downcast::<Error>().unwrap_or_else(sink)
}

/// Takes a tree in the order in which it is read: a folder before what is in it. All paths are from
/// the tree's root, which is the empty one.
pub trait Sink {
    /// A folder begins.
    ///
    /// # Errors
    /// When it cannot be made; what is in it is skipped.
    fn folder(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()>;

    /// A folder is complete.
    ///
    /// # Errors
    /// When its attributes cannot be kept.
    fn leave(&mut self, _plain: &Path, _attributes: &TreeAttributes) -> Result<()> {
        Ok(())
    }

    /// A file of so many bytes.
    ///
    /// # Errors
    /// When it cannot be written, or `data` fails.
    fn file(
        &mut self,
        plain: &Path,
        attributes: &TreeAttributes,
        size: u64,
        data: &mut dyn Read,
    ) -> Result<()>;

    /// Another name of a file that came before.
    ///
    /// # Errors
    /// When it cannot be made.
    fn link(&mut self, plain: &Path, to: &Path, attributes: &TreeAttributes) -> Result<()>;

    /// A symlink.
    ///
    /// # Errors
    /// When it cannot be made.
    fn symlink(&mut self, plain: &Path, target: &[u8], attributes: &TreeAttributes) -> Result<()>;

    /// A pipe, a socket or a device.
    ///
    /// # Errors
    /// When it cannot be made.
    fn special(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()>;

    /// Makes all that came survive a power cut, at the end.
    ///
    /// # Errors
    /// When some of it cannot be written.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
}
