//! The resource limits of a server that another process replaces: the new process would otherwise
//! serve under those of the shell that it was started from, where a write beyond `ulimit -f` fails.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};
use crate::exit::Exit;

/// The limits, with their names in /proc/PID/limits. The server itself sets that of core files.
const LIMITS: [(Resource, &str); 7] = [
    (Resource::Cpu, "Max cpu time"),
    (Resource::Fsize, "Max file size"),
    (Resource::Data, "Max data size"),
    (Resource::Nproc, "Max processes"),
    (Resource::Nofile, "Max open files"),
    (Resource::Memlock, "Max locked memory"),
    (Resource::As, "Max address space"),
];

/// Gives this process the limits of process `server`.
///
/// Fails with `Failed` where this process may not have as much.
pub(super) fn take_over(server: i32) -> Result<()> {
    // A server that is gone ends the handover elsewhere.
    let Ok(all) = fs::read_to_string(format!("/proc/{server}/limits")) else { return Ok(()) };
    for (resource, name) in LIMITS {
        let Some(theirs) = limit(&all, name) else { continue };
        if setrlimit(resource, theirs).is_ok() {
            continue;
        }
        // Without privileges the hard limit cannot be raised.
        let ours = getrlimit(resource);
        if is_below(ours.maximum, theirs.current) {
            let what = format!("{} is smaller here than the server has it", name.to_lowercase());
            let remedy = "from a shell without that limit (ulimit -a shows them), or as root";
            return Err(Error::new(Exit::Failed, what).with_remedy(remedy));
        }
        let soft = Rlimit { current: theirs.current, ..ours };
        setrlimit(resource, soft).map_err(|e| {
            Error::new(Exit::Failed, format!("cannot set {}", name.to_lowercase())).because(&e)
        })?;
    }
    Ok(())
}

/// Compares two limits; none is the highest.
fn is_below(limit: Option<u64>, than: Option<u64>) -> bool {
    limit.is_some_and(|limit| than.is_none_or(|than| limit < than))
}

/// Reads a line of /proc/PID/limits.
fn limit(all: &str, name: &str) -> Option<Rlimit> {
    let line = all.lines().find_map(|line| line.strip_prefix(name))?;
    let mut words = line.split_whitespace();
    let mut value = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Rlimit { current: value()?, maximum: value()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_shows_them() {
        let all = fs::read_to_string("/proc/self/limits").unwrap();
        for (resource, name) in LIMITS {
            assert_eq!(limit(&all, name), Some(getrlimit(resource)), "{name}");
        }
        assert_eq!(limit("Max cpu time   7   x   seconds\n", "Max cpu time"), None);
    }

    #[test]
    fn none_is_the_highest_limit() {
        for (limit, than, is) in [
            (None, None, false),
            (None, Some(7), false),
            (Some(7), None, true),
            (Some(7), Some(7), false),
            (Some(6), Some(7), true),
        ] {
            assert_eq!(is_below(limit, than), is, "{limit:?} {than:?}");
        }
    }
}
