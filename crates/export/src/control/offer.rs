//! What is said while a volume is handed over.

use serde::{Deserialize, Serialize};
use underseal_volume as volume;

use super::protocol::Refusal;
use super::status::Opened;
use crate::fuse::MountPlace;
use crate::nbd::{self, Negotiated};
use crate::net::ListenerPlace;
use crate::ublk::UblkPlace;
use crate::vhost_user::Agreed;

/// The version of what is said after the request.
pub const PROTOCOL: u32 = 1;

/// How a server was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Origin {
    /// Its arguments, without the program.
    pub arguments: Vec<String>,
    /// The folder that its paths begin in.
    pub folder: String,
}

/// Who supervises a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Supervised {
    /// Where it listens.
    pub socket: String,
    /// How often it wants to hear something, in microseconds; 0 for never.
    pub watchdog_us: u64,
    /// The control groups that it knows its processes by, in the kernel's words
    /// (/proc/self/cgroup).
    pub groups: String,
}

/// What is offered. The image's descriptor comes with it, those of the sockets and the mount, in
/// this order, and that of the log file, if there is one; the key's bytes follow.
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
    /// The sockets of the control socket's, the metrics', and NBD's clients.
    pub control: Vec<ListenerPlace>,
    pub metrics: Vec<ListenerPlace>,
    pub nbd: Vec<ListenerPlace>,
    /// The sockets of a virtual machine's front end: one, if there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machine: Vec<ListenerPlace>,
    /// The mount, whose descriptor comes behind those of the sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<MountPlace>,
    /// The block device, which needs no descriptor: it is let go of when all rests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ublk: Option<UblkPlace>,
}

/// What who takes over says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asking {
    /// Now the offer.
    Begin,
    /// Everything is prepared.
    Ready,
}

/// What who gives says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Given {
    /// What there is.
    Offer(Box<Offer>),
    /// Nothing is in flight any more; so many connections come.
    Rests(usize),
    /// One of them. Its socket comes with it; the bytes that it had received and those that it owes
    /// follow.
    Connection(CarriedConnection),
    /// A virtual machine's front end, behind the connections, where its socket was offered: none if
    /// there is none. Its descriptors come in messages of their own.
    Machine(Option<Box<Agreed>>),
    /// Some of them.
    Descriptors,
    /// It is not given after all.
    Refused(Refusal),
}

/// A connection, but for its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[expect(missing_docs, reason = "they are those of `Negotiated`")]
pub struct CarriedConnection {
    pub export: usize,
    pub structured_replies: bool,
    pub base_allocation: Option<u32>,
    pub block_sizes: bool,
    pub flags: u16,
    /// How many of the bytes that follow were received; the others are owed.
    pub ahead: usize,
}

impl CarriedConnection {
    pub(super) fn of(negotiated: &Negotiated, ahead: usize) -> Self {
        let Negotiated { export, structured_replies, base_allocation, block_sizes, flags, tls: _ } =
            *negotiated;
        Self { export, structured_replies, base_allocation, block_sizes, flags: flags.bits(), ahead }
    }

    /// What was agreed.
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
