//! Which policy a volume begins with.

use underseal_datapath::{Flags, Policy};
use underseal_volume::table::{Table, Target};

/// What was asked for; else what the flags of the table or header say; else the default: adaptive, or inline where writes
/// must keep the order of zones.
pub(crate) fn start(asked: Option<Policy>, flags: Flags, is_zoned: bool) -> Policy {
    match asked {
        Some(policy) => policy,
        None if !flags.is_empty() => Policy::from_flags(flags),
        None if is_zoned => Policy::INLINE,
        None => Policy::ADAPTIVE,
    }
}

/// A LUKS2 header's persistent flags.
pub(crate) fn of_header(flags: &[&str]) -> Flags {
    let has = |name| flags.contains(&name);
    Flags {
        same_cpu_crypt: has("same-cpu-crypt"),
        submit_from_crypt_cpus: has("submit-from-crypt-cpus"),
        no_read_workqueue: has("no-read-workqueue"),
        no_write_workqueue: has("no-write-workqueue"),
        high_priority: has("high-priority"),
        force_inline: false,
    }
}

/// A table's options. A volume has one policy: what any of its lines asks for.
pub(crate) fn of_table(table: &Table) -> Flags {
    let mut flags = Flags::default();
    for line in table.lines() {
        let Target::Crypt(crypt) = &line.target else { continue };
        let options = &crypt.options;
        flags.same_cpu_crypt |= options.same_cpu_crypt;
        flags.submit_from_crypt_cpus |= options.submit_from_crypt_cpus;
        flags.no_read_workqueue |= options.no_read_workqueue;
        flags.no_write_workqueue |= options.no_write_workqueue;
        flags.high_priority |= options.high_priority;
        flags.force_inline |= options.force_inline;
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_was_asked_for_comes_before_flags_and_these_before_the_default() {
        let flags = of_header(&["allow-discards", "no-read-workqueue", "no-write-workqueue"]);
        assert_eq!(start(Some(Policy::WORKERS), flags, false), Policy::WORKERS);
        assert_eq!(start(None, flags, true), Policy::from_flags(flags));
        assert_eq!(start(None, of_header(&["allow-discards"]), false), Policy::ADAPTIVE);
        let line = "0 8 crypt aes-xts-plain64 00000000000000000000000000000000ffffffffffffffffffffffffffffffff 0 a 0";
        let flags = |options: &str| of_table(&Table::parse(&format!("{line} {options}")).unwrap());
        assert_eq!(start(None, flags(""), true), Policy::INLINE);
        assert_eq!(start(None, flags("1 same_cpu_crypt"), false), "same-cpu,order=sorted".parse().unwrap());
        assert!(flags("2 force_inline allow_discards").force_inline);
    }
}
