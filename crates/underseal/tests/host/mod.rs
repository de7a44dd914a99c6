//! A host with many volumes, as whole programs: `up`, `down`, `ps`, and what systemd is given.
//!
//! ```text
//!   host.rs      a folder with a list of volumes, and what becomes of it
//!   volumes.rs   opened, closed, listed; repeated, in parallel, one failing, killed, bad lists
//!   files.rs     volumes that have a file each
//!   kubernetes.rs  the commands of docs/kubernetes.md
//!   service.rs   a supervisor that wants to know; credentials
//!   units.rs     what systemd's own tools say of the units
//! ```

mod files;
#[expect(clippy::module_inception, reason = "the host's own commands, among what a host does")]
mod host;
mod kubernetes;
mod service;
mod units;
mod volumes;
