//! The commands for all volumes of a host.

use std::path::PathBuf;

use clap::Args;
use underseal_export::control::Name;

use super::control::CloseLimitArgs;
use crate::volumes;

/// Opens the volumes of /etc/underseal/volumes and /etc/underseal/volumes.d.
///
/// Each is served by a process of its own, in the background, as `underseal open --daemon` does;
/// several are started at a time. One that is open stays as it is, and one that fails leaves the
/// others alone. The list has crypttab's four fields: name, device, key file, options. What they
/// cannot say a file volumes.d/NAME.toml can.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal up                     all but those whose line says noauto
  underseal up disk vm
  underseal up --config volumes    of another file
  underseal up --foreground disk   this process serves it, as a service of systemd's does")]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Open at most N volumes at a time; each may need as much memory as its key derivation. By
    /// default the number of processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) jobs: Option<u16>,
    /// Serve one volume in this process until it is stopped, and tell a supervisor such as systemd
    /// when it is ready
    #[arg(long, conflicts_with = "jobs", requires = "names")]
    pub(crate) foreground: bool,
}

/// Closes the volumes of /etc/underseal/volumes and volumes.d, and waits until they are closed.
///
/// Each ends as with `underseal close`: what is in flight is finished, and the image flushed. One
/// that is not open is left so.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal down
  underseal down disk vm")]
pub(crate) struct DownArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    #[command(flatten)]
    pub(crate) limit: CloseLimitArgs,
}

/// Lists the volumes of /etc/underseal/volumes and volumes.d, and which of them are open.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal ps
  underseal ps --json | jq -r '.volumes[] | select(.state == \"down\").name'")]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// For programs: one JSON object; `status` is what `underseal status --json` prints, or null.
    /// Fields may be added
    #[arg(long)]
    pub(crate) json: bool,
}

/// The choice of volumes.
#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    /// The volumes, by the names that the file gives them; all of them unless one is named
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<Name>,
    /// The list of volumes, and with .d behind it their folder; only root and you may be able to
    /// write to them
    #[arg(long, value_name = "FILE", default_value = volumes::DEFAULT)]
    pub(crate) config: PathBuf,
}
