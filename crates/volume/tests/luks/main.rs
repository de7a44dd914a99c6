//! Headers against cryptsetup and qemu, and against what an attacker would write.

mod ours_to_cryptsetup;
mod plain;
mod support;
mod theirs_to_ours;
mod vectors;
