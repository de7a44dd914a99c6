//! What headers and tables say about who does the crypto, and when.

/// dm-crypt's flags about dispatch. They change no byte on disk, and whoever serves the volume may
/// decide otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DispatchFlags {
    /// Crypto on the processor that the request came from.
    pub same_cpu_crypt: bool,
    /// Whoever encrypts a write submits it; else one writer sorts them.
    pub submit_from_crypt_cpus: bool,
    /// Reads are decrypted where they complete.
    pub no_read_workqueue: bool,
    /// Writes are encrypted where they arrive.
    pub no_write_workqueue: bool,
    /// Crypto before other work.
    pub high_priority: bool,
    /// The RFC of 2020's one word for the two sides without a queue. LUKS2 has no such flag.
    pub force_inline: bool,
}

impl DispatchFlags {
    /// A LUKS2 header's persistent flags; those about other things are passed over.
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

    /// What either of them says: a volume is dispatched in one way, whatever it is made of.
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

    /// True when none is set.
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
