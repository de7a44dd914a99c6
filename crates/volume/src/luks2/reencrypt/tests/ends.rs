//! Ends of reencryptions: nothing of the old bytes is left, and nobody who lacks the keys brings one about.

use std::collections::HashSet;

use super::*;

/// How many sectors of `plain` are in there.
fn plain_sectors(bytes: &[u8], plain: &[u8]) -> usize {
    let known: HashSet<&[u8]> = plain.chunks(512).collect();
    bytes.chunks(512).filter(|sector| known.contains(sector)).count()
}

#[test]
fn no_plaintext_is_left_where_a_header_came_in_front() {
    for apart in [false, true] {
        let (plain, device, file, key) = in_front(200 * KIB, Some(96 * KIB));
        if apart {
            // As after a crash before the header in front was begun.
            let mut bytes = device.bytes().clone();
            bytes[..plain.len()].copy_from_slice(&plain);
            let device = Recorder::new(bytes);
            assert_eq!(go_on(&file, &device, &key, true).unwrap(), Outcome::Finished);
            assert_eq!(plain_sectors(&device.bytes(), &plain), 0, "finished by the header aside");
        } else {
            let bytes = device.bytes().clone();
            assert!(
                plain_sectors(&bytes[128 * KIB..OFFSET], &plain) > 0,
                "there is some beyond the keyslots"
            );
            assert_eq!(go_on(&device, &device, &key, false).unwrap(), Outcome::Finished);
            assert_eq!(plain_sectors(&device.bytes(), &plain), 0);
        }
    }
}
