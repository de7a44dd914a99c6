//! Arguments of `underseal-lab bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use underseal_bench::DriveSubject;

use super::size;

/// Measures what the code costs on this machine, beside its limits and its peers. A workload's rows
/// are shown when its rounds are done; Ctrl-C ends the measurement with the rows that are finished,
/// a second one ends it at once.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
    /// For programs: one JSON object, on stdout in place of the text, or in a file that has the
    /// finished rows at any time
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-"
    )]
    pub(crate) json: Option<PathBuf>,
}

/// The rounds of servers, mounts or disks that are measured in turn.
#[derive(Debug, Args)]
pub(crate) struct Interleaved {
    /// How often every one of them meets every workload
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// How long each time
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) runtime: u16,
    /// Only workloads with this in their names, such as "4k", "read" or "depth 32"
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
}

/// An earlier build, to see what a change costs or gains.
#[derive(Debug, Args)]
pub(crate) struct Earlier {
    /// An earlier build of underseal, which is measured in turn with this one in place of the
    /// peers; "p99 ratio" is this one's latency over that one's
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) before: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    Cipher(BenchCipherArgs),
    Aead(BenchAeadArgs),
    Nbd(BenchNbdArgs),
    Fuse(BenchFuseArgs),
    Integrity(BenchIntegrityArgs),
    Ublk(BenchUblkArgs),
    Ecryptfs(BenchEcryptfsArgs),
    VhostUser(BenchVhostUserArgs),
    Unlock(BenchUnlockArgs),
    Formats(BenchFormatsArgs),
    Reencrypt(BenchReencryptArgs),
    Rbd(BenchRbdArgs),
}

/// The sector kernels, beside bare AES rounds, memory, and the libraries this build has
#[derive(Debug, Args)]
pub(crate) struct BenchCipherArgs {
    /// A few seconds, for a first look
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Authenticated sectors, whole requests beside a sector a call, and bare AES rounds
#[derive(Debug, Args)]
pub(crate) struct BenchAeadArgs {
    /// A few seconds, for a first look
    #[arg(long)]
    pub(crate) quick: bool,
}

/// The NBD server, beside qemu-nbd and nbdkit with LUKS, interleaved; the client is fio
#[derive(Debug, Args)]
pub(crate) struct BenchNbdArgs {
    /// Where the images go: a file system in memory with seven times the size free
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) directory: PathBuf,
    /// Each image's size
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub(crate) size: u64,
    #[command(flatten)]
    pub(crate) effort: Interleaved,
    #[command(flatten)]
    pub(crate) earlier: Earlier,
    /// Volumes on other NBD servers (nbdkit's memory) instead of files
    #[arg(long, conflicts_with = "before")]
    pub(crate) over_nbd: bool,
}

/// The FUSE mount, beside a fuser file in memory, nbdfuse over qemu-nbd and qemu-storage-daemon;
/// the client is fio
#[derive(Debug, Args)]
pub(crate) struct BenchFuseArgs {
    /// Where the images go: a file system in memory with four times the size free; the mount in
    /// memory takes it twice more
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) directory: PathBuf,
    /// Each image's size
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    pub(crate) size: u64,
    /// Threads that serve each mount, where they can be chosen
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    #[command(flatten)]
    pub(crate) effort: Interleaved,
    #[command(flatten)]
    pub(crate) earlier: Earlier,
}

/// Volumes with a tag beside each sector, beside the same one without, over NBD and FUSE; the
/// client is fio
#[derive(Debug, Args)]
pub(crate) struct BenchIntegrityArgs {
    /// Where the images go: a file system in memory with six times the size free
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) directory: PathBuf,
    /// Each volume's size
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    pub(crate) size: u64,
    #[command(flatten)]
    pub(crate) effort: Interleaved,
}

/// The block device, beside the kernel's dm-crypt with and without its work queues, each on a RAM
/// disk; the client is fio
#[derive(Debug, Args)]
pub(crate) struct BenchUblkArgs {
    /// A RAM disk, five times; WHAT IS ON THEM IS LOST; by default /dev/ram0 to /dev/ram4
    /// (`modprobe brd rd_nr=5`)
    #[arg(long = "device", value_name = "DEVICE")]
    pub(crate) devices: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) effort: Interleaved,
}

/// The disk of a virtual machine, beside qemu-storage-daemon with LUKS; the client is libblkio's
/// driver
#[derive(Debug, Args)]
pub(crate) struct BenchVhostUserArgs {
    /// Where the images go: a file system in memory with four times the size free
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) directory: PathBuf,
    /// Each image's size
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    pub(crate) size: u64,
    #[command(flatten)]
    pub(crate) effort: Interleaved,
    #[command(flatten)]
    pub(crate) earlier: Earlier,
}

/// Mounts memory without a cipher, for `bench fuse`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct ServeFuseArgs {
    /// The memory's size
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) size: u64,
    /// The file to mount over
    #[arg(long, value_name = "PATH")]
    pub(crate) fuse: PathBuf,
    /// Threads that serve
    #[arg(long, value_name = "N")]
    pub(crate) threads: u16,
    /// Take requests through /dev/fuse
    #[arg(long)]
    pub(crate) no_io_uring: bool,
}

/// VeraCrypt's chains beside their ciphers, BitLocker's key derivation, and a header with nothing
/// known
#[derive(Debug, Args)]
pub(crate) struct BenchFormatsArgs {
    /// A few seconds, for a first look
    #[arg(long)]
    pub(crate) quick: bool,
    /// How often the header is searched
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// VeraCrypt's multiplier of rounds; 0 for its default counts, with which a round takes a
    /// minute
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) pim: u32,
}

/// Unlocking a keyslot with 1, 2 and 4 lanes of Argon2id, beside cryptsetup, interleaved; and
/// answers that need no key
#[derive(Debug, Args)]
pub(crate) struct BenchUnlockArgs {
    /// How often each of them
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// Where the headers go
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) directory: PathBuf,
    /// Argon2's memory
    #[arg(long, value_name = "KiB", default_value_t = 1 << 20)]
    pub(crate) memory: u32,
    /// Argon2's passes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) passes: u32,
}

/// Reencrypting a closed volume with checksums and with a journal, beside cryptsetup and a bare
/// copy, interleaved
#[derive(Debug, Args)]
pub(crate) struct BenchReencryptArgs {
    /// How often each of them
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: u16,
    /// Where the image goes
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) directory: PathBuf,
    /// The volume's size
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "2G")]
    pub(crate) size: u64,
}

/// A volume on an image of a Ceph cluster, beside librbd's own encryption, and both without a
/// cipher, interleaved
#[derive(Debug, Args)]
pub(crate) struct BenchRbdArgs {
    /// The cluster's configuration; by default $CEPH_CONF, then where Ceph looks
    #[arg(long, value_name = "FILE")]
    pub(crate) conf: Option<PathBuf>,
    /// The pool where three images are made, and removed again
    #[arg(long, value_name = "POOL", default_value = "rbd")]
    pub(crate) pool: String,
    /// Each volume's size
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    pub(crate) size: u64,
    #[command(flatten)]
    pub(crate) effort: Interleaved,
    /// Two short rounds over small images, for a first look
    #[arg(long, conflicts_with_all = ["rounds", "runtime", "size"])]
    pub(crate) quick: bool,
}

/// Reads and writes an image in a separate process, for `bench rbd`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct DriveRbdArgs {
    /// The client that is driven
    #[arg(value_parser = driven)]
    pub(crate) driven: DriveSubject,
    /// The image
    pub(crate) image: String,
    /// The cluster's configuration
    #[arg(long, value_name = "FILE")]
    pub(crate) conf: Option<PathBuf>,
    /// For librbd's encryption
    #[arg(long, value_name = "FILE")]
    pub(crate) passphrase_file: PathBuf,
    /// The bytes that are used
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) size: u64,
}

fn driven(word: &str) -> Result<DriveSubject, String> {
    DriveSubject::ALL
        .into_iter()
        .find(|driven| driven.word() == word)
        .ok_or_else(|| "ours, luks2 or plain".into())
}

/// Serves zeroed memory without a cipher, for `bench nbd`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct ServeMemoryArgs {
    /// The memory's size
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) size: u64,
    /// Where
    #[arg(long, value_name = "ENDPOINT")]
    pub(crate) nbd: String,
}

/// eCryptfs: the extents of a request at once, beside one by one; then a mounted folder, beside
/// gocryptfs and the same mount without a cipher; the clients are fio, tar, ls, find, rm
#[derive(Debug, Args)]
pub(crate) struct BenchEcryptfsArgs {
    /// Only the crypto, for a few seconds: nothing is mounted
    #[arg(long)]
    pub(crate) quick: bool,
    /// Where the folders go: a file system in memory with twelve times the size free
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) directory: PathBuf,
    /// The bytes of each thread's file
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size)]
    pub(crate) size: u64,
    /// Small files in the tree
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    pub(crate) files: u32,
    /// Threads that serve our mounts
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    #[command(flatten)]
    pub(crate) effort: Interleaved,
    #[command(flatten)]
    pub(crate) earlier: Earlier,
}

/// Mounts a folder as it is, for `bench ecryptfs`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct ServeBareMountArgs {
    /// The folder
    pub(crate) lower: PathBuf,
    /// The folder to mount on
    pub(crate) mountpoint: PathBuf,
    /// Threads that serve
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) threads: u16,
}

const EXAMPLES: &str = "\
Examples:
  underseal-lab bench cipher --quick
  underseal-lab bench nbd                                  some ten minutes; needs fio, nbdkit and qemu-utils
  underseal-lab bench nbd --only 'depth 32' --rounds 3 --json=nbd.json
  underseal-lab bench fuse --before /usr/bin/underseal   this build beside an earlier one
  underseal-lab bench fuse --only 4k                       needs fio, libnbd-bin, qemu-utils and fuse3
  underseal-lab bench integrity --only 'NBD 4k'            needs fio and fuse3
  underseal-lab bench ublk --only 4k                       as root, with ublk, dm-crypt and brd; needs fio and cryptsetup-bin
  underseal-lab bench unlock                               needs cryptsetup-bin
  underseal-lab bench formats --quick
  underseal-lab bench reencrypt                            needs cryptsetup-bin
  scripts/ceph-cluster underseal-lab bench rbd             needs ceph-mon, ceph-osd and ceph-common, or a cluster (--conf FILE)
  underseal-lab bench vhost-user --only '4k'               needs qemu-system-common and qemu-utils
  underseal-lab bench ecryptfs                             needs fio, fuse3 and gocryptfs";
