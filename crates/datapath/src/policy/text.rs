//! Policies as text: `inline`, `read=inline,write=workers,order=sorted`.

use std::fmt;
use std::str::FromStr;

use underseal_volume::DispatchFlags;

use super::{Affinity, Dispatch, Policy, WriteOrder};
use crate::{Error, ErrorKind, Result};

/// The names that `--policy` takes, for help texts and errors.
const NAMES: &str = "inline, workers, same-cpu, adaptive, kernel";

/// The policy that version 0.2 parsed, though no volume could have it.
const REMOVED: &str = "engine";

/// The smallest maximum size of a request: the smallest sector.
const LEAST: u32 = 512;

impl FromStr for Policy {
    type Err = Error;

    /// Parses a name, a name with changes after commas
    /// (`workers,write=inline,order=sorted,high-priority,max-read-size=64K`), or changes to
    /// `inline` alone.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |what: String| Error::new(ErrorKind::Policy, what);
        if text.split([',', '=']).any(|word| word == REMOVED) {
            let what = "there are no accelerators any more: use \"adaptive\"";
            return Err(bad(format!("policy \"{text}\": {what}")));
        }
        let mut words = text.split(',');
        let first = words.next().unwrap_or_default();
        let mut policy = match named(first) {
            Some(policy) => policy,
            None if first.contains('=') => Self::INLINE.changed(first)?,
            None => return Err(bad(format!("there is no policy \"{first}\": there are {NAMES}"))),
        };
        for word in words {
            policy = policy.changed(word)?;
        }
        Ok(policy)
    }
}

fn named(name: &str) -> Option<Policy> {
    Some(match name {
        "inline" => Policy::INLINE,
        "workers" => Policy::WORKERS,
        "same-cpu" => Policy::SAME_CPU,
        "adaptive" => Policy::ADAPTIVE,
        "kernel" => Policy::from_flags(DispatchFlags::default()),
        _ => return None,
    })
}

fn dispatch(name: &str) -> Option<Dispatch> {
    Some(match name {
        "inline" => Dispatch::Inline,
        "workers" => Dispatch::Workers { affinity: Affinity::Any },
        "same-cpu" => Dispatch::Workers { affinity: Affinity::SameCpu },
        "adaptive" => Dispatch::Adaptive,
        _ => return None,
    })
}

impl Policy {
    fn changed(mut self, word: &str) -> Result<Self> {
        let bad = |why: &str| {
            let context = format!(
                "policy \"{word}\": {why}: there are read=, write=, order=ready|sorted|arrival, high-priority, \
                 max-read-size=, max-write-size="
            );
            Error::new(ErrorKind::Policy, context)
        };
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "read" => self.read = dispatch(value).ok_or_else(|| bad("not a way to dispatch"))?,
            "write" => self.write = dispatch(value).ok_or_else(|| bad("not a way to dispatch"))?,
            "order" => {
                self.write_order = match value {
                    "ready" => WriteOrder::AsReady,
                    "sorted" => WriteOrder::Sorted,
                    "arrival" => WriteOrder::Arrival,
                    _ => return Err(bad("not an order")),
                }
            }
            "high-priority" if value.is_empty() => self.high_priority = true,
            "max-read-size" => self.max_read_size = size(value).ok_or_else(|| bad("not a size"))?,
            "max-write-size" => self.max_write_size = size(value).ok_or_else(|| bad("not a size"))?,
            _ => return Err(bad("unknown")),
        }
        Ok(self)
    }
}

/// Parses bytes, with K or M; 0 or `none` mean unlimited. Whole sectors only.
fn size(text: &str) -> Option<Option<u32>> {
    if matches!(text, "none" | "0") {
        return Some(None);
    }
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse::<u32>().ok()?.checked_mul(unit)?;
    (bytes >= LEAST && bytes.is_multiple_of(LEAST)).then_some(Some(bytes))
}

impl fmt::Display for Policy {
    /// The shortest text that parses to the same policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = ["inline", "adaptive", "workers", "same-cpu", "kernel"];
        if let Some(name) = whole.into_iter().find(|name| named(name) == Some(*self)) {
            return f.write_str(name);
        }
        let base = named(self.write.name()).unwrap_or(Self::INLINE);
        f.write_str(self.write.name())?;
        if self.read != base.read {
            write!(f, ",read={}", self.read.name())?;
        }
        if self.write_order != base.write_order {
            write!(f, ",order={}", self.write_order)?;
        }
        if self.high_priority {
            f.write_str(",high-priority")?;
        }
        let sizes = [
            ("max-read-size", self.max_read_size, base.max_read_size),
            ("max-write-size", self.max_write_size, base.max_write_size),
        ];
        for (key, size, usual) in sizes {
            match size {
                size if size == usual => {}
                None => write!(f, ",{key}=none")?,
                Some(bytes) if bytes.is_multiple_of(1 << 10) => write!(f, ",{key}={}K", bytes >> 10)?,
                Some(bytes) => write!(f, ",{key}={bytes}")?,
            }
        }
        Ok(())
    }
}

impl Dispatch {
    /// The name for `--policy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Workers { affinity: Affinity::Any } => "workers",
            Self::Workers { affinity: Affinity::SameCpu } => "same-cpu",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for WriteOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AsReady => "ready",
            Self::Sorted => "sorted",
            Self::Arrival => "arrival",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_parses_to_the_same_policy() {
        let dispatches = ["inline", "workers", "same-cpu", "adaptive"].map(|d| dispatch(d).unwrap());
        for read in dispatches {
            for write in dispatches {
                for write_order in [WriteOrder::AsReady, WriteOrder::Sorted, WriteOrder::Arrival] {
                    for (high_priority, size) in [(false, None), (true, Some(512)), (true, Some(128 << 10))] {
                        let policy = Policy {
                            read,
                            write,
                            write_order,
                            high_priority,
                            max_read_size: size,
                            max_write_size: None,
                        };
                        assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy, "{policy}");
                    }
                }
            }
        }
    }

    #[test]
    fn names_are_printed_as_they_are_written() {
        for name in NAMES.split(", ") {
            assert_eq!(name.parse::<Policy>().unwrap().to_string(), name);
        }
        let mixed: Policy = "read=inline,write=workers,order=sorted".parse().unwrap();
        assert_eq!((mixed.read, mixed.write_order), (Dispatch::Inline, WriteOrder::Sorted));
    }

    #[test]
    fn what_is_no_policy_is_refused_by_its_word() {
        let bad = [
            ("", "\"\""),
            ("outline", "\"outline\""),
            ("inline,", "\"\""),
            ("inline,order=random", "order=random"),
            ("workers,read=", "read="),
            ("workers,max-read-size=100", "max-read-size=100"),
            ("workers,max-write-size=5G", "max-write-size=5G"),
            ("workers,max-write-size=4194304K", "max-write-size=4194304K"),
            ("workers,high-priority=yes", "high-priority=yes"),
            ("no_read_workqueue", "no_read_workqueue"),
        ];
        for (text, named) in bad {
            let error = text.parse::<Policy>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Policy);
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn the_kernels_flags_mean_what_they_mean_there() {
        let policy = |set: fn(&mut DispatchFlags)| {
            let mut flags = DispatchFlags::default();
            set(&mut flags);
            Policy::from_flags(flags)
        };
        assert_eq!(policy(|_| {}).to_string(), "kernel");
        assert_eq!(policy(|f| f.submit_from_crypt_cpus = true), Policy::WORKERS);
        let same_cpu = policy(|f| (f.same_cpu_crypt, f.high_priority) = (true, true));
        assert_eq!(same_cpu.to_string(), "same-cpu,order=sorted,high-priority");
        let read = policy(|f| f.no_read_workqueue = true);
        assert_eq!((read.read, read.write), (Dispatch::Inline, Policy::WORKERS.write));
        let write = policy(|f| f.no_write_workqueue = true);
        assert_eq!((write.read, write.write), (Policy::WORKERS.read, Dispatch::Inline));
        let inline = policy(|f| f.force_inline = true);
        assert_eq!((inline.read, inline.write), (Dispatch::Inline, Dispatch::Inline));
    }
}
