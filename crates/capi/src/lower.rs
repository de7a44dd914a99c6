//! The lower device that a handle names.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use underseal_image::{Error, ErrorKind, Result};

use crate::callbacks::Device;
use crate::edge::bad;

/// The lower device of the image.
#[derive(Default)]
pub(crate) enum LowerChoice {
    #[default]
    Unset,
    Path(PathBuf),
    File(File),
    Device(Arc<Device>),
}

impl LowerChoice {
    /// The same device, for one call.
    pub(crate) fn again(&self) -> Result<Self> {
        Ok(match self {
            Self::Unset => Self::Unset,
            Self::Path(path) => Self::Path(path.clone()),
            Self::File(file) => {
                let failed = |e| Error::new(ErrorKind::Io, "cannot duplicate the descriptor").with_source(e);
                Self::File(file.try_clone().map_err(failed)?)
            }
            Self::Device(device) => Self::Device(device.clone()),
        })
    }

    /// The error of a descriptor or callbacks where a path is needed.
    pub(crate) fn without_path() -> Error {
        Error::new(ErrorKind::Unsupported, "keyslots are changed on an image that has a path")
    }

    /// The error of a handle without an image.
    pub(crate) fn missing() -> Error {
        bad("neither a path, a descriptor nor callbacks were set")
    }
}
