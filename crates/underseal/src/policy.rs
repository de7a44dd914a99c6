//! The policy that a volume begins with.

use underseal_datapath::{Mapping, Policy};
use underseal_volume::DispatchFlags;

/// Returns the requested policy; else the one of the volume's table or header; else the default:
/// adaptive, or inline where writes must keep the order of zones.
pub(crate) fn start(asked: Option<Policy>, mapping: &Mapping) -> Policy {
    let flags = mapping.volume().map(|volume| volume.dispatch()).unwrap_or_default();
    first_of(asked, flags, mapping.is_zoned())
}

fn first_of(asked: Option<Policy>, flags: DispatchFlags, is_zoned: bool) -> Policy {
    match asked {
        Some(policy) => policy,
        None if !flags.is_empty() => Policy::from_flags(flags),
        None if is_zoned => Policy::INLINE,
        None => Policy::ADAPTIVE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_was_asked_for_comes_before_flags_and_these_before_the_default() {
        let none = DispatchFlags::default();
        let flags = DispatchFlags { no_read_workqueue: true, no_write_workqueue: true, ..none };
        assert_eq!(first_of(Some(Policy::WORKERS), flags, false), Policy::WORKERS);
        assert_eq!(first_of(None, flags, true), Policy::from_flags(flags));
        assert_eq!(first_of(None, none, false), Policy::ADAPTIVE);
        assert_eq!(first_of(None, none, true), Policy::INLINE);
        let same_cpu = DispatchFlags { same_cpu_crypt: true, ..none };
        assert_eq!(first_of(None, same_cpu, false), "same-cpu,order=sorted".parse().unwrap());
    }
}
