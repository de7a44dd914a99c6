//! Volumes in a machine with a full kernel, where they are block devices.
//!
//! ```text
//!   ../guest/    boots the machine
//!   machine.rs   the machine itself: tasks, waiting, the plug
//! ```

#[path = "../guest/guest.rs"]
#[allow(dead_code, reason = "shared with other tests, which use all of it together")]
mod guest;
#[path = "../support/support.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the other tests, which use all of it together")]
mod support;

mod machine;
