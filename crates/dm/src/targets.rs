//! The targets that there are, and the versions that say what each can do.

/// Each target with the version of the kernel's that has the same features. libcryptsetup reads
/// features out of these numbers: verity 1.2.0 is the last one before error correction.
pub const TARGETS: [(&str, [u32; 3]); 8] = [
    ("zero", [1, 1, 0]),
    ("error", [1, 5, 0]),
    ("linear", [1, 4, 0]),
    ("striped", [1, 6, 0]),
    ("delay", [1, 3, 0]),
    ("verity", [1, 2, 0]),
    ("integrity", [1, 10, 0]),
    ("crypt", [1, 28, 0]),
];

/// Whether a target's state is more than that it is there.
pub(crate) fn has_state(target: &str) -> bool {
    !matches!(target, "zero" | "error" | "linear" | "crypt")
}
