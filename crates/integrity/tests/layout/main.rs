//! The layout against a kernel's volumes, and its laws over random ones.

mod exercise;
mod findings;
mod journal;
mod laws;
mod open;
mod support;
mod unsynced;
mod vectors;
