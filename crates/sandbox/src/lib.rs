//! What a server may still do once it serves: what its doors need, and nothing else.
//!
//! ```text
//!   Needs            what is served how, and what is opened or removed later          needs.rs
//!     |
//!   enter(&Needs) -> State        called once, when all is open and before anybody is told so
//!     |
//!     +-- capabilities.rs   which of root's stay
//!     +-- landlock.rs       which files can be opened, made or removed
//!     +-- seccomp.rs        which system calls can be made; what becomes of the others
//!     +-- threads.rs        every thread of the process takes the steps itself, in a signal handler
//!
//!   helper.rs        a process forked before all that, which unmounts, removes, reopens, connects and makes rings when it is
//!                    asked to
//!   tree.rs          a folder as a mount of its own, and a root folder without anything
//!   mark.rs          how other processes tell that this one is in its sandbox
//!   state.rs         what is in force, for `status`
//! ```
//!
//! Linux keeps all of this for each thread. Threads that start later inherit it from the one that
//! starts them.

// Allowed where it says why: system calls that nothing wraps, signal handlers, fork.
#![deny(unsafe_code)]

mod capabilities;
mod enter;
#[expect(unsafe_code, reason = "fork(2)")]
mod helper;
mod landlock;
mod mark;
mod needs;
#[expect(unsafe_code, reason = "a signal handler")]
mod seccomp;
mod state;
#[expect(unsafe_code, reason = "a signal handler, and system calls of its own")]
mod threads;
#[expect(unsafe_code, reason = "mount_setattr(2), and a thread's own mounts")]
mod tree;

pub use enter::enter;
pub use helper::files::{
    RemovedKind, Target, connect_to, connect_to_syslog, open_log, remove, will_connect, will_open_log,
    will_remove,
};
pub use helper::rings::{RingMade, RingMaker, RingRequest, ring, will_give_commands};
pub use helper::{Asked, Helper, IDENTITY, OfMount};
pub use mark::is_inside;
pub use needs::{Needs, Rings};
pub use state::State;
pub use tree::OwnTree;
