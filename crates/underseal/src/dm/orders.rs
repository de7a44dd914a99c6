//! Messages between the back end and a table server.

use serde::{Deserialize, Serialize};
use underseal_export::fuse::MountPlace;

/// A request. Each has one answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Open a table: its text follows, and its devices are the descriptors, in the order of these
    /// names.
    Open {
        /// As the table names them.
        devices: Vec<String>,
        read_only: bool,
        /// Not before it takes the file of another table, which has the same layer open.
        late: bool,
    },
    /// Show it as this file.
    Show { file: std::path::PathBuf },
    /// End what is in flight, flush, and say where the file is.
    Give,
    /// Go on after that.
    Keep,
    /// End, since another has the file.
    Leave,
    /// Continue with the file of another table, given in this turn: the descriptor.
    Take { place: MountPlace, turn: u64 },
    /// End what is in flight, flush, take no more.
    Suspend,
    /// Take requests again; `anyway`: those that need a key which is wiped fail.
    Resume { anyway: bool },
    /// Forget the key. What to remember from then on follows.
    WipeKey,
    /// Take this key: the first `word` bytes of what follows. The rest is what to remember from then on.
    SetKey { word: usize },
    /// Say what the lines' states are.
    Status,
    /// Keep what follows for a back end that comes after this one: it may hold keys.
    Remember,
    /// Say what was kept, to another back end than before; the devices come with it.
    Adopt,
    /// Hide the file, flush, end.
    End,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The table is open, with this logical block size in bytes.
    Opened {
        block: u32,
    },
    /// Where the file is, and in which turn of the server's it is given; the descriptor is its.
    Given {
        place: Box<MountPlace>,
        turn: u64,
    },
    Status {
        lines: Vec<String>,
    },
    /// The facts that were kept follow.
    Adopted {
        suspended: bool,
    },
    Refused {
        errno: i32,
        why: String,
    },
}
