//! Volumes of BitLocker, FileVault 2 and loop-AES from an independent maker: contents, refusals,
//! and images after writes.
//!
//!   support     the manifest, the images, a volume's plaintext
//!   bitlk, ..   the tests of each format
//!   exercise    the fuzz targets' functions
//!   findings    the fuzzer's seeds, and images with bytes changed

mod bitlk;
mod exercise;
mod findings;
mod fvault2;
mod fvault2_copies;
mod loopaes;
mod support;

/// A mark is BitLocker's or CoreStorage's; an image without a mark may be of any format.
#[test]
fn formats_with_a_mark_are_told_by_it() {
    use underseal_formats::Format;
    for (format, found) in
        [("bitlk", Some(Format::Bitlk)), ("fvault2", Some(Format::Fvault2)), ("loopaes", None)]
    {
        for entry in support::entries(format) {
            let name = entry["image"].as_str().unwrap();
            let expected = found.filter(|_| name != "bl-plain-ntfs.img");
            assert_eq!(Format::detect(support::file(name).as_slice()).unwrap(), expected, "{name}");
        }
    }
    assert_eq!(Format::detect([0; 100].as_slice()).unwrap(), None);
}
