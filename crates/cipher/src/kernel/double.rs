//! The next tweak of XTS: times x.

/// The tweak of the next block; words are stored with the lower one first. The compiler would shift
/// both words as one, which takes six times as long on some processors.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn double([mut low, mut high]: [u64; 2]) -> [u64; 2] {
    // SAFETY: registers only.
    unsafe {
        std::arch::asm!(
            "mov {over}, {high}",
            "sar {over}, 63",
            "and {over:e}, 0x87",
            "add {low}, {low}",
            "adc {high}, {high}",
            "xor {low}, {over}",
            low = inout(reg) low,
            high = inout(reg) high,
            over = out(reg) _,
            options(pure, nomem, nostack),
        );
    }
    [low, high]
}

/// The tweak of the next block; words are stored with the lower one first.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn double([low, high]: [u64; 2]) -> [u64; 2] {
    [low << 1 ^ (high >> 63) * 0x87, high << 1 | low >> 63]
}
