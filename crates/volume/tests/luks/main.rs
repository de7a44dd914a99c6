//! Headers against cryptsetup and qemu, and against what an attacker would write.

mod ours_to_cryptsetup;
mod support;
mod vectors;
