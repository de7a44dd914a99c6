//! The files of Python's own file objects. Such a file is opened a second time, as one that is
//! opened by its path: the object's buffer and position, which its other users change, and its
//! descriptor, whose locks a fork shares, are not used.

use std::fs::{self, File};
use std::os::fd::RawFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use pyo3::prelude::*;

use crate::object::FileObject;

/// A lower device that is a Python object.
pub(crate) enum PythonDevice {
    File(File),
    Object(Arc<FileObject>),
}

impl PythonDevice {
    /// The file of an object of Python's own classes; another object may decompress, or show a part
    /// of its file, and is read by its methods.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        match own_file(object)? {
            Some(file) => Ok(Self::File(file)),
            None => FileObject::new(object).map(|object| Self::Object(Arc::new(object))),
        }
    }
}

/// Opens the file again, if the object is nothing else than an open file that can be read.
fn own_file(object: &Bound<'_, PyAny>) -> PyResult<Option<File>> {
    let io = object.py().import("io")?;
    let is_exactly =
        |object: &Bound<'_, PyAny>, name: &str| Ok::<_, PyErr>(object.get_type().is(&io.getattr(name)?));
    let is_wrapper = object.get_type().qualname()? == "_TemporaryFileWrapper"
        && object.get_type().getattr("__module__")?.extract::<String>()? == "tempfile";
    let object = if is_wrapper { object.getattr("file")? } else { object.clone() };
    let is_buffered = is_exactly(&object, "BufferedReader")? || is_exactly(&object, "BufferedRandom")?;
    let raw = if is_buffered { object.getattr("raw")? } else { object.clone() };
    if !is_exactly(&raw, "FileIO")? || !object.call_method0("readable")?.extract::<bool>()? {
        return Ok(None);
    }
    // The buffer's bytes go to the file, and the object reads anew what will be written.
    object.call_method0("flush")?;
    let writes = object.call_method0("writable")?.extract()?;
    let path = format!("/proc/self/fd/{}", raw.call_method0("fileno")?.extract::<RawFd>()?);
    let is_file = fs::metadata(&path).is_ok_and(|of| of.is_file() || of.file_type().is_block_device());
    if is_file && is_buffered {
        object.call_method1("seek", (0, 2))?;
    }
    Ok(is_file.then(|| File::options().read(true).write(writes).open(path).ok()).flatten())
}
