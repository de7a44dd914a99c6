//! The arguments of `underseal open` and `underseal upgrade`.

use clap::Args;

use crate::cli::{RateArg, ServeArgs, VolumeArgs};
use crate::commands::control::NameArg;

/// Opens a volume and serves its plain bytes.
///
/// Runs until SIGINT or SIGTERM, then finishes what is in flight, flushes the image and ends; a
/// second signal ends it at once. --nbd, --fuse, --ublk and --vhost-user say where, several of them
/// at once if you like, or --desktop; without any, it is NBD on a Unix socket in your runtime folder. A Unix
/// socket is for you alone, and is removed at the end, and so is a mount.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
// No option is an offset in the volume, so the data's offset can have cryptsetup's name.
#[command(mut_arg("data_offset", |arg| arg.visible_alias("offset")))]
pub(crate) struct OpenArgs {
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let clients free space on the image, which shows how much of it is in use
    #[arg(long)]
    pub(crate) allow_discards: bool,
    /// Resume an unfinished reencryption, if there is one, at RATE: "give-way" (the default, yields
    /// to clients), "full", or bytes per second. Without this option the volume is served as it is
    #[arg(long, value_name = "RATE", num_args = 0..=1, require_equals = true, default_missing_value = "give-way",
        conflicts_with = "read_only")]
    pub(crate) reencrypt: Option<RateArg>,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
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

const EXAMPLES: &str = "\
Examples:
  underseal open disk.img                              NBD on a socket of its own, whose URI is printed
  underseal open disk.img --nbd unix:disk.sock
  underseal open disk.img --vhost-user /run/vm.sock --socket-mode 660 --socket-group kvm
  underseal open 'nbd+unix:///?socket=lower.sock' --nbd unix:disk.sock     encrypts over another server
  underseal open disk.img --nbd unix:/run/disk.sock --daemon --pid-file /run/disk.pid
  underseal open disk.img --nbd tcp:0.0.0.0:10809 --tls-certificates /etc/pki/nbd --tls-verify-peer
  underseal open disk.img --nbd unix:disk.sock --name work --policy adaptive --metrics localhost:9533
  underseal open old.img --type plain --cipher aes-cbc-essiv:sha256 --hash ripemd160 --nbd unix:old.sock
  underseal open disk.img --vhost-user vm.sock --vhost-user-queues 2
  touch disk; underseal open disk.img --fuse disk      the plain bytes are the file \"disk\" until Ctrl-C
  underseal open disk.img --desktop                    its file system in the file manager until Ctrl-C
  sudo underseal open disk.img --ublk --name disk      the plain bytes are /dev/underseal/disk

Then, for instance:
  nbdinfo 'nbd+unix:///?socket=disk.sock'
  mkfs.ext4 -E nodiscard disk; sudo mount -o loop disk /mnt         with --fuse disk --fuse-allow-root
  qemu-system-x86_64 -drive 'file=nbd+unix:///?socket=disk.sock,format=raw'
  qemu-system-x86_64 -m 2G -object memory-backend-memfd,id=ram,size=2G,share=on -machine memory-backend=ram \\
    -chardev socket,id=disk,path=vm.sock,reconnect=1 -device vhost-user-blk-pci,chardev=disk,num-queues=2";
