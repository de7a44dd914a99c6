//! An open volume under its operator's hands, as whole programs: the real server, the real
//! commands, real clients.
//!
//! ```text
//!   names.rs    list, names, sockets of killed servers, directories that are no good
//!   confined.rs what others give to a sandboxed server, and believe of it
//!   taken_over.rs  commands go by what a server recorded, not by what it says of its image
//!   sandbox.rs  what a server may still do
//!   status.rs   what was done is counted; JSON; close
//!   policy.rs   another policy while fio verifies
//!   suspend.rs  requests wait while suspended, and run after `resume`
//!   hung.rs     a server that is stopped, and the time limits of commands
//!   hung_helper.rs  a server's helper process that is stopped
//!   keys.rs     key wipe, key set, and what dm-crypt says of misuse
//!   life.rs     wiped, and resumed with a passphrase; headers that others change meanwhile
//!   resize.rs   grown and shrunk while it is served
//!   others.rs   another user; nonsense and slowness on the socket
//!   metrics.rs  what Prometheus scrapes
//!   mismatches.rs  what status and metrics say of damaged sectors, also for the exports' tests
//!   dashboard.rs  Grafana's dashboard over those metrics, asked of Prometheus
//!   top.rs      the live view, on a pipe and on a terminal
//!   upgrade.rs  another process takes it over, or fails to
//!   upgrade_mount.rs  the same of a mount
//!   upgrade_loop.rs  the same of a volume on a loop device
//! ```

mod confined;
mod dashboard;
mod hung;
mod hung_helper;
pub(crate) mod keys;
mod life;
mod metrics;
pub(crate) mod mismatches;
mod names;
pub(crate) mod operator;
mod others;
mod policy;
mod resize;
mod sandbox;
mod status;
mod suspend;
mod taken_over;
mod top;
mod upgrade;
mod upgrade_loop;
mod upgrade_mount;
