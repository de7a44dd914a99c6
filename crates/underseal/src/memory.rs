//! Memory that opening a volume took and serving it does not need.

/// Gives it back: what arguments, header and key derivation had is free, but a heap keeps its pages for those who ask next. A host may have
/// hundreds of servers that are idle.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it looks at the allocator's own lists, under its locks, and gives free pages to the kernel.
    unsafe {
        libc::malloc_trim(0);
    }
}
