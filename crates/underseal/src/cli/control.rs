//! The commands for open volumes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use underseal_export::control::Name;

use super::{SecretArgs, TokenArgs, TrustArgs};
use crate::size;

/// Lists the volumes that are open.
///
/// A server that does not answer within 10 seconds is named on stderr; the exit status is 7 then.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal list
  underseal list --json | jq -r '.[].name'")]
pub(crate) struct ListArgs {
    /// For programs: an array of what `underseal status --json` prints
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows what a volume does, and how long each stage of its requests takes.
///
/// Stages: queued, until a thread takes the request up; crypto, from when it is due until it is
/// done; lower, in the lower device; reply, until the answer is sent. total is the whole way. A
/// figure such as p99 is what 99 in 100 requests took at most.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal status disk.img
  underseal status disk.img --json | jq .latency.total.p99_ns")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// For programs: everything as one JSON object; times are in nanoseconds, sizes in bytes.
    /// Fields may be added
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which of the open volumes.
#[derive(Debug, Args)]
pub(crate) struct NameArg {
    /// The volume, as `underseal list` calls it
    pub(crate) name: Name,
}

/// Shows a volume's policy, or sets another one while the volume is in use.
///
/// Each request goes the way that is set when it comes.
#[derive(Debug, Args)]
#[command(after_help = POLICIES)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// The new policy
    pub(crate) policy: Option<String>,
}

/// Finishes a volume's requests in flight, flushes it, and holds back further requests until
/// `underseal resume`.
///
/// Clients wait. The image can be copied, or the key changed, while nothing moves. With --wipe the
/// key is nowhere in memory afterwards, as with cryptsetup luksSuspend, and `underseal resume` asks
/// for it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal suspend disk.img && cp --reflink disk.img snapshot.img; underseal resume disk.img
  underseal suspend disk.img --wipe && systemctl suspend; underseal resume disk.img")]
pub(crate) struct SuspendArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// Give up, and resume, when requests in flight take longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) timeout: u32,
    /// Then wipe the volume's key; not of volumes of other systems (VeraCrypt, BitLocker,
    /// FileVault 2, loop-AES), whose key `resume` cannot set again
    #[arg(long)]
    pub(crate) wipe: bool,
}

/// Resumes a suspended volume; asks for its passphrase if its key is wiped.
///
/// The header is read again, where the volume was opened from: a passphrase that was added since is
/// good. A plain volume takes its passphrase or key file as it was opened, a table's its key as the
/// table says it (hex digits, or :SIZE:TYPE:NAME). Whether that is the right one nothing can tell
/// for those two: wrong keys read noise.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal resume disk.img
  underseal resume disk.img --passphrase-file passphrase
  underseal resume disk.img --header backup.hdr")]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// Read the LUKS header from this file; by default from where the volume was opened
    #[arg(long, value_name = "FILE")]
    pub(crate) header: Option<PathBuf>,
    /// Try this keyslot only
    #[arg(long, value_name = "N")]
    pub(crate) key_slot: Option<u32>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) secret: SecretArgs,
    #[command(flatten)]
    pub(crate) tokens: TokenArgs,
}

/// Gives a volume another size while it is open, until it is closed.
///
/// Without --size it takes all that its image or device has now, or what its LUKS2 header says
/// where that has a size. Nothing is written to the header, and nothing that lies beyond a smaller
/// end is lost: make the filesystem smaller before. Of a table with several lines the last one
/// changes. Users of a mount, a ublk device (Linux 6.16) and a virtual machine see the new size at
/// once, NBD clients when they connect again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  truncate -s 20G disk.img && underseal resize disk.img
  underseal resize disk.img --size 8G")]
pub(crate) struct ResizeArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// The new size
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Give up, and keep the old size, when requests beyond a smaller end take longer than this
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=3600))]
    pub(crate) timeout: u32,
}

/// Sends a suspended volume one of dm-crypt's messages: `key wipe` or `key set`.
///
/// After `key wipe` the volume's key is nowhere in memory, and the volume cannot be resumed before
/// `key set`. A key that is set must have the size of the old one, and of a LUKS volume be the
/// right one. Of plain volumes and tables nothing can tell that: wrong keys read noise.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal suspend disk.img
  underseal message disk.img key wipe
  underseal message disk.img key set --key-file volume.hex
  underseal message disk.img key set --key-fd 3 3< volume.hex
  echo :64:user:disk | underseal message disk.img key set
  underseal resume disk.img")]
pub(crate) struct MessageArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    /// The message's words. A key is none of them: other users can read arguments
    #[arg(required = true, value_name = "WORD")]
    pub(crate) words: Vec<String>,
    #[command(flatten)]
    pub(crate) key: KeyArgs,
}

/// Where the key of `key set` comes from; stdin, or a terminal that does not show it, unless one of
/// these is given.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Key (from stdin unless one of these is given): hex digits, or :SIZE:TYPE:NAME of the keyring"
)]
pub(crate) struct KeyArgs {
    /// The first line of this file
    #[arg(long, value_name = "FILE", group = "from")]
    pub(crate) key_file: Option<PathBuf>,
    /// The first line from this open descriptor
    #[arg(long, value_name = "N", group = "from")]
    pub(crate) key_fd: Option<u32>,
}

/// Ends a volume's server as SIGTERM does, and waits until it has ended.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal close disk.img")]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    pub(crate) volume: NameArg,
    #[command(flatten)]
    pub(crate) limit: CloseLimitArgs,
}

/// The time limit of a close.
#[derive(Debug, Args)]
pub(crate) struct CloseLimitArgs {
    /// Wait at most this long; by default as long as it takes. A volume that is not closed by then
    /// continues to close
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
}

impl CloseLimitArgs {
    pub(crate) fn within(&self) -> Option<Duration> {
        self.timeout.map(|seconds| Duration::from_secs(seconds.into()))
    }
}

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

/// Shows all open volumes and their latency, live.
///
/// Keys: up and down choose a volume, whose stages are shown below; q ends. Bars are the shares of
/// requests by duration, since the picture before.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underseal top
  underseal top --interval 5
  underseal top --once")]
pub(crate) struct TopArgs {
    /// Refresh at this interval
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,
    /// Print one interval as text; so it is where stdout is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}

/// A command to an open volume.
#[derive(Debug, Subcommand)]
pub(crate) enum Control {
    List(ListArgs),
    Status(StatusArgs),
    Policy(PolicyArgs),
    Suspend(SuspendArgs),
    Resume(Box<ResumeArgs>),
    Resize(ResizeArgs),
    Message(MessageArgs),
    Close(CloseArgs),
    Upgrade(UpgradeArgs),
    Top(TopArgs),
}

pub(crate) const POLICIES: &str = "\
Policies:
  inline      the thread that brings a request encrypts or decrypts it
  workers     a pool of threads does
  same-cpu    of the pool, the thread on the processor that the request came on
  adaptive    inline while that keeps up; what is more goes to idle workers
  kernel      as dm-crypt without flags: workers, and writes sorted by one submitter
After commas: read=, write= (one of the first four); order=ready|sorted|arrival (of writes); high-priority;
max-read-size=, max-write-size= (longer requests are split)

Examples:
  underseal policy disk.img
  underseal policy disk.img adaptive
  underseal policy disk.img workers,write=inline,max-read-size=64K";
