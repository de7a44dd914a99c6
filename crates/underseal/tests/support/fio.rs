//! fio's nbd engine, which writes and verifies what it wrote.

use std::process::Command;

use super::tools::tool;
use super::{Server, seed};

/// A command of fio that writes over `connections` connections, each to a share of `share` bytes,
/// then reads all shares and verifies their checksums. The caller's further arguments choose data
/// and speed.
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
