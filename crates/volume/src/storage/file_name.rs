//! A file that must keep its name: the bytes of one that was removed or replaced are lost with the
//! last program that has it open.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// True for a file that has a name and can lose it.
pub fn has_name(file: &File) -> bool {
    file.metadata().is_ok_and(|of| of.is_file() && of.nlink() > 0)
}

/// Checks that a file that [had a name](has_name) still has one. A caller that has synced a header
/// or another record of progress asks before it relies on the record.
///
/// # Errors
/// `Other` once the file has no name; the system's errors.
pub fn keeps_name(file: &File) -> io::Result<()> {
    if file.metadata()?.nlink() > 0 {
        return Ok(());
    }
    Err(io::Error::other("the header's file, or the one that records the progress, was removed or replaced"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_loses_its_name_once_it_is_removed_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| folder.path().join(name));
        assert!(!has_name(&tempfile::tempfile().unwrap()));
        for is_replaced in [false, true] {
            let file = File::create(&path).unwrap();
            assert!(has_name(&file));
            std::fs::rename(&path, &other).unwrap();
            keeps_name(&file).unwrap();
            if is_replaced {
                File::create(&path).unwrap();
                std::fs::rename(&path, &other).unwrap();
            } else {
                std::fs::remove_file(&other).unwrap();
            }
            assert!(!has_name(&file) && keeps_name(&file).is_err());
        }
    }
}
