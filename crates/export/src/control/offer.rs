//! The contents of the messages of a handover.

use serde::{Deserialize, Serialize};
use underseal_volume as volume;

use super::protocol::Refusal;
use super::status::Opened;
use crate::fuse::MountPlace;
use crate::nbd::{self, Negotiated};
use crate::net::ListenerPlace;
use crate::ublk::UblkPlace;
use crate::vhost_user::Agreed;

/// The version of the messages after the request.
pub const PROTOCOL: u32 = 1;

/// How a server was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Origin {
    /// The arguments, without the program.
    pub arguments: Vec<String>,
    /// The folder that relative paths start from.
    pub folder: String,
}

/// The supervisor of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Supervised {
    /// The path of the supervisor's notification socket.
    pub socket: String,
    /// The watchdog interval in microseconds; 0 for none.
    pub watchdog_us: u64,
    /// The control groups by which the supervisor knows its processes, as in /proc/self/cgroup.
    pub groups: String,
}

/// The old server's offer. The image's descriptor comes with it, those of the sockets and the
/// mount, in this order, and that of the log file, if one is used; the key's bytes follow.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[expect(missing_docs, reason = "they are those of `Described`, `Known` and the mapping")]
pub struct Offer {
    pub name: String,
    pub image: String,
    pub opened: Opened,
    pub addresses: Vec<String>,
    pub size: Option<u64>,
    pub read_only: bool,
    pub policy: String,
    pub volume: volume::Carried,
    pub origin: Origin,
    pub supervised: Option<Supervised>,
    /// The listening sockets of the control socket, of the metrics, and of NBD.
    pub control: Vec<ListenerPlace>,
    pub metrics: Vec<ListenerPlace>,
    pub nbd: Vec<ListenerPlace>,
    /// The listening socket of a virtual machine's front end, if the volume has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machine: Vec<ListenerPlace>,
    /// The mount, whose descriptor follows those of the sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountPlace>,
    /// The block device, which needs no descriptor: the old server releases it once all exports are
    /// paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ublk: Option<UblkPlace>,
}

/// The messages of the new server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asking {
    /// Asks for the offer.
    Begin,
    /// The new server is prepared.
    Ready,
}

/// The messages of the old server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Given {
    /// The volume's settings.
    Offer(Box<Offer>),
    /// No request is in flight any more; the given number of connections follows.
    Rests(usize),
    /// A connection. Its socket comes with the message; the bytes received from the client and the
    /// bytes still to be sent follow.
    Connection(CarriedConnection),
    /// A virtual machine's front end, after the connections, when its socket was offered: `None`
    /// when no front end is connected. Its descriptors follow in `Descriptors` messages.
    Machine(Option<Box<Agreed>>),
    /// Some of the front end's descriptors.
    Descriptors,
    /// The handover is refused.
    Refused(Refusal),
}

/// A connection, without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[expect(missing_docs, reason = "they are those of `Negotiated`")]
pub struct CarriedConnection {
    pub export: usize,
    pub structured_replies: bool,
    pub base_allocation: Option<u32>,
    pub block_sizes: bool,
    pub flags: u16,
    /// How many of the bytes that follow were received; the rest are still to be sent.
    pub ahead: usize,
}

impl CarriedConnection {
    pub(super) fn of(negotiated: &Negotiated, ahead: usize) -> Self {
        let Negotiated { export, structured_replies, base_allocation, block_sizes, flags, tls: _ } =
            *negotiated;
        Self { export, structured_replies, base_allocation, block_sizes, flags: flags.bits(), ahead }
    }

    /// Returns the options that client and server negotiated.
    pub fn negotiated(&self) -> Negotiated {
        Negotiated {
            export: self.export,
            structured_replies: self.structured_replies,
            base_allocation: self.base_allocation,
            block_sizes: self.block_sizes,
            flags: nbd::protocol::TransmissionFlags::from_bits_retain(self.flags),
            tls: false,
        }
    }
}
