//! The sandbox of a server: it leaves a serving process only the rights that its exports need.
//!
//! ```text
//!   Needs            the exports, and the files that are opened or removed later      needs.rs
//!     |
//!   enter(&Needs) -> State        called once, when all is open, before the server reports ready
//!     |
//!     +-- capabilities.rs   root's capabilities that stay
//!     +-- landlock.rs       files that can be opened, made or removed
//!     +-- seccomp.rs        system calls that can be made; the result of refused calls
//!     +-- threads.rs        every thread of the process takes the steps, in a signal handler
//!
//!   helper.rs        a process forked before the sandbox, which unmounts, removes, reopens,
//!                    connects and makes rings on request
//!   links.rs         paths in folders of other users, whose links are not followed
//!   tree.rs          a folder as a separate mount, and an empty root folder
//!   mark.rs          a mark that shows other processes that this one is in its sandbox
//!   state.rs         the restrictions in force, for `status`
//! ```
//!
//! Linux keeps these restrictions for each thread. A new thread inherits them from the thread that
//! starts it.

// Allowed where a comment explains it: system calls without a wrapper, signal handlers, fork.
#![deny(unsafe_code)]

mod capabilities;
mod enter;
#[expect(unsafe_code, reason = "fork(2)")]
mod helper;
mod landlock;
mod links;
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
pub use links::{ForeignLink, append, canonical, folder_of, mount_of, pin};
pub use mark::is_inside;
pub use needs::{Needs, Rings};
pub use state::State;
pub use tree::OwnTree;
