//! The move out of the caller's control group: a service manager that ends all processes of a
//! service would end the devices with it.

use std::fs;
use std::path::{Path, PathBuf};

/// Moves this process to the root of the hierarchies by which service managers end processes:
/// cgroup2, and systemd's of cgroup version 1.
pub(super) fn leave() {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for root in roots(&mounts) {
        if let Err(e) = fs::write(root.join("cgroup.procs"), std::process::id().to_string()) {
            log::warn!(
                "{}: the back end stays in its caller's control group, and ends with it: {e}",
                root.display()
            );
        }
    }
}

/// Returns the mount points of these hierarchies, from /proc/mounts: source, mount point, type,
/// options.
fn roots(mounts: &str) -> Vec<PathBuf> {
    let root = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (at, kind, options) = (words.next()?, words.next()?, words.next()?);
        let is_systemd = || kind == "cgroup" && options.split(',').any(|option| option == "name=systemd");
        (kind == "cgroup2" || is_systemd()).then(|| Path::new(at).to_owned())
    };
    mounts.lines().filter_map(root).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_service_managers_are_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/systemd cgroup rw,xattr,name=systemd 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0\n\
                      proc\n";
        assert_eq!(roots(mounts), [Path::new("/sys/fs/cgroup/systemd"), Path::new("/sys/fs/cgroup/unified")]);
    }
}
