//! The available targets, and the versions that tell their features.

/// Each target with the kernel's version that has the same features. libcryptsetup derives features
/// from these numbers: verity 1.2.0 is the last version before error correction.
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

/// Returns true when a target's state is more than its existence.
pub(crate) fn has_state(target: &str) -> bool {
    !matches!(target, "zero" | "error" | "linear" | "crypt")
}
