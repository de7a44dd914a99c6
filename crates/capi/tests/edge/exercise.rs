//! The fuzzer's calls of the C functions: a program that hands in any texts, numbers and devices.
//! Shared between `fuzz/` and the test that replays its seeds.
//!
//! An input is a list of calls, a byte each, with their arguments behind. Key derivations that cost
//! seconds are left out: volumes open with their volume key, or are plain.
#![allow(unsafe_code, reason = "the functions are C's")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard};

// The library that the functions below are linked with.
use underseal as _;

#[repr(C)]
struct Callbacks {
    argument: *mut c_void,
    size: u64,
    pread: Option<unsafe extern "C" fn(*mut c_void, *mut u8, usize, u64) -> c_int>,
    pwrite: Option<unsafe extern "C" fn(*mut c_void, *const u8, usize, u64) -> c_int>,
    flush: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    fn underseal_new() -> *mut c_void;
    fn underseal_free(handle: *mut c_void);
    fn underseal_error(handle: *const c_void) -> *const c_char;
    fn underseal_set_callbacks(handle: *mut c_void, callbacks: *const Callbacks) -> c_int;
    fn underseal_set_fd(handle: *mut c_void, fd: c_int) -> c_int;
    fn underseal_set_flags(handle: *mut c_void, flags: c_uint) -> c_int;
    fn underseal_set_keyslot(handle: *mut c_void, keyslot: c_int) -> c_int;
    fn underseal_set_option(handle: *mut c_void, name: *const c_char, value: *const c_char) -> c_int;
    fn underseal_protect_hidden(handle: *mut c_void, bytes: *const u8, len: usize, pim: c_uint) -> c_int;
    fn underseal_unlock_passphrase(handle: *mut c_void, bytes: *const u8, len: usize) -> c_int;
    fn underseal_unlock_key(handle: *mut c_void, bytes: *const u8, len: usize) -> c_int;
    fn underseal_size(handle: *const c_void, size: *mut u64, sector: *mut u32) -> c_int;
    fn underseal_pread(h: *const c_void, buffer: *mut u8, len: usize, offset: u64, done: *mut usize)
    -> c_int;
    fn underseal_pwrite(handle: *const c_void, buffer: *const u8, len: usize, offset: u64) -> c_int;
    fn underseal_flush(handle: *const c_void) -> c_int;
    fn underseal_discard(handle: *const c_void, offset: u64, len: u64) -> c_int;
    fn underseal_info_json(handle: *const c_void, json: *mut *mut c_char) -> c_int;
    fn underseal_string_free(text: *mut c_char);
    fn underseal_set_reencryption(h: *mut c_void, name: *const c_char, value: *const c_char) -> c_int;
    fn underseal_keep_passphrase(handle: *mut c_void, bytes: *const u8, len: usize) -> c_int;
    fn underseal_reencrypt(
        handle: *mut c_void,
        bytes: *const u8,
        len: usize,
        progress: Option<unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int>,
        argument: *mut c_void,
        finished: *mut c_int,
    ) -> c_int;
    fn underseal_keyslot_remove(handle: *mut c_void, keyslot: c_int, last: c_int) -> c_int;
}

/// Names that options have, so that the fuzzer need not guess them.
const NAMES: [&str; 13] = [
    "type",
    "cipher",
    "key-size",
    "hash",
    "sector-size",
    "offset",
    "skip",
    "pim",
    "hidden",
    "system",
    "partition",
    "backup-header",
    "other-device",
];
/// Names that options of a reencryption have.
const REENCRYPTION: [&str; 10] = [
    "mode",
    "cipher",
    "key-size",
    "sector-size",
    "keep-key",
    "resilience",
    "resilience-hash",
    "reduce",
    "lose-keyslots",
    "force",
];
/// Values that options have.
const VALUES: [&str; 13] = [
    "plain",
    "bitlk",
    "fvault2",
    "1",
    "0",
    "aes-xts-plain64",
    "aes-cbc-essiv:sha256",
    "32",
    "64",
    "sha256",
    "plain:16",
    "4096",
    "18446744073709551615",
];
/// Values that options of a reencryption have.
const REENCRYPTION_VALUES: [&str; 13] = [
    "reencrypt",
    "encrypt",
    "decrypt",
    "resume",
    "1",
    "0",
    "aes-xts-plain64",
    "checksum",
    "journal",
    "none",
    "sha256",
    "4096",
    "33554432",
];
/// Bytes of one read or write.
const MOST: usize = 9000;
/// Calls of one input.
const CALLS: usize = 200;

/// A device of the program: some bytes at its beginning, zeros behind, and after `patience` calls
/// the answer `odd`.
struct Device {
    bytes: Vec<u8>,
    /// Calls that succeed until one returns `odd`.
    patience: u32,
    odd: c_int,
}

impl Device {
    fn answer(&mut self) -> c_int {
        self.patience = self.patience.wrapping_sub(1);
        if self.patience == 0 { self.odd } else { 0 }
    }
}

/// # Safety
/// The argument is a device behind a mutex: a reencryption calls from several threads.
unsafe fn lock<'d>(argument: *mut c_void) -> MutexGuard<'d, Device> {
    // SAFETY: the caller's promise.
    unsafe { &*argument.cast::<Mutex<Device>>() }.lock().expect("no function of the device panics")
}

/// # Safety
/// As the header says of callbacks; the argument is that of [`lock`].
unsafe extern "C" fn pread(argument: *mut c_void, buffer: *mut u8, len: usize, offset: u64) -> c_int {
    // SAFETY: the library gives back the argument, and a buffer of this length.
    let (mut device, buffer) = unsafe { (lock(argument), std::slice::from_raw_parts_mut(buffer, len)) };
    buffer.fill(0);
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(device.bytes.len());
    let there = &device.bytes[from..device.bytes.len().min(from.saturating_add(len))];
    buffer[..there.len()].copy_from_slice(there);
    device.answer()
}

/// # Safety
/// As [`pread`].
unsafe extern "C" fn pwrite(argument: *mut c_void, buffer: *const u8, len: usize, offset: u64) -> c_int {
    // SAFETY: as above.
    let (mut device, buffer) = unsafe { (lock(argument), std::slice::from_raw_parts(buffer, len)) };
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(device.bytes.len());
    let room = &mut device.bytes[from..];
    let len = room.len().min(len);
    room[..len].copy_from_slice(&buffer[..len]);
    device.answer()
}

/// # Safety
/// As [`pread`].
unsafe extern "C" fn flush(argument: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { lock(argument).answer() }
}

/// Stops a reencryption before a number of steps are done.
///
/// # Safety
/// The argument is a number, and the call's alone.
unsafe extern "C" fn progress(argument: *mut c_void, done: u64, total: u64) -> c_int {
    assert!(done <= total);
    // SAFETY: as above.
    let left = unsafe { &mut *argument.cast::<c_int>() };
    *left -= 1;
    c_int::from(*left <= 0)
}

/// Bytes of the input, taken from its front; zeros when there are no more.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        let shift = self.byte() % 64;
        u64::from_le_bytes([0; 8].map(|_: u8| self.byte())) >> shift
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.byte()).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken.to_vec()
    }

    fn text(&mut self, known: &[&str]) -> CString {
        match known.get(usize::from(self.byte())) {
            Some(text) => CString::new(*text).unwrap(),
            None => {
                CString::new(self.bytes().into_iter().filter(|byte| *byte != 0).collect::<Vec<_>>()).unwrap()
            }
        }
    }
}

/// The calls that succeeded.
#[derive(Default)]
pub(crate) struct Reached {
    /// A volume was unlocked.
    pub(crate) unlocked: bool,
    /// A reencryption ended, or was stopped.
    pub(crate) reencrypted: bool,
}

/// Does the calls.
pub(crate) fn calls(input: &[u8]) -> Reached {
    let mut input = Input(input);
    let len = usize::from(u16::from_le_bytes([input.byte(), input.byte()])).min(input.0.len());
    let (bytes, rest) = input.0.split_at(len);
    input.0 = rest;
    let mut bytes = bytes.to_vec();
    if bytes.starts_with(b"LUKS") || bytes.starts_with(b"SKUL") {
        // A LUKS header asks for costly derivations, and other targets have such headers.
        bytes[0] = 0;
    }
    let mut device = Device { bytes, patience: input.byte().into(), odd: 0 };
    device.odd = c_int::from(input.byte() as i8) * 200;
    let device = Mutex::new(device);
    let mut callbacks = Callbacks {
        argument: (&raw const device).cast_mut().cast(),
        size: input.number(),
        pread: Some(pread),
        pwrite: None,
        flush: None,
    };
    if input.byte() & 1 != 0 {
        callbacks.pwrite = Some(pwrite);
        callbacks.flush = Some(flush);
    }
    // SAFETY: the calls keep to the header: one thread, buffers of the given lengths, a device that
    // lives longer than the handle.
    unsafe { run(&mut input, &callbacks) }
}

/// # Safety
/// The callbacks' device lives until the function returns.
unsafe fn run(input: &mut Input<'_>, callbacks: &Callbacks) -> Reached {
    let mut reached = Reached::default();
    let mut plain = false;
    // SAFETY: as above.
    unsafe {
        let handle = underseal_new();
        let ended = |code: c_int| {
            assert!((-4095..=0).contains(&code), "{code}");
            assert!(
                code == 0 || !CStr::from_ptr(underseal_error(handle)).is_empty(),
                "{code} without a text"
            );
            code == 0
        };
        ended(underseal_set_callbacks(handle, callbacks));
        for (name, value) in [(c"pbkdf2", c"1000"), (c"hotzone-size", c"65536")] {
            assert!(ended(underseal_set_reencryption(handle, name.as_ptr(), value.as_ptr())));
        }
        for _ in 0..CALLS {
            if input.0.is_empty() {
                break;
            }
            match input.byte() % 19 {
                0 | 1 => {
                    let (name, value) = (input.text(&NAMES), input.text(&VALUES));
                    // VeraCrypt's search is costly, and the two names open files.
                    if value.as_bytes() == b"tcrypt"
                        || matches!(name.as_bytes(), b"key-file" | b"other-device")
                    {
                        continue;
                    }
                    plain |= name.as_bytes() == b"type" && value.as_bytes() == b"plain";
                    ended(underseal_set_option(handle, name.as_ptr(), value.as_ptr()));
                }
                2 => drop(ended(underseal_set_flags(handle, input.byte().into()))),
                3 => drop(ended(underseal_set_keyslot(handle, c_int::from(input.byte() as i8)))),
                4 => drop(ended(underseal_set_fd(handle, -1 - c_int::from(input.byte())))),
                5 => {
                    let secret = input.bytes();
                    ended(underseal_protect_hidden(
                        handle,
                        secret.as_ptr(),
                        secret.len(),
                        input.byte().into(),
                    ));
                }
                6 | 7 => {
                    let key = input.bytes();
                    reached.unlocked |= ended(underseal_unlock_key(handle, key.as_ptr(), key.len()));
                }
                8 if plain => {
                    let secret = input.bytes();
                    reached.unlocked |=
                        ended(underseal_unlock_passphrase(handle, secret.as_ptr(), secret.len()));
                }
                9 => {
                    let (mut size, mut sector) = (0, 0);
                    if ended(underseal_size(handle, &raw mut size, &raw mut sector)) {
                        assert!(sector.is_power_of_two() && size % 512 == 0);
                    }
                }
                10 | 11 => {
                    let (offset, len) = (input.number(), usize::from(input.byte()) * 35);
                    let (mut buffer, mut done) = (vec![0xa5; MOST], usize::MAX);
                    if ended(underseal_pread(handle, buffer.as_mut_ptr(), len, offset, &raw mut done)) {
                        assert!(done <= len);
                    }
                    assert!(
                        buffer[len..].iter().all(|byte| *byte == 0xa5),
                        "bytes behind the buffer changed"
                    );
                }
                12 => {
                    let (offset, bytes) = (input.number(), input.bytes());
                    ended(underseal_pwrite(handle, bytes.as_ptr(), bytes.len(), offset));
                }
                13 => drop(ended(underseal_discard(handle, input.number(), input.number()))),
                14 => drop(ended(underseal_flush(handle))),
                16 => {
                    let (name, value) = (input.text(&REENCRYPTION), input.text(&REENCRYPTION_VALUES));
                    // Derivations and long steps are costly.
                    if !matches!(name.as_bytes(), b"pbkdf2" | b"argon2id" | b"hotzone-size") {
                        ended(underseal_set_reencryption(handle, name.as_ptr(), value.as_ptr()));
                    }
                }
                17 => {
                    let secret = input.bytes();
                    ended(underseal_keep_passphrase(handle, secret.as_ptr(), secret.len()));
                }
                18 => {
                    let (secret, mut finished) = (input.bytes(), -1);
                    let mut steps = c_int::from(input.byte() % 8);
                    let (bytes, len) = (secret.as_ptr(), secret.len());
                    let argument = (&raw mut steps).cast();
                    let code =
                        underseal_reencrypt(handle, bytes, len, Some(progress), argument, &raw mut finished);
                    let ended = ended(code);
                    assert_eq!(ended, matches!(finished, 0 | 1));
                    reached.reencrypted |= ended;
                }
                _ => {
                    let mut json = std::ptr::null_mut();
                    if ended(underseal_info_json(handle, &raw mut json)) {
                        assert!(CStr::from_ptr(json).to_bytes().starts_with(b"{"));
                        underseal_string_free(json);
                    }
                    // The handle has no path whose header could be changed.
                    assert!(!ended(underseal_keyslot_remove(handle, 0, 1)));
                }
            }
        }
        underseal_free(handle);
    }
    reached
}
