//! Wiping of the stack and of vector registers after calls.

use std::hint::black_box;

/// Overwrites the `N` bytes of stack below the caller's frame, where the functions that it has just
/// called kept their registers and temporaries.
#[inline(never)]
pub(crate) fn wipe_stack<const N: usize>() {
    // Seen by `black_box`, the zeros can neither be left out nor lie elsewhere.
    let mut zeros = [0u8; N];
    black_box(&mut zeros);
}

/// Wipes remainders of keys that finished calls of this crate may have left in this thread: the `N`
/// bytes of stack below the caller's frame, and the vector registers. Vector code keeps round keys
/// there, and spills them to the stack.
///
/// Programs whose memory may be dumped call this once for each request, not for each call of a
/// cipher: it costs some hundred nanoseconds.
pub fn wipe_traces<const N: usize>() {
    wipe_stack::<N>();
    wipe_registers();
}

#[cfg(target_arch = "x86_64")]
fn wipe_registers() {
    use std::arch::{asm, is_x86_feature_detected};
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has these registers, and the compiler keeps nothing in them across
        // a call.
        unsafe {
            asm!(
                "vpxorq zmm16, zmm16, zmm16",
                "vpxorq zmm17, zmm17, zmm17",
                "vpxorq zmm18, zmm18, zmm18",
                "vpxorq zmm19, zmm19, zmm19",
                "vpxorq zmm20, zmm20, zmm20",
                "vpxorq zmm21, zmm21, zmm21",
                "vpxorq zmm22, zmm22, zmm22",
                "vpxorq zmm23, zmm23, zmm23",
                "vpxorq zmm24, zmm24, zmm24",
                "vpxorq zmm25, zmm25, zmm25",
                "vpxorq zmm26, zmm26, zmm26",
                "vpxorq zmm27, zmm27, zmm27",
                "vpxorq zmm28, zmm28, zmm28",
                "vpxorq zmm29, zmm29, zmm29",
                "vpxorq zmm30, zmm30, zmm30",
                "vpxorq zmm31, zmm31, zmm31",
                clobber_abi("sysv64"),
                options(nomem, nostack, preserves_flags),
            );
        }
    }
    if is_x86_feature_detected!("avx") {
        // The instruction zeros the first 16 registers whole, including AVX-512's extensions.
        // SAFETY: as above.
        unsafe { asm!("vzeroall", clobber_abi("sysv64"), options(nomem, nostack, preserves_flags)) };
        return;
    }
    // SAFETY: each x86-64 processor has SSE2.
    unsafe {
        asm!(
            "pxor xmm0, xmm0",
            "pxor xmm1, xmm1",
            "pxor xmm2, xmm2",
            "pxor xmm3, xmm3",
            "pxor xmm4, xmm4",
            "pxor xmm5, xmm5",
            "pxor xmm6, xmm6",
            "pxor xmm7, xmm7",
            "pxor xmm8, xmm8",
            "pxor xmm9, xmm9",
            "pxor xmm10, xmm10",
            "pxor xmm11, xmm11",
            "pxor xmm12, xmm12",
            "pxor xmm13, xmm13",
            "pxor xmm14, xmm14",
            "pxor xmm15, xmm15",
            clobber_abi("sysv64"),
            options(nomem, nostack, preserves_flags),
        );
    }
}

#[cfg(target_arch = "aarch64")]
fn wipe_registers() {
    // The lower halves of v8 to v15 are the caller's: the compiler puts them back.
    // SAFETY: each processor has these registers, and all that are written are named.
    unsafe {
        std::arch::asm!(
            "movi v0.16b, #0", "movi v1.16b, #0", "movi v2.16b, #0", "movi v3.16b, #0",
            "movi v4.16b, #0", "movi v5.16b, #0", "movi v6.16b, #0", "movi v7.16b, #0",
            "movi v8.16b, #0", "movi v9.16b, #0", "movi v10.16b, #0", "movi v11.16b, #0",
            "movi v12.16b, #0", "movi v13.16b, #0", "movi v14.16b, #0", "movi v15.16b, #0",
            "movi v16.16b, #0", "movi v17.16b, #0", "movi v18.16b, #0", "movi v19.16b, #0",
            "movi v20.16b, #0", "movi v21.16b, #0", "movi v22.16b, #0", "movi v23.16b, #0",
            "movi v24.16b, #0", "movi v25.16b, #0", "movi v26.16b, #0", "movi v27.16b, #0",
            "movi v28.16b, #0", "movi v29.16b, #0", "movi v30.16b, #0", "movi v31.16b, #0",
            out("v8") _, out("v9") _, out("v10") _, out("v11") _, out("v12") _, out("v13") _,
            out("v14") _, out("v15") _,
            clobber_abi("C"), options(nomem, nostack, preserves_flags),
        );
    }
}

/// Bytes below the caller's frame that [`left_on_the_stack`] looks at.
#[cfg(test)]
pub(crate) const DEEP: usize = 128 << 10;

/// The contents of the stack after finished calls, without adding to it: the kernel copies it.
#[cfg(test)]
#[inline(never)]
pub(crate) fn left_on_the_stack() -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let here = 0u8;
    let mut below = vec![0; DEEP];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut below, (&raw const here).addr() as u64 - DEEP as u64).unwrap();
    below
}
