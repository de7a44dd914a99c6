use std::cell::RefCell;
use std::io;

use super::*;
use crate::tcrypt::{KeyFiles, UnlockOptions, unlock};

const HOST: u64 = 640 << 10;

fn password(text: &[u8]) -> Password {
    Password::new(&Key::new(text).unwrap(), &KeyFiles::new().unwrap()).unwrap()
}

fn pim(pim: u32) -> Pim {
    Pim::new(pim).unwrap()
}

fn options(chain: &str, hidden: Option<u64>) -> NewOptions {
    let (prf, sector_size) = (Prf::Sha512, 512);
    let chain = Chain::of_veracrypt(chain).unwrap();
    NewOptions { chain, prf, pim: pim(1), sector_size, quick: false, hidden }
}

fn opens(image: &[u8], place: Place, text: &[u8]) -> Result<Unlocked> {
    let options = UnlockOptions { place, pim: pim(1), prfs: vec![Prf::Sha512], ..UnlockOptions::default() };
    unlock(image, &password(text), &options)
}

/// A progress that goes on.
fn on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A write and its place; none for a sync.
type Logged = Option<(u64, Vec<u8>)>;

/// A disk that remembers every write and sync.
struct Recorder {
    bytes: RefCell<Vec<u8>>,
    log: RefCell<Vec<Logged>>,
}

impl Recorder {
    fn over(bytes: Vec<u8>) -> Self {
        Self { bytes: RefCell::new(bytes), log: RefCell::default() }
    }

    /// Calls `check` with every content that the disk may have after a power cut: all writes before
    /// the last sync, and of the later writes any one missing, and the last one cut at any sector.
    fn after_each_cut(&self, before: &[u8], mut check: impl FnMut(&[u8])) {
        let apply = |disk: &mut [u8], (at, bytes): &(u64, Vec<u8>)| {
            let at = usize::try_from(*at).unwrap();
            disk[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let (mut synced, mut since) = (before.to_vec(), Vec::new());
        for entry in self.log.borrow().iter() {
            match entry {
                None => since.drain(..).for_each(|write| apply(&mut synced, &write)),
                Some(write) => {
                    since.push(write.clone());
                    for missing in 0..=since.len() {
                        let mut disk = synced.clone();
                        let others = since.iter().enumerate().filter(|(nth, _)| *nth != missing);
                        others.for_each(|(_, write)| apply(&mut disk, write));
                        check(&disk);
                    }
                    let sectors = (write.1.len() / 512).min(4);
                    for cut in 0..sectors {
                        let mut disk = synced.clone();
                        since[..since.len() - 1].iter().for_each(|write| apply(&mut disk, write));
                        apply(&mut disk, &(write.0, write.1[..cut * 512].to_vec()));
                        check(&disk);
                    }
                }
            }
        }
        assert!(since.is_empty(), "the last write is synced");
    }
}

impl ReadAt for Recorder {
    fn size(&self) -> io::Result<u64> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes.borrow()[..].read_exact_at(buf, offset)
    }
}

impl Target for Recorder {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        self.log.borrow_mut().push(Some((offset, bytes.to_vec())));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.log.borrow_mut().push(None);
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[test]
fn a_new_volume_opens_by_both_headers_and_so_does_a_hidden_one_inside() {
    let disk = Recorder::over(vec![0; usize::try_from(HOST).unwrap()]);
    let outer =
        NewHeaders::prepare(HOST, &password(b"outer"), &options("serpent-twofish-aes", None)).unwrap();
    let mut last = (0, 1);
    let mut tell = |done, all| {
        last = (done, all);
        ControlFlow::Continue(())
    };
    assert!(outer.make(&disk, &mut tell).unwrap().is_continue());
    assert_eq!(last, (HOST, HOST), "all of the host is written");
    let hidden = NewHeaders::prepare(HOST, &password(b"hidden"), &options("aes", Some(128 << 10))).unwrap();
    assert!(hidden.make(&disk, &mut on).unwrap().is_continue());
    let image = disk.bytes.into_inner();
    for (place, text, want) in [
        (Place::Normal, &b"outer"[..], 131_072..HOST - 131_072),
        (Place::Backup, b"outer", 131_072..HOST - 131_072),
        (Place::Hidden, b"hidden", HOST - 131_072 - 4096 - 131_072..HOST - 131_072 - 4096),
        (Place::BackupHidden, b"hidden", HOST - 131_072 - 4096 - 131_072..HOST - 131_072 - 4096),
    ] {
        let unlocked = opens(&image, place, text).unwrap();
        let of = &unlocked.header;
        assert_eq!((of.start, of.start + of.size), (want.start, want.end), "{place:?}");
        assert_eq!(of.hidden_size, if place.is_hidden() { of.size } else { 0 });
        unlocked.open(HOST, None).unwrap();
    }
    let (outer, hidden) =
        (opens(&image, Place::Normal, b"outer").unwrap(), opens(&image, Place::Hidden, b"hidden").unwrap());
    let guard = outer.open_around(&hidden, HOST).unwrap().guards.remove(0).range;
    assert_eq!(guard, HOST - 131_072 - 4096 - 131_072 - 131_072..HOST - 131_072 - 4096 - 131_072);
    // Salts and sealed bytes of all four headers differ.
    let at = |at: u64| &image[usize::try_from(at).unwrap()..][..HEADER];
    let all = [at(0), at(AREA), at(HOST - 2 * AREA), at(HOST - AREA)];
    for (i, a) in all.iter().enumerate() {
        assert!(all[i + 1..].iter().all(|b| a[..SALT] != b[..SALT] && a[SALT..] != b[SALT..]));
    }
}

#[test]
fn a_volume_that_is_made_opens_as_a_whole_or_not_at_all_after_a_power_cut() {
    let host = LEAST;
    let before = vec![0; usize::try_from(host).unwrap()];
    let disk = Recorder::over(before.clone());
    let new = NewHeaders::prepare(host, &password(b"new"), &options("aes", None)).unwrap();
    assert!(new.make(&disk, &mut on).unwrap().is_continue());
    let data = disk.bytes.borrow()[usize::try_from(2 * AREA).unwrap()..][..4096].to_vec();
    let mut seen = [false; 2];
    disk.after_each_cut(&before, |disk| {
        let opens = [Place::Normal, Place::Backup].map(|place| opens(disk, place, b"new").is_ok());
        // The header is written last: a header that opens implies a complete volume.
        assert!(!opens[0] || opens[1], "a header without its backup");
        if opens[1] {
            assert_eq!(disk[usize::try_from(2 * AREA).unwrap()..][..4096], data[..]);
        }
        seen[0] |= !opens[1];
        seen[1] |= opens[0];
    });
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_passphrase_that_is_changed_is_the_old_or_the_new_one_after_a_power_cut() {
    let disk = Recorder::over(vec![0; usize::try_from(HOST).unwrap()]);
    let made = NewHeaders::prepare(HOST, &password(b"old"), &options("aes-twofish-serpent", None)).unwrap();
    assert!(made.make(&disk, &mut on).unwrap().is_continue());
    disk.log.borrow_mut().clear();
    let before = disk.bytes.borrow().clone();
    let old = opens(&before, Place::Normal, b"old").unwrap();
    let key = old.volume_key().unwrap();
    let changed = NewHeaders::again(HOST, &old, Prf::Sha512, pim(1), &password(b"new")).unwrap();
    changed.replace(&disk).unwrap();
    let mut seen = [false; 2];
    disk.after_each_cut(&before, |disk| {
        let by = |text| [Place::Normal, Place::Backup].map(|place| opens(disk, place, text).ok());
        let (old, new) = (by(b"old"), by(b"new"));
        let (old, new) = (old.into_iter().flatten(), new.into_iter().flatten());
        let all: Vec<Unlocked> = old.chain(new).collect();
        assert!(!all.is_empty(), "neither passphrase opens either header");
        assert!(all.iter().all(|of| of.volume_key().unwrap() == key));
        seen[0] |= opens(disk, Place::Normal, b"old").is_ok();
        seen[1] |= opens(disk, Place::Normal, b"new").is_ok();
    });
    assert_eq!(seen, [true; 2]);
    let image = disk.bytes.into_inner();
    for place in [Place::Normal, Place::Backup] {
        assert_eq!(opens(&image, place, b"old").unwrap_err().kind(), ErrorKind::WrongPassphrase);
        opens(&image, place, b"new").unwrap();
    }
}

/// The header at the beginning is damaged. A write may be cut off within its sector.
#[test]
fn the_only_header_that_opens_is_replaced_last() {
    let disk = Recorder::over(vec![0; usize::try_from(HOST).unwrap()]);
    let made = NewHeaders::prepare(HOST, &password(b"old"), &options("aes", None)).unwrap();
    assert!(made.make(&disk, &mut on).unwrap().is_continue());
    disk.bytes.borrow_mut()[..HEADER].fill(0xdb);
    disk.log.borrow_mut().clear();
    let mut stored = disk.bytes.borrow().clone();
    let old = opens(&stored, Place::Backup, b"old").unwrap();
    NewHeaders::again(HOST, &old, Prf::Sha512, pim(1), &password(b"new")).unwrap().replace(&disk).unwrap();
    for (at, bytes) in disk.log.take().into_iter().flatten() {
        let sector = usize::try_from(at).unwrap()..usize::try_from(at).unwrap() + bytes.len();
        // The old header written again changes no byte, wherever it is cut off.
        if stored[sector.clone()] != bytes[..] {
            let before = stored[sector.clone()].to_vec();
            stored[sector.clone()].fill(0xbd);
            let opens =
                |text| [Place::Normal, Place::Backup].iter().any(|at| opens(&stored, *at, text).is_ok());
            assert!(opens(b"old") || opens(b"new"), "no header opens while byte {at} is written");
            stored[sector.clone()].copy_from_slice(&before);
        }
        stored[sector].copy_from_slice(&bytes);
    }
    for place in [Place::Normal, Place::Backup] {
        opens(&stored, place, b"new").unwrap();
    }
}

/// The first change's last sync failed: reads show its header, and the disk has the one before.
#[test]
fn a_passphrase_that_is_changed_after_a_sync_that_failed_is_the_one_before_or_the_new_one() {
    let disk = Recorder::over(vec![0; usize::try_from(HOST).unwrap()]);
    let made = NewHeaders::prepare(HOST, &password(b"first"), &options("aes", None)).unwrap();
    assert!(made.make(&disk, &mut on).unwrap().is_continue());
    let of_first = disk.bytes.borrow().clone();
    let again = |image: &[u8], old: &[u8], new: &[u8]| {
        let old = opens(image, Place::Normal, old).unwrap();
        NewHeaders::again(HOST, &old, Prf::Sha512, pim(1), &password(new)).unwrap()
    };
    again(&of_first, b"first", b"old").replace(&disk).unwrap();
    let seen = disk.bytes.borrow().clone();
    let backup = usize::try_from(HOST - 2 * AREA).unwrap();
    // The headers that are in memory only: one of the two, or both.
    for lost in [vec![0], vec![backup], vec![0, backup]] {
        let mut stored = seen.clone();
        for at in lost.iter().copied() {
            stored[at..at + HEADER].copy_from_slice(&of_first[at..at + HEADER]);
        }
        let disk = Recorder::over(seen.clone());
        again(&seen, b"old", b"new").replace(&disk).unwrap();
        let mut secured = false;
        disk.after_each_cut(&stored, |disk| {
            let by =
                |text| [Place::Normal, Place::Backup].iter().any(|place| opens(disk, *place, text).is_ok());
            let (old, new) = (by(b"old"), by(b"new"));
            secured |= old;
            // Until the headers are written again and synced, the disk may have what it had.
            assert!(old || new || by(b"first"), "lost {lost:?}: no passphrase opens it");
            // A new header beside one that was given up is what a cut must never leave.
            assert!(!(new && by(b"first")), "lost {lost:?}: a header that was replaced is there again");
        });
        assert!(secured, "lost {lost:?}");
    }
}

#[test]
fn a_header_without_a_backup_opens_by_the_old_or_the_new_passphrase_after_a_power_cut() {
    let made = |chain| {
        let disk = Recorder::over(vec![7; usize::try_from(HOST).unwrap()]);
        let made = NewHeaders::prepare(HOST, &password(b"old"), &options(chain, None)).unwrap();
        write(&disk, 0, &made.header).unwrap();
        disk.bytes.into_inner()
    };
    // Without a backup that opens; of an old volume; of a system.
    type Change = fn(&mut Unlocked);
    let cases: [(Change, Place, u64, bool); 3] = [
        (|_| (), Place::Normal, 0, true),
        (|of| of.header.version = 3, Place::Normal, 0, false),
        (|of| (of.place, of.at) = (Place::System, 62 * 512), Place::System, 62 * 512, false),
    ];
    for (change, place, at, has_backup) in cases {
        let image = made("aes");
        let mut unlocked = opens(&image, Place::Normal, b"old").unwrap();
        change(&mut unlocked);
        // The header as such a volume has it, and nothing else.
        let mut before = vec![7; image.len()];
        let alone = NewHeaders::again(HOST, &unlocked, Prf::Sha512, pim(1), &password(b"old")).unwrap();
        assert_eq!((alone.at, alone.has_backup()), (at, has_backup));
        before[usize::try_from(at).unwrap()..][..HEADER].copy_from_slice(&alone.header);
        let old = opens(&before, place, b"old").unwrap();
        assert!(opens(&before, Place::Backup, b"old").is_err());
        let key = old.volume_key().unwrap();
        let disk = Recorder::over(before.clone());
        let new = NewHeaders::again(HOST, &old, Prf::Sha512, pim(1), &password(b"new")).unwrap();
        new.replace(&disk).unwrap();
        let mut seen = [0; 2];
        disk.after_each_cut(&before, |disk| {
            let by = [b"old", b"new"].map(|text| opens(disk, place, text).ok());
            assert!(by.iter().flatten().all(|of| of.volume_key().unwrap() == key));
            let opened = by.map(|of| usize::from(of.is_some()));
            assert_eq!(opened[0] + opened[1], 1, "one passphrase opens the header");
            (seen[0], seen[1]) = (seen[0] + opened[0], seen[1] + opened[1]);
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{place:?}: {seen:?}");
    }
}

#[test]
fn a_volume_whose_making_is_stopped_does_not_open() {
    let disk = Recorder::over(vec![0; usize::try_from(HOST).unwrap()]);
    let old = NewHeaders::prepare(HOST, &password(b"old"), &options("aes", None)).unwrap();
    old.replace(&disk).unwrap();
    let new = NewHeaders::prepare(HOST, &password(b"new"), &options("aes", None)).unwrap();
    for stop_at in [1, HOST] {
        let mut tell = |done, all| {
            assert_eq!(all, HOST);
            if done >= stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        assert!(new.make(&disk, &mut tell).unwrap().is_break());
        let image = disk.bytes.borrow();
        for place in [Place::Normal, Place::Backup] {
            assert!(opens(&image, place, b"new").is_err(), "{stop_at} {place:?}");
        }
        assert!(opens(&image, Place::Normal, b"old").is_err(), "old headers go first");
    }
}

#[test]
fn what_cannot_be_made_is_refused_before_anything_is_written() {
    let of = |host, options: &NewOptions| {
        NewHeaders::prepare(host, &password(b"new"), options).map(|_| ()).unwrap_err().kind()
    };
    let aes = options("aes", None);
    assert_eq!(of(LEAST - 512, &aes), ErrorKind::TooSmall);
    assert_eq!(of(LEAST + 1, &aes), ErrorKind::TooSmall);
    assert_eq!(of(LEAST, &NewOptions { sector_size: 513, ..aes }), ErrorKind::BadOption);
    assert_eq!(of(LEAST, &NewOptions { prf: Prf::Sha1, ..aes }), ErrorKind::BadOption);
    for size in [0, 513, HOST - 4 * AREA - 4096, HOST, u64::MAX, !511] {
        assert_eq!(of(HOST, &NewOptions { hidden: Some(size), ..aes }), ErrorKind::BadOption, "{size}");
    }
}

/// The host is cut short, or has other data behind the volume.
#[test]
fn headers_of_a_volume_that_does_not_end_with_its_host_are_not_replaced() {
    let disk = Recorder::over(vec![0; usize::try_from(HOST).unwrap()]);
    for (text, hidden) in [(&b"outer"[..], None), (b"hidden", Some(128 << 10))] {
        let new = NewHeaders::prepare(HOST, &password(text), &options("aes", hidden)).unwrap();
        assert!(new.make(&disk, &mut on).unwrap().is_continue());
    }
    let image = disk.bytes.into_inner();
    for (place, text) in [(Place::Normal, &b"outer"[..]), (Place::Hidden, b"hidden")] {
        let old = opens(&image, place, text).unwrap();
        let again = |host| NewHeaders::again(host, &old, Prf::Sha512, pim(1), &password(b"new"));
        again(HOST).unwrap();
        for (host, kind) in [
            (0, ErrorKind::TooSmall),
            (HOST / 2, ErrorKind::TooSmall),
            (HOST - AREA, ErrorKind::TooSmall),
            (HOST + 512, ErrorKind::BadOption),
            (HOST + 1, ErrorKind::BadOption),
            (3 * HOST, ErrorKind::BadOption),
        ] {
            let error = again(host).map(drop).unwrap_err();
            assert_eq!(error.kind(), kind, "{place:?} in {host}: {error}");
        }
    }
}

#[test]
fn a_hidden_volumes_headers_are_guarded_where_they_lie_in_the_outer_volumes_data() {
    let made = |hidden| {
        let made = NewHeaders::prepare(HOST, &password(b"text"), &options("aes", hidden)).unwrap();
        let mut image = vec![7; usize::try_from(HOST).unwrap()];
        let at = usize::try_from(made.at).unwrap();
        image[at..at + HEADER].copy_from_slice(&made.header);
        image
    };
    let hidden = opens(&made(Some(64 << 10)), Place::Hidden, b"text").unwrap();
    let mut outer = opens(&made(None), Place::Normal, b"text").unwrap();
    let guarded = |outer: &Unlocked| {
        let opened = outer.open_around(&hidden, HOST).unwrap();
        opened.guards.iter().map(|guard| guard.range.clone()).collect::<Vec<_>>()
    };
    assert_eq!(guarded(&outer).len(), 1, "the headers lie outside of the data");
    // The data of an old volume begin behind the first header.
    outer.header.version = 3;
    let all = guarded(&outer);
    let header = |start: u64| start - 512..start - 512 + HEADER as u64;
    assert_eq!(all[1..], [header(65536), header(HOST - 65536)]);
}

#[test]
fn a_system_whose_area_has_the_header_in_it_is_refused() {
    let mut made = opens(
        &{
            let made = NewHeaders::prepare(HOST, &password(b"text"), &options("aes", None)).unwrap();
            let mut image = vec![7; usize::try_from(HOST).unwrap()];
            image[..HEADER].copy_from_slice(&made.header);
            image
        },
        Place::Normal,
        b"text",
    )
    .unwrap();
    made.place = Place::System;
    for (start, size, is_good) in [
        (0, 128 << 10, false),
        (62 * 512, 128 << 10, false),
        (0, 62 * 512, true),
        (63 * 512, 128 << 10, true),
    ] {
        (made.header.start, made.header.size) = (start, size);
        let opened = made.open(HOST, None).map_err(|e| e.kind());
        assert_eq!(opened.is_ok(), is_good, "{start}");
        assert!(is_good || opened.err() == Some(ErrorKind::BadHeader), "{start}");
    }
}
