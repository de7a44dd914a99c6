//! Updates whose sync fails: reads still return the new header, and the disk has the old header, or
//! half of one.

use super::*;
use crate::reencrypt::tests::faults::{Disk, Fault};

#[test]
fn an_update_whose_sync_failed_is_made_sure_of_before_anything_relies_on_it() {
    let (start, mut header, key) = disk();
    let both = begin(&start, &mut header, key, &change(Protection::Journal));
    let (start, plain) = (start.bytes().clone(), pattern(DATA));
    let (mut failed, mut died) = (0, 0);
    for (fails, dies) in (0..22).flat_map(|fails| (0..40).step_by(3).map(move |dies| (fails, dies))) {
        let disk = Disk::new(start.clone());
        disk.set(Some(Fault::Sync(fails)));
        failed += u32::from(go_on(&disk, &disk, &both, false).is_err());
        disk.set(Some(Fault::Dead(dies + fails % 3)));
        died += u32::from(go_on(&disk, &disk, &both, false).is_err());
        disk.set(None);
        disk.lose_power(|| dies % 2 == 0);
        let mut bytes = vec![0; OFFSET + DATA];
        let now = |bytes: &mut Vec<u8>| {
            disk.get(bytes, 0);
            read(&bytes[..]).unwrap_or_else(|| panic!("{fails} {dies}: the header is gone"))
        };
        if now(&mut bytes).reencryption().unwrap().is_some() {
            let end = go_on(&disk, &disk, &both, false);
            assert_eq!(end.unwrap(), Outcome::Finished, "{fails} {dies}");
        }
        let header = now(&mut bytes);
        let opened = header.unlock(&bytes[..], &passphrase(), &UnlockOptions::default()).unwrap();
        let volume = activate(&header, &opened.key, OFFSET + DATA, false).unwrap();
        assert!(plaintext(&volume, &bytes) == plain, "{fails} {dies}: bytes are lost");
    }
    assert!(failed > 100 && died > 100, "{failed} {died}");
}
