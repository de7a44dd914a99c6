//! Headers: keyslots, backups, facts.

use std::path::PathBuf;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use underseal_image::{FormatOptions, KeyslotOptions, Result};
use zeroize::Zeroizing;

use crate::error::outcome;
use crate::file::PythonDevice;

/// The cost of a new keyslot: `("pbkdf2", rounds)` or `("argon2id", passes, memory_kib, threads)`
/// as one tuple.
pub(crate) type KeyslotCost = (String, u32, u32, u32);

fn keyslot_options(number: Option<u32>, pbkdf: Option<KeyslotCost>) -> PyResult<KeyslotOptions> {
    let mut options = KeyslotOptions::new();
    if let Some(number) = number {
        options = options.number(number);
    }
    match pbkdf {
        None => Ok(options),
        Some((name, rounds, ..)) if name == "pbkdf2" => Ok(options.pbkdf2(rounds)),
        Some((name, passes, memory, threads)) if name == "argon2id" => {
            Ok(options.argon2id(passes, memory, threads))
        }
        Some((name, ..)) => Err(PyValueError::new_err(format!("{name:?} is neither pbkdf2 nor argon2id"))),
    }
}

/// A volume key in locked memory.
#[pyclass(frozen, module = "underseal._underseal")]
pub(crate) struct VolumeKey(underseal_image::VolumeKey);

#[pymethods]
impl VolumeKey {
    /// The bytes of the key. Python does not wipe them.
    fn reveal<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.reveal())
    }

    fn __repr__(&self) -> &'static str {
        "VolumeKey([redacted])"
    }
}

/// A LUKS header on an image or in a separate file. One thread uses it at a time.
#[pyclass(frozen, module = "underseal._underseal")]
pub(crate) struct Header {
    header: Mutex<underseal_image::Header>,
    user: Mutex<Option<ThreadId>>,
    process: u32,
}

impl Header {
    /// Runs a call without Python's lock. A file object that uses the header that lies on it would
    /// wait for itself.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut underseal_image::Header) -> Result<T> + Send,
    ) -> PyResult<T> {
        if self.process != process::id() {
            return self.call_in_child(py, call);
        }
        let user = || self.user.lock().unwrap_or_else(PoisonError::into_inner);
        let me = Some(thread::current().id());
        if *user() == me {
            return Err(PyOSError::new_err((EDEADLK, "the file object uses the header that lies on it")));
        }
        let call = || {
            let mut header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
            *user() = me;
            let done = call(&mut header);
            *user() = None;
            done
        };
        outcome(|| py.detach(call))
    }

    /// As [`Header::call`], in a child of a fork. A lock that a thread of the parent held at the
    /// fork stays locked.
    fn call_in_child<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut underseal_image::Header) -> Result<T> + Send,
    ) -> PyResult<T> {
        let call = || self.header.try_lock().ok().map(|mut header| call(&mut header)).transpose();
        let done = outcome(|| py.detach(call))?;
        let busy = || {
            PyOSError::new_err((EBUSY, "the header was in use before a fork; open it again in this process"))
        };
        done.ok_or_else(busy)
    }
}

/// The errno of a header that is in use.
const EBUSY: i32 = 16;
/// The errno of a call that would wait for itself.
const EDEADLK: i32 = 35;

#[pymethods]
impl Header {
    #[new]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        object: Option<Bound<'_, PyAny>>,
        writable: bool,
    ) -> PyResult<Self> {
        let object = object.map(|object| PythonDevice::of(&object)).transpose()?;
        let path = path.unwrap_or_default();
        let open = || match (object, writable) {
            (Some(PythonDevice::File(file)), _) => underseal_image::Header::open_file(file),
            (Some(PythonDevice::Object(object)), _) => underseal_image::Header::open_on(object),
            (None, true) => underseal_image::Header::open_writable(&path),
            (None, false) => underseal_image::Header::open(&path),
        };
        let header = outcome(|| py.detach(open))?;
        Ok(Self { header: Mutex::new(header), user: Mutex::default(), process: process::id() })
    }

    #[getter]
    fn info_json(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |header| header.info_json())
    }

    fn unlock(&self, py: Python<'_>, passphrase: Vec<u8>, keyslot: Option<u32>) -> PyResult<VolumeKey> {
        let passphrase = Zeroizing::new(passphrase);
        self.call(py, |header| header.unlock(&passphrase, keyslot)).map(VolumeKey)
    }

    fn keyslot_add(
        &self,
        py: Python<'_>,
        key: &VolumeKey,
        passphrase: Vec<u8>,
        number: Option<u32>,
        pbkdf: Option<KeyslotCost>,
    ) -> PyResult<u32> {
        let (passphrase, options) = (Zeroizing::new(passphrase), keyslot_options(number, pbkdf)?);
        self.call(py, |header| header.add_keyslot(&key.0, &passphrase, &options))
    }

    fn keyslot_remove(&self, py: Python<'_>, number: u32, last: bool) -> PyResult<()> {
        self.call(py, |header| header.remove_keyslot(number, last))
    }

    fn keyslot_change(
        &self,
        py: Python<'_>,
        old: Vec<u8>,
        new: Vec<u8>,
        keyslot: Option<u32>,
        pbkdf: Option<KeyslotCost>,
    ) -> PyResult<u32> {
        let (old, new, options) = (Zeroizing::new(old), Zeroizing::new(new), keyslot_options(None, pbkdf)?);
        self.call(py, |header| header.change_keyslot(&old, &new, keyslot, &options))
    }

    fn backup<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.call(py, |header| header.backup())?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// Makes a new volume on an image.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the package's format() has names for them")]
pub(crate) fn format(
    py: Python<'_>,
    path: PathBuf,
    passphrase: Vec<u8>,
    version: u32,
    cipher: Option<String>,
    key_size: Option<usize>,
    sector_size: Option<u32>,
    pbkdf: Option<KeyslotCost>,
    label: Option<String>,
    uuid: Option<String>,
    header: Option<PathBuf>,
    force: bool,
) -> PyResult<()> {
    let passphrase = Zeroizing::new(passphrase);
    let mut options = match version {
        1 => FormatOptions::luks1(),
        2 => FormatOptions::luks2(),
        _ => return Err(PyValueError::new_err("the version of LUKS is 1 or 2")),
    };
    options = options.force(force);
    if let Some(cipher) = cipher {
        options = options.cipher(cipher);
    }
    if let Some(bytes) = key_size {
        options = options.key_size(bytes);
    }
    if let Some(bytes) = sector_size {
        options = options.sector_size(bytes);
    }
    if let Some(label) = label {
        options = options.label(label);
    }
    if let Some(uuid) = uuid {
        options = options.uuid(uuid);
    }
    if let Some(header) = header {
        options = options.header(header);
    }
    options = match pbkdf {
        None => options,
        Some((name, rounds, ..)) if name == "pbkdf2" => options.pbkdf2(rounds),
        Some((name, passes, memory, threads)) if name == "argon2id" => {
            options.argon2id(passes, memory, threads)
        }
        Some((name, ..)) => {
            return Err(PyValueError::new_err(format!("{name:?} is neither pbkdf2 nor argon2id")));
        }
    };
    outcome(|| py.detach(|| underseal_image::Header::format(&path, &passphrase, &options)).map(drop))
}

/// Restores a backup of a header.
#[pyfunction]
pub(crate) fn restore(py: Python<'_>, path: PathBuf, backup: &[u8], force: bool) -> PyResult<()> {
    outcome(|| py.detach(|| underseal_image::Header::restore(&path, backup, force)))
}

/// Describes a header of any format that shows it without a secret. Returns a JSON object.
#[pyfunction]
pub(crate) fn info(
    py: Python<'_>,
    path: Option<PathBuf>,
    object: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let object = object.map(|object| PythonDevice::of(&object)).transpose()?;
    let describe = || match object {
        Some(PythonDevice::File(file)) => underseal_image::info_json_file(file),
        Some(PythonDevice::Object(object)) => underseal_image::info_json_on(object),
        None => underseal_image::info_json(path.unwrap_or_default()),
    };
    outcome(|| py.detach(describe))
}

/// Checks a header. Returns a JSON object.
#[pyfunction]
pub(crate) fn check(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    outcome(|| py.detach(|| underseal_image::Header::check(&path)))
}
