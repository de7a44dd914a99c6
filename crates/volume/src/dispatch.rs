//! Flags of headers and tables about the threads that do the crypto.

/// dm-crypt's flags about dispatch. They change no byte on disk, and a server may ignore them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatchFlags {
    /// Crypto runs on the processor that the request came from.
    pub same_cpu_crypt: bool,
    /// The thread that encrypts a write submits it; without the flag one thread submits sorted
    /// writes.
    pub submit_from_crypt_cpus: bool,
    /// Reads are decrypted where they complete.
    pub no_read_workqueue: bool,
    /// Writes are encrypted where they arrive.
    pub no_write_workqueue: bool,
    /// Crypto runs before other work.
    pub high_priority: bool,
    /// The single flag of the RFC of 2020 for both kinds of requests without a queue. LUKS2 lacks
    /// it.
    pub force_inline: bool,
}

impl DispatchFlags {
    /// Returns a LUKS2 header's persistent flags about dispatch; other flags are skipped.
    pub(crate) fn of_luks2(flags: &[String]) -> Self {
        let has = |name: &str| flags.iter().any(|flag| flag == name);
        Self {
            same_cpu_crypt: has("same-cpu-crypt"),
            submit_from_crypt_cpus: has("submit-from-crypt-cpus"),
            no_read_workqueue: has("no-read-workqueue"),
            no_write_workqueue: has("no-write-workqueue"),
            high_priority: has("high-priority"),
            force_inline: false,
        }
    }

    /// Returns the flags of both: a volume has one kind of dispatch, whatever its parts.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            same_cpu_crypt: self.same_cpu_crypt | other.same_cpu_crypt,
            submit_from_crypt_cpus: self.submit_from_crypt_cpus | other.submit_from_crypt_cpus,
            no_read_workqueue: self.no_read_workqueue | other.no_read_workqueue,
            no_write_workqueue: self.no_write_workqueue | other.no_write_workqueue,
            high_priority: self.high_priority | other.high_priority,
            force_inline: self.force_inline | other.force_inline,
        }
    }

    /// Returns true when no flag is set.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_luks2_are_found_among_others() {
        let of =
            |flags: &[&str]| DispatchFlags::of_luks2(&flags.iter().map(|f| (*f).into()).collect::<Vec<_>>());
        assert!(of(&["allow-discards", "same_cpu_crypt"]).is_empty());
        let set = of(&["allow-discards", "no-read-workqueue", "high-priority"]);
        let all = DispatchFlags { no_read_workqueue: true, high_priority: true, ..DispatchFlags::default() };
        assert_eq!(set, all);
        let set = of(&["same-cpu-crypt", "submit-from-crypt-cpus", "no-write-workqueue"]);
        assert!(set.same_cpu_crypt && set.submit_from_crypt_cpus && set.no_write_workqueue);
        assert!(!set.no_read_workqueue && !set.high_priority && !set.force_inline);
    }
}
