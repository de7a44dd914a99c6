//! Headers compared with cryptsetup and qemu, and headers written by an attacker.

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
