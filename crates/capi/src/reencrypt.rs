//! PreparedReencryption of the closed volume that a handle names.

#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::{c_char, c_int, c_void};
use std::ops::ControlFlow;

use underseal_image::{Error, ErrorKind, Header, ReencryptionEnd, ReencryptionOptions, Result};

use crate::edge::{bad, call, slice, text, write};
use crate::handle::Handle;
use crate::inside::outside;
use crate::lower::LowerChoice;

/// The program's function that watches a reencryption; it returns 0 to continue.
type Progress = unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int;

/// The options of the handle's reencryptions.
#[derive(Default)]
pub(crate) struct PreparedReencryption {
    options: ReencryptionOptions,
    runs: bool,
}

impl PreparedReencryption {
    /// Refuses a call in the middle of a reencryption: by another thread, or by the progress.
    pub(crate) fn refuse_running(&self) -> Result<()> {
        if self.runs {
            return Err(Error::new(ErrorKind::Busy, "a reencryption runs on this handle"));
        }
        Ok(())
    }

    /// Adds to the options; `change` has been tried and fails for lack of memory only.
    fn change(
        &mut self,
        change: impl FnOnce(ReencryptionOptions) -> Result<ReencryptionOptions>,
    ) -> Result<()> {
        self.refuse_running()?;
        self.options = change(std::mem::take(&mut self.options))?;
        Ok(())
    }
}

/// A reencryption that runs. Its options go back to the handle at the end.
struct Running<'h> {
    handle: &'h Handle,
    options: ReencryptionOptions,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let options = std::mem::take(&mut self.options);
        if let Ok(mut setup) = self.handle.setup() {
            setup.reencryption = PreparedReencryption { options, runs: false };
        }
    }
}

/// Begins or resumes the reencryption of the handle's image; true when it has finished.
fn reencrypt(
    handle: &Handle,
    passphrase: &[u8],
    mut progress: impl FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<bool> {
    let mut setup = handle.setup()?;
    setup.reencryption.refuse_running()?;
    handle.refuse_unlocked()?;
    if setup.has_options_to_unlock() {
        return Err(bad("a reencryption takes no keyslot, and no options but its own"));
    }
    let mut options = std::mem::take(&mut setup.reencryption.options);
    setup.reencryption.runs = true;
    if let Some(header) = &setup.header {
        options = options.header(header);
    }
    // The progress may call functions of the handle.
    let lower = setup.lower.again();
    drop(setup);
    let running = Running { handle, options };
    let options = &running.options;
    let end = match lower? {
        LowerChoice::Unset => return Err(LowerChoice::missing()),
        LowerChoice::Path(path) => Header::reencrypt(path, passphrase, options, &mut progress)?,
        LowerChoice::File(file) => Header::reencrypt_file(file, passphrase, options, &mut progress)?,
        LowerChoice::Device(device) => Header::reencrypt_on(device, passphrase, options, &mut progress)?,
    };
    Ok(end == ReencryptionEnd::Finished)
}

/// Sets an option of the handle's reencryptions by its name.
///
/// # Safety
/// `name` and `value` end with a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_reencryption(
    handle: *mut Handle,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let (name, value) = (text(name)?, text(value)?);
            ReencryptionOptions::new().set(name, value)?;
            handle.setup()?.reencryption.change(|options| options.set(name, value))
        })
    }
}

/// Keeps another keyslot, which this passphrase opens, under the new key.
///
/// # Safety
/// `passphrase` points to `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_keep_passphrase(
    handle: *mut Handle,
    passphrase: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let passphrase = slice(passphrase, len)?;
            ReencryptionOptions::new().keep_passphrase(passphrase)?;
            handle.setup()?.reencryption.change(|options| options.keep_passphrase(passphrase))
        })
    }
}

/// Reencrypts, encrypts or decrypts the closed volume in place, or resumes that. `progress` may be
/// null. `*finished` becomes 1, or 0 when the progress stopped it.
///
/// # Safety
/// `passphrase` points to `len` bytes; `progress` may be called with `argument` until the call
/// returns; `finished` is null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_reencrypt(
    handle: *mut Handle,
    passphrase: *const u8,
    len: usize,
    progress: Option<Progress>,
    argument: *mut c_void,
    finished: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let ask = |done, all| progress.map_or(0, |progress| progress(argument, done, all));
            let tell = |done, all| match outside(handle, || ask(done, all)) {
                0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            };
            let is_finished = reencrypt(handle, slice(passphrase, len)?, tell)?;
            write(finished, c_int::from(is_finished));
            Ok(())
        })
    }
}
