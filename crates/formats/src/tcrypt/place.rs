//! Where headers lie in a host file or disk.

use super::HEADER;

/// A place where a header may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the beginning.
    Normal,
    /// At 65536; in volumes of TrueCrypt before 6, 1536 bytes before the end.
    Hidden,
    /// The backup of the normal header, 131072 bytes before the end.
    Backup,
    /// The backup of the hidden volume's header, 65536 bytes before the end.
    BackupHidden,
    /// System encryption: in sector 62 of the whole disk.
    System,
}

/// The size of a header's area, from TrueCrypt 6 on; and where the second one begins.
pub(super) const AREA: u64 = 65536;

impl Place {
    /// The place that the options `--hidden`, `--backup-header` and `--system` name; none when they
    /// contradict each other.
    pub fn named(hidden: bool, backup: bool, system: bool) -> Option<Self> {
        match (hidden, backup, system) {
            (false, false, false) => Some(Self::Normal),
            (true, false, false) => Some(Self::Hidden),
            (false, true, false) => Some(Self::Backup),
            (true, true, false) => Some(Self::BackupHidden),
            (false, false, true) => Some(Self::System),
            _ => None,
        }
    }

    /// The name: `backup of the hidden volume's header`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal header",
            Self::Hidden => "hidden volume's header",
            Self::Backup => "backup header",
            Self::BackupHidden => "backup of the hidden volume's header",
            Self::System => "system encryption's header",
        }
    }

    /// Whether the header is a hidden volume's.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::Hidden | Self::BackupHidden)
    }

    /// Whether the header is a backup of another one.
    pub(super) fn is_backup(self) -> bool {
        matches!(self, Self::Backup | Self::BackupHidden)
    }

    /// Where the header may begin in a host of `size` bytes, the usual place first. Places where no
    /// whole header fits are left out, since a small old volume may end before them.
    pub(super) fn offsets(self, size: u64) -> Vec<u64> {
        let before_end = |bytes| size.checked_sub(bytes);
        let all = match self {
            Self::Normal => [Some(0), None],
            Self::Hidden => [Some(AREA), before_end(OLD_HIDDEN)],
            Self::Backup => [before_end(2 * AREA), None],
            Self::BackupHidden => [before_end(AREA), None],
            Self::System => [Some(31_744), None],
        };
        let fits = |at: &u64| at.checked_add(HEADER as u64).is_some_and(|end| end <= size);
        let mut offsets: Vec<u64> = all.into_iter().flatten().filter(fits).collect();
        offsets.dedup();
        offsets
    }
}

/// How many bytes before the end TrueCrypt before 6 has a hidden volume's header.
pub(super) const OLD_HIDDEN: u64 = 1536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_do_not_fit_are_left_out() {
        for (place, size, want) in [
            (Place::Normal, 511, vec![]),
            (Place::Normal, 512, vec![0]),
            (Place::Hidden, 66_048, vec![65_536, 64_512]),
            (Place::Hidden, 66_047, vec![64_511]),
            (Place::Hidden, 1535, vec![]),
            (Place::Backup, 131_071, vec![]),
            (Place::Backup, 131_072, vec![0]),
            (Place::BackupHidden, 65_536, vec![0]),
            (Place::System, 32_256, vec![31_744]),
            (Place::System, 32_255, vec![]),
        ] {
            assert_eq!(place.offsets(size), want, "{place:?} in {size}");
        }
    }
}
