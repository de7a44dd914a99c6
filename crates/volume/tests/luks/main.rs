//! Headers against cryptsetup and qemu, and against what an attacker would write.

mod damaged;
mod exercise;
mod findings;
mod headers;
mod keyslots;
mod ours_to_cryptsetup;
mod plain;
mod reencrypt;
mod reencrypt_both;
mod reencrypt_ours;
mod support;
mod tampered;
mod tampered_luks1;
mod tampered_segments;
mod theirs_to_ours;
mod tokens;
mod vectors;
