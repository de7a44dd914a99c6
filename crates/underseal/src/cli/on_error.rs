//! The option `--on-error`, of `read` and `table decrypt`.

use clap::ValueEnum;

/// The handling of sectors whose tags do not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// Nothing behind it is read
    Stop,
    /// Zeros are given for it
    Zero,
}
