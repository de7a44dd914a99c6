//! Wipes the registers and the stack after calls of this crate, in the caller's thread. A program's
//! memory may be dumped, unless it asked for [`protect_process`](crate::protect_process).

use underseal_cipher::wipe_traces;

/// Stack that a read or write may have used: ciphers and the frames around them.
const OF_REQUEST: usize = 16 << 10;
/// Stack that an opening or a change of a header may have used.
const OF_OPENING: usize = 96 << 10;

/// Wipes round keys from the stack and the registers when a request ends.
pub(crate) struct RequestTraces;

impl Drop for RequestTraces {
    fn drop(&mut self) {
        wipe_traces::<OF_REQUEST>();
    }
}

/// Runs a call that handles keys, and wipes its traces on the stack and in the registers.
#[inline(never)]
pub(crate) fn without_traces<T>(call: impl FnOnce() -> T) -> T {
    let result = run(call);
    wipe_traces::<OF_OPENING>();
    result
}

/// Has the call's frame below the caller's.
#[inline(never)]
fn run<T>(call: impl FnOnce() -> T) -> T {
    call()
}
