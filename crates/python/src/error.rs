//! Error kinds as Python exceptions, each a subclass of the built-in that fits.

use std::cell::Cell;

use pyo3::create_exception;
use pyo3::exceptions::{PyMemoryError, PyNotImplementedError, PyOSError, PyPermissionError, PyValueError};
use pyo3::prelude::*;
use underseal_image::{Error, ErrorKind};

create_exception!(
    underseal,
    WrongPassphrase,
    PyPermissionError,
    "No keyslot opens with the passphrase or key."
);
create_exception!(underseal, NotEncrypted, PyValueError, "The image has no header of a known format.");
create_exception!(underseal, BadHeader, PyValueError, "The header is damaged, or is not what was required.");
create_exception!(
    underseal,
    Unsupported,
    PyNotImplementedError,
    "The format, cipher or operation is not supported."
);
create_exception!(underseal, Busy, PyOSError, "Another program uses the image or its header.");
create_exception!(
    underseal,
    Mismatch,
    PyOSError,
    "A sector is not as it was written: its tag does not match."
);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("WrongPassphrase", py.get_type::<WrongPassphrase>())?;
    module.add("NotEncrypted", py.get_type::<NotEncrypted>())?;
    module.add("BadHeader", py.get_type::<BadHeader>())?;
    module.add("Unsupported", py.get_type::<Unsupported>())?;
    module.add("Busy", py.get_type::<Busy>())?;
    module.add("Mismatch", py.get_type::<Mismatch>())
}

thread_local! {
    /// An exception of a file object in this thread that is no error, as KeyboardInterrupt.
    /// The facade's errors hold none.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Keeps an exception for the end of the call that a file object raised it in.
pub(crate) fn keep(raised: PyErr) {
    RAISED.set(Some(raised));
}

/// Calls the facade. An exception that a file object raised meanwhile comes before the result, also
/// where the facade went on without what the object had refused.
pub(crate) fn outcome<T>(call: impl FnOnce() -> Result<T, Error>) -> PyResult<T> {
    // A call that has no result, as the end of an image, may have kept an exception.
    RAISED.set(None);
    let done = call();
    RAISED.take().map_or_else(|| done.map_err(|e| exception(&e)), Err)
}

/// The exception for an error of the facade.
pub(crate) fn exception(e: &Error) -> PyErr {
    let (text, code) = (e.text(), e.errno());
    match e.kind() {
        ErrorKind::WrongPassphrase => WrongPassphrase::new_err((code, text)),
        ErrorKind::NoHeader => NotEncrypted::new_err(text),
        ErrorKind::BadHeader | ErrorKind::TooSmall => BadHeader::new_err(text),
        ErrorKind::Unsupported | ErrorKind::NullCipher | ErrorKind::TooCostly => Unsupported::new_err(text),
        ErrorKind::Busy => Busy::new_err((code, text)),
        ErrorKind::Mismatch => Mismatch::new_err((code, text)),
        ErrorKind::BadOption | ErrorKind::OutOfRange | ErrorKind::Keyslot => PyValueError::new_err(text),
        ErrorKind::Memory => PyMemoryError::new_err(text),
        // OSError picks FileNotFoundError, PermissionError and so on by the number.
        _ => PyOSError::new_err((code, text)),
    }
}
