//! The native half of the Python package `underseal`: thin classes over [`underseal_image`].
//!
//! ```text
//!   python/underseal/__init__.py   Volume (io.RawIOBase), open, info, Header: the public names
//!        |
//!   _underseal (this crate)        image.rs: Image   header.rs: Header, VolumeKey
//!        |                         object.rs: a file object as device
//!        |                         error.rs: error kinds as Python exceptions
//!        |                         exit.rs: callbacks while the interpreter ends
//!        |                         lock.rs: calls without Python's global lock
//!        |                         whole.rs: reencrypt, format_veracrypt
//!   underseal_image
//! ```
//!
//! Everything that reads, writes or derives keys runs without Python's global lock. A lower device
//! that is a Python object takes the lock for each of its calls. The module keeps no threads and no
//! rings, so a process may fork: those of a reencryption end with the call.

mod error;
mod exit;
mod file;
mod header;
mod image;
mod lock;
mod object;
mod whole;

use pyo3::prelude::*;

#[pymodule]
fn _underseal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::register(module)?;
    lock::start(module.py())?;
    exit::register(module)?;
    module.add_class::<image::Image>()?;
    module.add_class::<header::Header>()?;
    module.add_class::<header::VolumeKey>()?;
    module.add_function(wrap_pyfunction!(image::open, module)?)?;
    module.add_function(wrap_pyfunction!(header::format, module)?)?;
    module.add_function(wrap_pyfunction!(header::restore, module)?)?;
    module.add_function(wrap_pyfunction!(header::check, module)?)?;
    module.add_function(wrap_pyfunction!(header::info, module)?)?;
    module.add_function(wrap_pyfunction!(image::protect_process, module)?)?;
    module.add_function(wrap_pyfunction!(whole::reencrypt, module)?)?;
    module.add_function(wrap_pyfunction!(whole::format_veracrypt, module)?)?;
    Ok(())
}
