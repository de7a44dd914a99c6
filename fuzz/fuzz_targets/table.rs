#![no_main]

use underseal_volume::table::Table;

// Whatever parses prints, and what it prints parses to the same; opening it fails or gives a volume
// of its length.
libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(table) = Table::parse(text) else { return };
    let printed = table.print(true);
    let again = Table::parse(&printed).expect("what was printed parses");
    assert_eq!(again.print(true), printed);
    assert!(table.print(false).len() <= printed.len());
    let _ = table.warnings();
    // A key in the keyring is not the fuzzer's.
    if !printed.contains(" :") {
        if let Ok(volume) = table.volume(&vec![1 << 40; table.bases().len()]) {
            assert_eq!(volume.size(), table.sectors() * 512);
        }
    }
});
