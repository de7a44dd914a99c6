//! Where the passphrase comes from.

use std::path::PathBuf;

use clap::Args;

use crate::size;

/// Passphrases and keys are never arguments and never in the environment: both can be read by others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Passphrase (asked on the terminal unless one of these is given)")]
pub(crate) struct SecretArgs {
    /// The first line of this file, without its newline
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) passphrase_file: Option<PathBuf>,
    /// The first line from this open descriptor (0 is stdin); nothing after its newline is read
    #[arg(long, value_name = "N", group = "secret")]
    pub(crate) passphrase_fd: Option<u32>,
    /// All bytes of this file, newlines too ("-" is stdin)
    #[arg(long, value_name = "FILE", group = "secret")]
    pub(crate) key_file: Option<PathBuf>,
    /// Skip so many bytes of the key file
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "key_file")]
    pub(crate) keyfile_offset: Option<u64>,
    /// Use so many bytes of the key file
    #[arg(long, value_name = "BYTES", value_parser = size::parse, requires = "key_file")]
    pub(crate) keyfile_size: Option<u64>,
    /// What this program prints, without one newline at its end. It is run without a shell; arguments are parted by spaces
    #[arg(long, value_name = "PROGRAM ARGS", group = "secret")]
    pub(crate) passphrase_command: Option<String>,
}
