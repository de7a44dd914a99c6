//! Other projects' clients: libnbd's and qemu's tools.

use crate::fixture::{MemoryDisk, Served, config, disk, run};

fn uri(served: &Served, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", served.socket().display())
}

#[test]
fn nbdinfo_lists_the_exports_with_all_we_say_of_them() {
    let served = Served::unix(config(), MemoryDisk::default());
    let listed = run("nbdinfo", &["--list", "--json", &uri(&served, "")]);
    let expected = [
        "\"protocol\": \"newstyle-fixed\"",
        "\"structured\": true",
        "\"export-name\": \"disk\"",
        "\"description\": \"a disk in memory\"",
        "\"export-name\": \"big-sectors\"",
        "\"export-size\": 1048576",
        "\"base:allocation\"",
        "\"can_df\": true",
        "\"can_flush\": true",
        "\"can_multi_conn\": true",
        "\"can_trim\": false",
        "\"block_size_minimum\": 4096",
        "\"block_size_minimum\": 512",
        "\"block_size_preferred\": 4096",
        "\"block_size_maximum\": 33554432",
    ];
    for fact in expected {
        assert!(listed.contains(fact), "{fact} is not in {listed}");
    }
}

#[test]
fn nbdinfo_maps_what_block_status_says() {
    let served = Served::unix(config(), MemoryDisk::default());
    let map = run("nbdinfo", &["--map", &uri(&served, "disk")]);
    let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [["0", "524288", "0", "data"], ["524288", "524288", "3", "hole,zero"]]);
}

#[test]
fn nbdcopy_reads_every_byte_with_several_connections() {
    let served = Served::unix(config(), MemoryDisk::default());
    let copy = served.directory.path().join("copy");
    run("nbdcopy", &["--connections=4", &uri(&served, "disk"), copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == disk());
}

#[test]
fn qemu_img_knows_the_size() {
    let served = Served::unix(config(), MemoryDisk::default());
    for export in ["disk", "big-sectors", ""] {
        let described = run("qemu-img", &["info", "--output=json", &uri(&served, export)]);
        assert!(described.contains("\"virtual-size\": 1048576"), "{described}");
    }
}

#[test]
fn libnbd_is_served_in_every_dialect_it_speaks() {
    let served = Served::unix(config(), MemoryDisk::default());
    let connect = format!("h.set_export_name('disk'); h.connect_unix('{}')", served.socket().display());
    let table = [
        ("h.set_handshake_flags(0)", "newstyle"),
        ("h.set_handshake_flags(nbd.HANDSHAKE_FLAG_NO_ZEROES)", "newstyle"),
        ("h.set_handshake_flags(nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE)", "newstyle-fixed"),
        ("h.set_request_structured_replies(False)", "newstyle-fixed"),
        ("h.set_full_info(True)", "newstyle-fixed"),
        ("h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)", "newstyle-fixed"),
    ];
    for (dialect, protocol) in table {
        let read = "print(h.get_protocol(), h.get_size(), h.pread(512, 1024)[:8].hex())";
        let script = ["import nbd", "h = nbd.NBD()", dialect, &connect, read, "h.shutdown()"].join("\n");
        // The distribution's own Python is the one that python3-libnbd is a module of.
        let said = run("/usr/bin/python3", &["-c", &script]);
        assert_eq!(said.trim(), format!("{protocol} 1048576 0000000000000002"), "{dialect}");
    }
}
