//! An unlocked image.

use std::path::PathBuf;

use arc_swap::ArcSwapOption;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use underseal_image::{OpenOptions, Result};
use zeroize::Zeroizing;

use crate::error::{exception, outcome};
use crate::file::PythonDevice;
use crate::lock;

/// Opens an image at a path or address, or on a file object. `options` are the facade's, by name.
#[pyfunction]
#[pyo3(signature = (path, object, passphrase, volume_key, header, keyslot, flags, options, protect_hidden))]
#[expect(clippy::too_many_arguments, reason = "the package's open() has names for them")]
pub(crate) fn open(
    py: Python<'_>,
    path: Option<PathBuf>,
    object: Option<Bound<'_, PyAny>>,
    passphrase: Option<Vec<u8>>,
    volume_key: Option<Vec<u8>>,
    header: Option<PathBuf>,
    keyslot: Option<u32>,
    flags: (bool, bool, bool),
    options: Vec<(String, String)>,
    protect_hidden: Option<(Vec<u8>, u32)>,
) -> PyResult<Image> {
    let (passphrase, volume_key) = (passphrase.map(Zeroizing::new), volume_key.map(Zeroizing::new));
    let protect_hidden = protect_hidden.map(|(passphrase, pim)| (Zeroizing::new(passphrase), pim));
    let object = object.map(|object| PythonDevice::of(&object)).transpose()?;
    let open = move || -> Result<underseal_image::Image> {
        let (writable, allow_null, allow_discards) = flags;
        let mut open =
            OpenOptions::new().writable(writable).allow_null(allow_null).allow_discards(allow_discards);
        for (name, value) in &options {
            open = open.set(name, value)?;
        }
        if let Some(passphrase) = passphrase {
            open = open.passphrase(&passphrase)?;
        }
        if let Some(key) = volume_key {
            open = open.volume_key(&key)?;
        }
        if let Some((passphrase, pim)) = protect_hidden {
            open = open.protect_hidden(&passphrase, pim)?;
        }
        if let Some(header) = header {
            open = open.header(header);
        }
        if let Some(keyslot) = keyslot {
            open = open.keyslot(keyslot);
        }
        match object {
            Some(PythonDevice::File(file)) => open.open_file(file),
            Some(PythonDevice::Object(object)) => open.open_on(object),
            None => open.open(path.unwrap_or_default()),
        }
    };
    let image = outcome(|| py.detach(open))?;
    Ok(Image { open: ArcSwapOption::from_pointee(image) })
}

/// Keeps this process's memory out of core dumps.
#[pyfunction]
pub(crate) fn protect_process() -> PyResult<()> {
    underseal_image::protect_process().map_err(|e| exception(&e))
}

/// An unlocked image. Calls that run while another thread closes it end as if it were open; later
/// calls fail.
#[pyclass(frozen, module = "underseal._underseal")]
pub(crate) struct Image {
    open: ArcSwapOption<underseal_image::Image>,
}

impl Image {
    /// Calls with the image, unless it is closed.
    fn with<T>(&self, call: impl FnOnce(&underseal_image::Image) -> PyResult<T>) -> PyResult<T> {
        match &*self.open.load() {
            Some(image) => call(image),
            None => Err(PyValueError::new_err("I/O operation on a closed volume")),
        }
    }
}

/// Start, length, place on the lower device and kind of a segment.
type SegmentFields = (u64, u64, Option<u64>, &'static str);

/// The most bytes of one read; memory bounds the size of a Python object in any case.
const MAX_READ: u64 = 1 << 31;

#[pymethods]
impl Image {
    #[getter]
    fn size(&self) -> PyResult<u64> {
        self.with(|image| Ok(image.size()))
    }

    #[getter]
    fn sector_size(&self) -> PyResult<usize> {
        self.with(|image| Ok(image.sector_size()))
    }

    #[getter]
    fn writable(&self) -> PyResult<bool> {
        self.with(|image| Ok(image.is_writable()))
    }

    #[getter]
    fn keyslot(&self) -> PyResult<Option<u32>> {
        self.with(|image| Ok(image.keyslot()))
    }

    #[getter]
    fn info_json(&self) -> PyResult<String> {
        self.with(|image| Ok(image.info_json().to_owned()))
    }

    fn segments(&self) -> PyResult<Vec<SegmentFields>> {
        let segments = self.with(|image| Ok(image.segments()))?.into_iter();
        Ok(segments.map(|s| (s.range.start, s.range.end - s.range.start, s.lower, s.kind)).collect())
    }

    /// Reads up to `length` bytes at `offset`; fewer at the end of the volume only.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, length: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.with(|image| {
            let length = length.min(image.size().saturating_sub(offset));
            if length > MAX_READ {
                return Err(PyOverflowError::new_err(format!("one read is of at most {MAX_READ} bytes")));
            }
            let length = usize::try_from(length).map_err(|e| PyOverflowError::new_err(e.to_string()))?;
            PyBytes::new_with(py, length, |bytes| {
                outcome(|| lock::released(py, || image.read_at(offset, bytes)).map(drop))
            })
        })
    }

    /// Writes all of `data` at `offset`.
    fn write_at(&self, py: Python<'_>, offset: u64, data: &[u8]) -> PyResult<()> {
        // `bytes` do not change, and the caller holds a reference to them.
        self.with(|image| outcome(|| lock::released(py, || image.write_at(offset, data))))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(|image| outcome(|| py.detach(|| image.flush())))
    }

    fn discard(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.with(|image| outcome(|| py.detach(|| image.discard(offset, length))))
    }

    /// Closes the image. Its key is wiped when calls of other threads have ended.
    fn close(&self, py: Python<'_>) {
        let image = self.open.swap(None);
        py.detach(move || drop(image));
    }
}
