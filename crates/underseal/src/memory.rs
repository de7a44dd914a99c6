//! Memory that opening a volume took and serving it does not need.

/// The least that pages have. Where they are larger, the kernel refuses what does not begin with one, and all stays as it is.
const PAGE: u64 = 4096;

/// Gives it back: what arguments, header and key derivation had is free, but a heap keeps its pages for those who ask next, and the code
/// that they ran stays mapped. A host may have hundreds of servers that are idle.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it looks at the allocator's own lists, under its locks, and gives free pages to the kernel.
    unsafe {
        libc::malloc_trim(0);
    }
    // SAFETY: the function is called, before this returns, with an object that is valid while it is; it unwinds for nobody.
    unsafe {
        libc::dl_iterate_phdr(Some(unmap_code), std::ptr::null_mut());
    }
}

/// Takes what nobody can have written to, code and constants, out of this process's page tables. The page cache still has it, once for all
/// servers, and whatever is used is mapped again at its first use: 16 pages a fault.
unsafe extern "C" fn unmap_code(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: dl_iterate_phdr() gives an object that is loaded, whose program headers are `dlpi_phnum` from `dlpi_phdr` on.
    let (base, headers) = unsafe {
        let object = &*object;
        if object.dlpi_phdr.is_null() {
            return 0;
        }
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    // Relocations of what is read only afterwards lie in a writable segment; those in one that is not would be DT_TEXTREL, which
    // neither Rust's linkers nor Debian's make.
    let unwritten =
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0);
    for header in unwritten {
        let begin = base.wrapping_add(header.p_vaddr).next_multiple_of(PAGE);
        let end = base.wrapping_add(header.p_vaddr).wrapping_add(header.p_memsz) / PAGE * PAGE;
        let Ok(len) = usize::try_from(end.saturating_sub(begin)) else { continue };
        // SAFETY: the pages are of a private mapping of a file that was never written to: they read as before.
        unsafe { libc::madvise(begin as *mut libc::c_void, len, libc::MADV_DONTNEED) };
    }
    0
}
