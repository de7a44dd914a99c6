//! The arguments of `underseal upgrade`.

use clap::Args;

use crate::commands::control::NameArg;

/// Replaces an open volume's server with this version of the program, without disconnecting
/// clients.
///
/// The volume must have been opened with `--hand-over`: its server keeps the key for it. Clients of
/// NBD stay connected, a mount stays with the files that are open in it, and so does a block device
/// (ublk); a virtual machine (vhost-user) keeps its disk: their requests wait for a moment, and
/// none fails. The new process goes on in the background with the arguments, the key, the policy
/// and the sockets of the old one, which ends then; counters begin anew. Whatever goes wrong before
/// that, the old one goes on. TLS, images on servers and on Ceph, integrity layers, devices with
/// zones, and what another command than `open` serves cannot be taken over yet: that is said before
/// anything stops.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal open disk.img --hand-over
  underseal upgrade disk.img
  /opt/underseal-2/bin/underseal upgrade disk.img")]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
}
