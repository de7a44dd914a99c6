//! Messages between the back end and a table server.

use serde::{Deserialize, Serialize};
use underseal_dm::UblkDisk;
use underseal_export::fuse::MountPlace;
use underseal_export::ublk::UblkPlace;

/// The mount or the disk that a server hands over to the next. Those of earlier versions have
/// mounts only.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum CarriedPlace {
    /// A mount, whose descriptor comes along.
    Mount(Box<MountPlace>),
    /// A ublk disk, and the path beside which its servers have their files.
    Disk { place: UblkPlace, file: std::path::PathBuf },
}

impl CarriedPlace {
    /// Returns the path beside which the device's servers have their files.
    pub(super) fn file(&self) -> &std::path::Path {
        match self {
            Self::Mount(place) => &place.path,
            Self::Disk { file, .. } => file,
        }
    }
}

/// What a layer of dm-integrity is, as the kernel prints it in a table: no keys.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerWords {
    pub(super) tag_size: u16,
    pub(super) words: Vec<String>,
}

/// A request. Each has one answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Opens a table: its text follows, and its devices are the descriptors, in the order of these
    /// names.
    Open {
        /// The devices' names in the table.
        devices: Vec<String>,
        read_only: bool,
        /// True when the devices are opened only when the server takes the file of another table,
        /// which has the same layer open.
        late: bool,
    },
    /// Shows the table as this file.
    Show { file: std::path::PathBuf },
    /// Shows the table as a ublk disk.
    ShowDisk { disk: UblkDisk },
    /// Takes the disk away, unless a program has claimed it.
    HideDisk,
    /// Ends requests in flight, flushes, and returns the file's mount, or the disk.
    Give,
    /// Resumes after `Give`.
    Keep,
    /// Ends, since another server has the file.
    Leave,
    /// Continues with the file of another table, given in this turn: the descriptor; or with its
    /// disk.
    Take { place: CarriedPlace, turn: u64 },
    /// Ends requests in flight, flushes, and takes no more.
    Suspend,
    /// Resumes, and delays requests from now on where the table does; with `anyway`, delays none,
    /// and requests that need a wiped key fail. A table that is not suspended goes on.
    Resume { anyway: bool },
    /// Wipes the key. The new facts to remember follow.
    WipeKey,
    /// Sets the key: the first `word` bytes that follow. The rest are the new facts to remember.
    SetKey { word: usize },
    /// Returns the lines' states.
    Status,
    /// Keeps the facts that follow for the next back end; they may contain keys.
    Remember,
    /// Returns the facts to another back end; the devices come with them.
    Adopt,
    /// Takes the file or the disk away, flushes, ends.
    End,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The table is open, with this logical block size in bytes, and the layers of its lines.
    Opened {
        block: u32,
        layers: Vec<Option<LayerWords>>,
    },
    /// The file's mount or the disk, and the server's turn in which it is given; the descriptor is
    /// the mount's.
    Given {
        place: CarriedPlace,
        turn: u64,
    },
    Status {
        lines: Vec<String>,
    },
    /// The remembered facts follow.
    Adopted {
        suspended: bool,
    },
    Refused {
        errno: i32,
        why: String,
    },
}
