//! Memory that opening a volume needed and serving it does not need.

#![expect(unsafe_code, reason = "memory's limits and locks")]

use std::ops::Range;

/// Pages of files that cannot have been written to: the code and the constants of the program and
/// its libraries.
pub(crate) struct Code(Vec<Range<usize>>);

impl Code {
    /// Finds the pages, as long as /proc can be read.
    pub(crate) fn find() -> Self {
        let mut segments = Vec::<Range<usize>>::new();
        // SAFETY: the function is called, before this returns, with an object that is valid during
        // the call, and with the pointer to the list, which no other code uses meanwhile.
        unsafe {
            libc::dl_iterate_phdr(Some(add_segments), (&raw mut segments).cast());
        }
        // Tools that move code into larger pages use anonymous memory, whose contents exist nowhere
        // else.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let files: Vec<_> = maps.lines().filter_map(of_a_file).collect();
        let in_file = |segment: &Range<usize>| {
            files.iter().any(|file| file.start <= segment.start && segment.end <= file.end)
        };
        segments.retain(in_file);
        Self(segments)
    }
}

/// Parses the range of a line of /proc/PID/maps that maps a file read-only.
fn of_a_file(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (range, may, inode) = (words.next()?, words.next()?, words.nth(2)?);
    let (start, end) = range.split_once('-')?;
    let at = |hex| usize::from_str_radix(hex, 16).ok();
    (inode != "0" && !may.contains('w')).then_some(at(start)?..at(end)?)
}

/// Releases the memory. The memory of arguments, header and key derivation is free, but the heap
/// keeps its pages for later allocations, and the code that has run stays mapped. A host may have
/// hundreds of idle servers.
pub(crate) fn give_back(code: &Code) {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call works on the allocator's own lists, under its locks, and returns free pages
    // to the kernel.
    unsafe {
        libc::malloc_trim(0);
    }
    // The page cache still has the pages, once for all servers; used pages are mapped again at
    // their first use, 16 pages a fault.
    for Range { start, end } in &code.0 {
        // SAFETY: the pages are of private mappings of files, and were not written to: they read as
        // before. (A debugger's breakpoint would be lost.) Where pages are larger, the kernel
        // refuses a range that does not begin at one.
        unsafe { libc::madvise(*start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

/// Adds the whole pages of an object's segments that are never written to.
unsafe extern "C" fn add_segments(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    segments: *mut libc::c_void,
) -> libc::c_int {
    const PAGE: u64 = 4096;
    // SAFETY: dl_iterate_phdr() passes a loaded object, whose program headers are `dlpi_phnum` from
    // `dlpi_phdr` on, and the argument that it was called with.
    let (base, headers, segments) = unsafe {
        let object = &*object;
        if object.dlpi_phdr.is_null() {
            return 0;
        }
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object.dlpi_addr, headers, &mut *segments.cast::<Vec<Range<usize>>>())
    };
    // Relocations of data that are read-only afterwards lie in a writable segment; relocations in a
    // read-only one would be DT_TEXTREL, which neither Rust's linkers nor Debian's make.
    let unwritten =
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0);
    for header in unwritten {
        let begin = base.wrapping_add(header.p_vaddr).next_multiple_of(PAGE);
        let end = base.wrapping_add(header.p_vaddr).wrapping_add(header.p_memsz) / PAGE * PAGE;
        if let (Ok(begin), Ok(end)) = (usize::try_from(begin), usize::try_from(end))
            && begin < end
        {
            segments.push(begin..end);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_opening_runs_leaves_the_page_tables_and_is_there_when_it_is_called() {
        // Returns how much of the program's files is in this process's page tables, in KiB.
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let code = Code::find();
        assert!(code.0.iter().any(|segment| segment.contains(&(give_back as *const () as usize))));
        // Other tests run meanwhile, and map the code that they run.
        let leaves = |_| {
            let before = resident();
            give_back(&code);
            resident() < before
        };
        assert!((0..20).any(leaves), "{} KiB", resident());
        assert!(!Code::find().0.is_empty(), "and all of it still runs");
    }

    #[test]
    fn only_lines_of_files_that_are_not_written_to_are_taken() {
        for (line, taken) in [
            ("7f80-7f90 r-xp 00000000 fe:00 131 /usr/bin/underseal", Some(0x7f80..0x7f90)),
            ("7f80-7f90 rw-p 00000000 fe:00 131 /usr/bin/underseal", None),
            ("7f80-7f90 r-xp 00000000 00:00 0 [vdso]", None),
            ("7f80-7f90 r-xp 00000000 00:00 0", None),
            ("nonsense", None),
            ("", None),
        ] {
            assert_eq!(of_a_file(line), taken, "{line}");
        }
    }
}
