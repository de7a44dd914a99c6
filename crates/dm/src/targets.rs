//! The targets that there are, and the versions that say what each can do.

/// Each target with the version of the kernel's that has the same features. libcryptsetup reads features out of these numbers: crypt
/// 1.18.0 is the last one whose keys come as digits, before keys of the kernel's keyring.
pub const TARGETS: [(&str, [u32; 3]); 5] = [
    ("zero", [1, 1, 0]),
    ("error", [1, 5, 0]),
    ("linear", [1, 4, 0]),
    ("integrity", [1, 10, 0]),
    ("crypt", [1, 18, 0]),
];

/// Whether a target's state is more than that it is there.
pub(crate) fn has_state(target: &str) -> bool {
    !matches!(target, "zero" | "error" | "linear" | "crypt")
}
