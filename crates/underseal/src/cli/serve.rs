//! The options for serving a volume, of `open`, `table open` and `integrity open`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use underseal_datapath::Policy;
use underseal_export::control::Name;
use underseal_export::net::Endpoint;
use underseal_export::vhost_user::MOST_QUEUES;

/// The options for serving a volume.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Serve NBD at unix:PATH or tcp:HOST:PORT, or on sockets of systemd's ("systemd"); may be
    /// repeated
    #[arg(long, value_name = "WHERE", help_heading = NBD)]
    pub(crate) nbd: Vec<Nbd>,
    /// The mode of the Unix sockets of --nbd and --vhost-user: 660 lets a group in, as QEMU's under
    /// libvirt
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = socket_mode, help_heading = SOCKETS)]
    pub(crate) socket_mode: u32,
    /// The group of these sockets, by name or number
    #[arg(long, value_name = "GROUP", help_heading = SOCKETS)]
    pub(crate) socket_group: Option<String>,
    /// The export's name; clients that name none get it anyway
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, help_heading = NBD)]
    pub(crate) export_name: String,
    /// A description for `nbdinfo --list`
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, help_heading = NBD)]
    pub(crate) description: String,
    /// Clients served at a time; each may make this process use 64 MiB of memory with large
    /// requests, until it is idle
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..),
        help_heading = NBD)]
    pub(crate) max_connections: u16,
    /// Look for the next request for up to this time before sleeping, while clients are quick and
    /// processors idle; 0 for never
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(..=10_000))]
    pub(crate) busy_poll: u32,
    /// Do not offer structured replies, nor block status: small reads cost libnbd's clients a third
    /// less
    #[arg(long, help_heading = NBD)]
    pub(crate) simple_replies: bool,
    /// Require TLS on all sockets, with server-cert.pem and server-key.pem in this directory
    #[arg(long, value_name = "DIR", help_heading = NBD)]
    pub(crate) tls_certificates: Option<PathBuf>,
    /// Only for clients with a certificate that DIR/ca-cert.pem signed, and that DIR/ca-crl.pem, if
    /// it is there, does not revoke
    #[arg(long, requires = "tls_certificates", help_heading = NBD)]
    pub(crate) tls_verify_peer: bool,
    /// Let plain bytes cross the network
    #[arg(long, help_heading = NBD)]
    pub(crate) allow_plaintext_tcp: bool,

    /// Mount the plain bytes over the regular file PATH, as that file; over a folder, as a file for
    /// each segment
    #[arg(long, value_name = "PATH", help_heading = FUSE)]
    pub(crate) fuse: Option<PathBuf>,
    /// Threads that serve the mount
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256),
        requires = "fuse", help_heading = FUSE)]
    pub(crate) fuse_threads: u16,
    /// Let root use the mount too, for losetup and mount; needs user_allow_other in /etc/fuse.conf
    #[arg(long, requires = "fuse", help_heading = FUSE)]
    pub(crate) fuse_allow_root: bool,
    /// Let the kernel keep no pages of the file; always so for a volume that is also written to
    /// through --nbd
    #[arg(long, requires = "fuse", help_heading = FUSE)]
    pub(crate) fuse_no_cache: bool,
    /// Take requests through /dev/fuse, even where the kernel offers io_uring for them (Linux 6.14,
    /// the setting fuse.enable_uring); always so with --hand-over
    #[arg(long, requires = "fuse", help_heading = FUSE)]
    pub(crate) fuse_no_io_uring: bool,

    /// Mount the volume's file system where the file manager shows it, by udisks, until Ctrl-C
    #[arg(long, conflicts_with_all = ["fuse", "nbd", "ublk", "vhost_user", "daemon", "hand_over"],
        help_heading = DESKTOP)]
    pub(crate) desktop: bool,

    /// Make the plain bytes a block device, /dev/ublkbN, to which /dev/underseal/NAME leads;
    /// opening a volume again whose server was killed goes on with its device
    #[arg(long, help_heading = UBLK)]
    pub(crate) ublk: bool,
    /// The number N; by default the volume's own from before, or the next free one
    #[arg(long, value_name = "N", requires = "ublk", value_parser = clap::value_parser!(u32).range(..=0xf_ffff),
        help_heading = UBLK)]
    pub(crate) ublk_id: Option<u32>,
    /// Hardware queues, each with a thread; by default one for each processor, but at most 4
    #[arg(long, value_name = "N", requires = "ublk", value_parser = clap::value_parser!(u16).range(1..=256),
        help_heading = UBLK)]
    pub(crate) ublk_queues: Option<u16>,

    #[command(flatten)]
    pub(crate) vhost_user: VhostUserArgs,

    #[command(flatten)]
    pub(crate) control: ControlArgs,

    /// Continue in the background once clients can connect
    #[arg(long, help_heading = PROCESS)]
    pub(crate) daemon: bool,
    /// Write the process's number there, and remove the file at the end
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    pub(crate) pid_file: Option<PathBuf>,
    /// Append messages to this file, which in the background is opened anew on SIGHUP; by default
    /// they go to stderr, in the background to syslog
    #[arg(long, value_name = "FILE", help_heading = PROCESS)]
    pub(crate) log_file: Option<PathBuf>,
    /// The arguments of the server, for the new server of a handover; set for `open` only.
    #[arg(skip)]
    pub(crate) origin: Option<Vec<std::ffi::OsString>>,
    /// Keep all privileges while serving: capabilities, files, system calls. For a machine where
    /// the sandbox is in the way of something; `status` tells what is in force
    #[arg(long, help_heading = PROCESS)]
    pub(crate) no_sandbox: bool,
}

impl ServeArgs {
    /// Whether there is a FUSE mount.
    pub(crate) fn mounts(&self) -> bool {
        self.fuse.is_some() || self.desktop
    }
}

/// The volume as a disk of a virtual machine.
#[derive(Debug, Args)]
#[command(next_help_heading = VHOST_USER)]
pub(crate) struct VhostUserArgs {
    /// Be a vhost-user-blk device for the virtual machine (or libblkio program) that connects to
    /// this Unix socket
    #[arg(id = "vhost_user", long = "vhost-user", value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// Rings that the device has, each with a thread of its own while it is used
    #[arg(id = "vhost_user_queues", long = "vhost-user-queues", value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(1..=MOST_QUEUES.into()), requires = "vhost_user")]
    pub(crate) queues: u16,
}

/// The options for the volume's operator.
#[derive(Debug, Args)]
#[command(next_help_heading = CONTROL)]
pub(crate) struct ControlArgs {
    /// Which threads encrypt and decrypt: inline, workers, same-cpu, adaptive, kernel, or a mixture
    /// (`underseal help policy`); by default the flags of the table or header decide, else adaptive
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<Policy>,
    /// The volume's name in `underseal list` and other commands; by default the image's file name
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<Name>,
    /// Let `underseal upgrade` take the volume over: the server keeps its key for that, in locked
    /// memory, and gives it to any process of the same user that asks
    #[arg(long)]
    pub(crate) hand_over: bool,
    /// Serve metrics for Prometheus there, at /metrics
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics: Option<MetricsAddress>,
    /// Let other machines read the metrics, which tell how busy the volume is
    #[arg(long, requires = "metrics")]
    pub(crate) allow_public_metrics: bool,
}

/// The address for metrics: an endpoint of TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricsAddress(pub(crate) Endpoint);

impl FromStr for MetricsAddress {
    type Err = underseal_export::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        format!("tcp:{text}").parse().map(Self)
    }
}

/// The address for NBD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Nbd {
    /// A socket that this process makes.
    At(Endpoint),
    /// Sockets that systemd passes.
    Systemd,
}

impl FromStr for Nbd {
    type Err = underseal_export::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "systemd" { Ok(Self::Systemd) } else { text.parse().map(Self::At) }
    }
}

/// Parses an octal mode, as chmod(1) does.
fn socket_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "want an octal number to 777, such as 660".to_owned())
}

const NBD: &str = "NBD";
const SOCKETS: &str = "Sockets";
const FUSE: &str = "FUSE";
const DESKTOP: &str = "Desktop (udisks)";
const UBLK: &str = "Block device (ublk)";
const VHOST_USER: &str = "Virtual machines";
const CONTROL: &str = "Control and metrics";
const PROCESS: &str = "Process";
