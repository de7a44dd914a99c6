//! Whether a lower file's times will show its next change.
//!
//! Linux takes a file's times from a clock that ticks every 1 to 10 ms: two changes within a tick
//! leave the same times. Since Linux 6.13 a change that follows a look at the times gets times of
//! its own in ext4, XFS, btrfs and tmpfs. ext4 with inodes of 128 bytes counts whole seconds, FAT
//! two at once.

use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{Stat, fstatfs};
use rustix::system::uname;
use rustix::time::{ClockId, clock_gettime};

/// The longest time between two changes with the same times.
const TICK: Duration = Duration::from_millis(20);
const SECONDS: Duration = Duration::from_secs(2);

/// File systems with fine times since Linux 6.13, by the numbers of `statfs(2)`.
const FINE: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// Returns true when a change of the lower file after this look at its attributes gives it other
/// times. A change that had begun before the look is waited for where the file is read after it.
pub(super) fn show_next_change(file: impl AsFd, look: &Stat) -> bool {
    let latest = (look.st_ctime, look.st_ctime_nsec).max((look.st_mtime, look.st_mtime_nsec));
    let now = clock_gettime(ClockId::RealtimeCoarse);
    let since = |(seconds, nanoseconds): (i64, _)| {
        let seconds = Duration::from_secs(u64::try_from(now.tv_sec - seconds).ok()?);
        let now = Duration::from_nanos(u64::try_from(now.tv_nsec).ok()?);
        (seconds + now).checked_sub(Duration::from_nanos(nanoseconds))
    };
    let counts_seconds = look.st_ctime_nsec == 0;
    let is_old = |age| age > if counts_seconds { SECONDS } else { TICK };
    since(latest).is_some_and(is_old) || !counts_seconds && has_fine_times(file)
}

fn has_fine_times(file: impl AsFd) -> bool {
    static LINUX: OnceLock<bool> = OnceLock::new();
    let is_new = *LINUX.get_or_init(|| uname().release().to_str().is_ok_and(is_since_6_13));
    let kind = || fstatfs(file).ok().and_then(|about| u32::try_from(about.f_type).ok());
    is_new && kind().is_some_and(|kind| FINE.contains(&kind))
}

fn is_since_6_13(release: &str) -> bool {
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit()).map(str::parse::<u32>);
    let version = numbers.next().and_then(Result::ok).zip(numbers.next().and_then(Result::ok));
    version.is_some_and(|version| version >= (6, 13))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn an_old_change_is_seen_and_a_new_one_by_fine_times_alone() {
        let file = tempfile::tempfile().unwrap();
        let set = |file: &File, time| file.set_modified(time).unwrap();
        set(&file, SystemTime::now() - Duration::from_secs(9));
        let mut look = fstat(&file).unwrap();
        // The change of the times is one of the file.
        (look.st_ctime, look.st_ctime_nsec) = (look.st_mtime, look.st_mtime_nsec);
        assert!(show_next_change(&file, &look));
        set(&file, SystemTime::now() + Duration::from_secs(9));
        look = fstat(&file).unwrap();
        assert_eq!(show_next_change(&file, &look), has_fine_times(&file));
        look.st_ctime_nsec = 0;
        assert!(!show_next_change(&file, &look));
    }

    #[test]
    fn kernels_are_told_apart_by_their_release() {
        for (release, is_new) in [("6.12.9", false), ("6.13", true), ("6.13-rc1", true), ("7.0.1", true)] {
            assert_eq!(is_since_6_13(release), is_new, "{release}");
        }
        assert!(!is_since_6_13("5.15.0-25-generic") && !is_since_6_13("6") && !is_since_6_13(""));
    }
}
