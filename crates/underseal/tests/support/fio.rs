//! fio's nbd engine, which writes and verifies what it wrote.

use std::process::Command;

use super::tools::tool;
use super::{Server, seed};

/// Each of so many connections writes to a share of its own, of so many bytes; then all that was
/// written is read, and its sums checked. What is written, and how fast, is said by more of its
/// arguments.
pub(crate) fn verifying(server: &Server, connections: u32, share: u64) -> Command {
    let mut fio = tool("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--thread", "--group_reporting"]).args([
        format!("--uri={}", server.uri()),
        format!("--numjobs={connections}"),
        format!("--size={share}"),
        format!("--offset_increment={share}"),
        "--iodepth=16".into(),
        "--verify=crc32c".into(),
        "--verify_fatal=1".into(),
        "--do_verify=1".into(),
        format!("--randseed={}", seed("fio") >> 1),
        "--aux-path=/tmp".into(),
        "--verify_state_save=0".into(),
    ]);
    fio
}
