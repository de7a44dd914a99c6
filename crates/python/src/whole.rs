//! Long changes of whole images, which the program watches and may stop: reencryption, new volumes
//! of VeraCrypt.

use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBool;
use underseal_image::{Formatted, Header, ReencryptionEnd, ReencryptionOptions, Result, VeracryptOptions};
use zeroize::Zeroizing;

use crate::error::exception;
use crate::exit;
use crate::file::PythonDevice;
use crate::header::KeyslotCost;

/// Calls the program between two steps, and looks for signals.
struct PythonProgress {
    callable: Option<Py<PyAny>>,
    /// The exception of the call or of a signal's handler.
    raised: Option<PyErr>,
}

impl PythonProgress {
    fn new(callable: Option<Py<PyAny>>) -> Self {
        Self { callable, raised: None }
    }

    fn tell(&mut self, done: u64, all: u64) -> ControlFlow<()> {
        let Ok(_callback) = exit::enter() else { return ControlFlow::Break(()) };
        let ask = |py: Python<'_>| -> PyResult<bool> {
            py.check_signals()?;
            let Some(callable) = &self.callable else { return Ok(false) };
            let answer = callable.bind(py).call1((done, all))?;
            Ok(answer.is_instance_of::<PyBool>() && !answer.is_truthy()?)
        };
        let stops = Python::attach(|py| exit::calling(|| ask(py)));
        match stops {
            Ok(false) => ControlFlow::Continue(()),
            Ok(true) => ControlFlow::Break(()),
            Err(raised) => {
                self.raised = Some(raised);
                ControlFlow::Break(())
            }
        }
    }

    /// The end of the call: an exception of the program's comes before its result.
    fn end<T>(self, done: Result<T>) -> PyResult<T> {
        match self.raised {
            Some(raised) => Err(raised),
            None => done.map_err(|e| exception(&e)),
        }
    }
}

/// The options of the package's `reencrypt`, as its dictionary has them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ReencryptionRequest {
    mode: String,
    cipher: Option<String>,
    key_size: Option<usize>,
    sector_size: Option<u32>,
    keep_key: bool,
    resilience: Option<String>,
    resilience_hash: Option<String>,
    hotzone_size: Option<u64>,
    reduce: Option<u64>,
    header: Option<PathBuf>,
    lose_keyslots: bool,
    force: bool,
    pbkdf: Option<KeyslotCost>,
    label: Option<String>,
}

impl ReencryptionRequest {
    fn options(self, keep_passphrases: &[Zeroizing<Vec<u8>>]) -> PyResult<ReencryptionOptions> {
        let options = ReencryptionOptions::new().set("mode", &self.mode).map_err(|e| exception(&e))?;
        let mut options = options.keep_key(self.keep_key).lose_keyslots(self.lose_keyslots).force(self.force);
        if let Some(cipher) = self.cipher {
            options = options.cipher(cipher);
        }
        if let Some(bytes) = self.key_size {
            options = options.key_size(bytes);
        }
        if let Some(bytes) = self.sector_size {
            options = options.sector_size(bytes);
        }
        if let Some(bytes) = self.hotzone_size {
            options = options.hotzone_size(bytes);
        }
        if let Some(bytes) = self.reduce {
            options = options.reduce(bytes);
        }
        if let Some(header) = self.header {
            options = options.header(header);
        }
        if let Some(label) = self.label {
            options = options.label(label);
        }
        options = match self.pbkdf {
            None => options,
            Some((name, rounds, ..)) if name == "pbkdf2" => options.pbkdf2(rounds),
            Some((_, passes, memory, threads)) => options.argon2id(passes, memory, threads),
        };
        let named = |options: ReencryptionOptions| {
            let mut options = options;
            if let Some(name) = &self.resilience {
                options = options.resilience(name)?;
            }
            if let Some(name) = &self.resilience_hash {
                options = options.resilience_hash(name)?;
            }
            for passphrase in keep_passphrases {
                options = options.keep_passphrase(passphrase)?;
            }
            Ok(options)
        };
        named(options).map_err(|e| exception(&e))
    }
}

/// Reencrypts the volume on an image at a path, or on a file object; whether it has finished.
#[pyfunction]
pub(crate) fn reencrypt(
    py: Python<'_>,
    path: Option<PathBuf>,
    object: Option<Bound<'_, PyAny>>,
    passphrase: Vec<u8>,
    keep_passphrases: Vec<Vec<u8>>,
    request: ReencryptionRequest,
    progress: Option<Py<PyAny>>,
) -> PyResult<bool> {
    let passphrase = Zeroizing::new(passphrase);
    let others: Vec<_> = keep_passphrases.into_iter().map(Zeroizing::new).collect();
    let object = object.map(|object| PythonDevice::of(&object)).transpose()?;
    let options = request.options(&others)?;
    let mut progress = PythonProgress::new(progress);
    let done = py.detach(|| {
        let tell = |done, all| progress.tell(done, all);
        match object {
            Some(PythonDevice::File(file)) => Header::reencrypt_file(file, &passphrase, &options, tell),
            Some(PythonDevice::Object(object)) => Header::reencrypt_on(object, &passphrase, &options, tell),
            None => Header::reencrypt(path.unwrap_or_default(), &passphrase, &options, tell),
        }
    });
    progress.end(done).map(|end| end == ReencryptionEnd::Finished)
}

/// The options of the package's `format_veracrypt`, as its dictionary has them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct VeracryptRequest {
    cipher: Option<String>,
    hash: Option<String>,
    pim: u32,
    sector_size: u32,
    quick: bool,
    hidden_size: Option<u64>,
    keyfiles: Vec<PathBuf>,
    force: bool,
}

impl VeracryptRequest {
    fn options(self) -> Result<VeracryptOptions> {
        let mut options = VeracryptOptions::new()?.pim(self.pim)?.sector_size(self.sector_size);
        options = options.quick(self.quick).force(self.force);
        if let Some(name) = &self.cipher {
            options = options.cipher(name)?;
        }
        if let Some(name) = &self.hash {
            options = options.prf(name)?;
        }
        if let Some(bytes) = self.hidden_size {
            options = options.hidden(bytes);
        }
        Ok(self.keyfiles.into_iter().fold(options, VeracryptOptions::key_file))
    }
}

/// Makes a new volume of VeraCrypt; whether it was completed.
#[pyfunction]
pub(crate) fn format_veracrypt(
    py: Python<'_>,
    path: PathBuf,
    passphrase: Vec<u8>,
    request: VeracryptRequest,
    progress: Option<Py<PyAny>>,
) -> PyResult<bool> {
    let passphrase = Zeroizing::new(passphrase);
    let options = request.options().map_err(|e| exception(&e))?;
    let mut progress = PythonProgress::new(progress);
    let done = py.detach(|| {
        let tell = |done, all| progress.tell(done, all);
        underseal_image::format_veracrypt(&path, &passphrase, &options, tell)
    });
    progress.end(done).map(|made| made == Formatted::Completed)
}
