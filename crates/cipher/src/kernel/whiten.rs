//! Eight bytes added over a whole sector: a loop, compiled for wider registers where the processor
//! has them.

use crate::CpuPath;

/// The vector code that adds the bytes.
#[derive(Clone, Copy)]
pub(crate) struct Whiten {
    // Only ever a function of features that the processor has.
    add: unsafe fn(&mut [u8], [u8; 8]),
}

impl Whiten {
    /// The widest of a path that the processor has.
    pub(crate) fn of(path: CpuPath) -> Self {
        #[cfg(target_arch = "x86_64")]
        if path >= CpuPath::AesNi && is_x86_feature_detected!("avx2") {
            return Self { add: avx2 };
        }
        let _ = path;
        Self { add }
    }

    /// Adds them over and over.
    #[inline]
    pub(crate) fn add(&self, sector: &mut [u8], bytes: [u8; 8]) {
        // SAFETY: the processor has the features.
        unsafe { (self.add)(sector, bytes) }
    }
}

#[inline(always)]
fn add(sector: &mut [u8], bytes: [u8; 8]) {
    let bytes = u64::from_ne_bytes(bytes);
    for chunk in sector.as_chunks_mut::<8>().0 {
        *chunk = (u64::from_ne_bytes(*chunk) ^ bytes).to_ne_bytes();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2(sector: &mut [u8], bytes: [u8; 8]) {
    add(sector, bytes);
}
