//! A file that tells the process's number to whoever wants to stop it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The file; dropping it removes it.
#[derive(Debug)]
pub(crate) struct PidFile(PathBuf);

impl PidFile {
    /// Writes this process's number. Nobody sees the file half written.
    ///
    /// # Errors
    /// `Failed` when it cannot be written.
    pub(crate) fn write(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(path, "cannot write the process's number", e);
        let path = std::path::absolute(path).map_err(failed)?;
        let number = std::process::id();
        let mut new = path.clone().into_os_string();
        new.push(format!(".{number}"));
        let this = Self(path.clone());
        fs::File::create(&new)
            .and_then(|mut file| writeln!(file, "{number}"))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|e| {
                // What was made so far is of no use to anybody.
                let _ = fs::remove_file(&new);
                failed(e)
            })?;
        Ok(this)
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another server's number stays.
        let ours =
            fs::read_to_string(&self.0).is_ok_and(|text| text.trim() == std::process::id().to_string());
        if ours && let Err(e) = fs::remove_file(&self.0) {
            log::warn!("{}: cannot remove: {e}", self.0.display());
        }
    }
}
