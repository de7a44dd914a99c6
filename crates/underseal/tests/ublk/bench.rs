//! `underseal-lab bench ublk`, where there are ublk and dm-crypt. Not a test: `scripts/bench-ublk`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::guest::Guest;
use crate::support::Scratch;

/// Five RAM disks of 64 MiB.
const DISKS: &str = "brd rd_nr=5 rd_size=65536";

#[test]
#[ignore = "measures: see scripts/bench-ublk"]
fn bench_ublk() {
    let scratch = Scratch::new();
    let mut guest = Guest::new(&scratch);
    guest.modules(&["ublk_drv", DISKS]);
    let options = std::env::var("BENCH_UBLK").unwrap_or_else(|_| "--rounds 3 --runtime 1".into());
    // The script builds it, beside the program that it measures.
    let lab = Path::new(env!("CARGO_BIN_EXE_underseal")).with_file_name("underseal-lab");
    let script = format!("{} --quiet bench ublk {options} > report", lab.display());
    guest.task_within("bench", Duration::from_secs(3600), &script);
    guest.boot();
    std::io::stdout().write_all(&fs::read(scratch.path("report")).unwrap()).unwrap();
}
