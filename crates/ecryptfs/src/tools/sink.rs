//! The targets of a tree's plain form.

mod folder;
mod tar;

use std::io::{self, Read};
use std::path::Path;

pub use folder::FolderSink;
pub(super) use folder::empty;
pub use tar::{ArchiveFile, TarSink};

use super::attributes::TreeAttributes;
use crate::{Error, Result};

/// Returns why a file's bytes could not be copied: the reader's error, or else the sink's.
fn why(e: io::Error, sink: impl FnOnce(io::Error) -> Error) -> Error {
    e.downcast::<Error>().unwrap_or_else(sink)
}

/// Receives a tree in reading order: a folder before its contents. All paths begin at the tree's
/// root, whose path is empty.
pub trait Sink {
    /// Begins a folder.
    ///
    /// # Errors
    /// When it cannot be created. Its contents are skipped.
    fn folder(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()>;

    /// Completes a folder.
    ///
    /// # Errors
    /// When its attributes cannot be set.
    fn leave(&mut self, _plain: &Path, _attributes: &TreeAttributes) -> Result<()> {
        Ok(())
    }

    /// Writes a file of `size` bytes.
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

    /// Creates another name of an earlier file.
    ///
    /// # Errors
    /// When it cannot be created.
    fn link(&mut self, plain: &Path, to: &Path, attributes: &TreeAttributes) -> Result<()>;

    /// Creates a symlink.
    ///
    /// # Errors
    /// When it cannot be created.
    fn symlink(&mut self, plain: &Path, target: &[u8], attributes: &TreeAttributes) -> Result<()>;

    /// Creates a pipe, a socket or a device.
    ///
    /// # Errors
    /// When it cannot be created.
    fn special(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()>;

    /// Returns true for the folder that is written to, by its device and inode number.
    fn is_target(&self, _inode: (u64, u64)) -> bool {
        false
    }

    /// Makes all output durable, at the end.
    ///
    /// # Errors
    /// When a part of it cannot be written.
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
}
