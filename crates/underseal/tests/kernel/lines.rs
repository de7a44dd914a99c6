//! dm-crypt's own table lines, a random sample each run: the kernel writes through dmsetup and
//! `underseal table` reads, and the other way round.

use std::fs;
use std::path::Path;

use fastrand::Rng;

use crate::guest::Guest;
use crate::support::scratch::assert_same;
use crate::support::volume::{text, underseal};
use crate::support::{Scratch, bytes, run, seed};
use crate::ublk::boots::Boot;

const SAMPLE: usize = 10;

/// Ciphers with the keys' lengths in bytes: one of each chain mode and IV generator that the kernel
/// has, and more blocks.
const CIPHERS: [(&str, &[usize]); 26] = [
    ("aes-xts-plain64", &[32, 64]),
    ("capi:xts(aes)-plain64", &[32, 64]),
    ("aes-xts-plain64be", &[64]),
    ("aes-xts-essiv:sha256", &[64]),
    ("serpent-xts-plain64", &[32, 64]),
    ("twofish-xts-plain64", &[32, 64]),
    ("camellia-xts-plain64", &[64]),
    ("cast6-xts-plain64", &[64]),
    ("aes-cbc-essiv:sha256", &[16, 24, 32]),
    ("capi:cbc(aes)-essiv:sha256", &[32]),
    ("aes-cbc-plain", &[16, 32]),
    ("aes-cbc-null", &[32]),
    ("aes-cbc-benbi", &[32]),
    ("aes-cbc-eboiv", &[32]),
    ("aes-cbc-elephant", &[32, 64]),
    ("aes:64-cbc-lmk", &[1024, 1040]),
    ("aes-cbc-tcw", &[48]),
    ("aes:2-cbc-plain64", &[64]),
    ("aes-ctr-plain64", &[32]),
    ("aes-lrw-benbi", &[32, 48]),
    ("aes-pcbc-plain64", &[32]),
    ("aes-ecb", &[32]),
    ("blowfish-cbc-plain64", &[16, 32]),
    ("des3_ede-cbc-plain64", &[24]),
    ("xchacha12,aes-adiantum-plain64", &[32]),
    ("capi:chacha20-plain64", &[32]),
];

/// IV generators that the kernel has for sectors of 512 bytes only.
const SMALL: [&str; 2] = ["lmk", "tcw"];

/// The modules of all these ciphers.
const MODULES: [&str; 16] = [
    "adiantum",
    "blowfish_generic",
    "camellia_generic",
    "cast6_generic",
    "cbc",
    "chacha_generic",
    "crc32_generic",
    "ctr",
    "des_generic",
    "ecb",
    "lrw",
    "nhpoly1305",
    "pcbc",
    "serpent_generic",
    "twofish_generic",
    "xts",
];

struct Case {
    name: String,
    /// The table line, with `DEVICE` in place of the device.
    line: String,
    /// The offset of the data on the device, in bytes.
    start: usize,
    plain: Vec<u8>,
}

impl Case {
    fn random(rng: &mut Rng, number: usize) -> Self {
        let (cipher, keys) = rng.choice(CIPHERS).unwrap();
        let key_len = *rng.choice(keys).unwrap();
        let key: String = (0..key_len).map(|_| format!("{:02x}", rng.u8(..))).collect();
        let is_small = SMALL.iter().any(|generator| cipher.contains(generator));
        let sector = if is_small { 512 } else { rng.choice([512, 1024, 2048, 4096]).unwrap() };
        let units = sector >> 9;
        let start = 8 * rng.usize(..40);
        let near = rng.choice([0, 1 << 20, 1 << 32, 1 << 40]).unwrap();
        let iv_offset = (near + rng.u64(..1000)) / units * units;
        let count = 8 * (1 + rng.usize(..60));
        let mut options = Vec::new();
        if sector != 512 {
            options.push(format!("sector_size:{sector}"));
            if rng.bool() {
                options.push("iv_large_sectors".into());
            }
        }
        for option in ["same_cpu_crypt", "submit_from_crypt_cpus", "no_read_workqueue", "no_write_workqueue"]
        {
            if rng.u8(..4) == 0 {
                options.push(option.into());
            }
        }
        let mut line = format!("0 {count} crypt {cipher} {key} {iv_offset} DEVICE {start}");
        if !options.is_empty() {
            line += &format!(" {} {}", options.len(), options.join(" "));
        }
        Self { name: format!("line{number}"), line, start: start << 9, plain: bytes(rng.u64(..), count << 9) }
    }

    /// `underseal table`, on the image `image`.
    fn ours(&self, scratch: &Scratch, what: &str, image: &str, with: &str, file: &Path) {
        let line = self.line.replace("DEVICE", text(&scratch.path(image)));
        let table = scratch.file(&format!("{}.table", self.name), line.as_bytes());
        let mut command = underseal();
        run(command.args(["table", what, "-q", "--table", text(&table), with, text(file)]));
    }

    /// The guest's commands that map `image` and run `script` with the mapped device.
    fn theirs(&self, image: &str, script: &str) -> String {
        let (name, line) = (&self.name, &self.line);
        format!(
            "loop=$(losetup --find --show {image})\n\
             echo \"{line}\" | sed s:DEVICE:$loop: | dmsetup create {name}\n\
             dmsetup mknodes {name}\n\
             {script}\n\
             dmsetup remove {name}\n\
             losetup --detach $loop\n\
             sync\n"
        )
    }
}

#[test]
fn the_kernel_and_the_table_command_read_what_the_other_wrote() {
    let mut rng = Rng::with_seed(seed("lines"));
    let scratch = Scratch::new();
    let mut guest = Guest::without_hardware(&scratch);
    guest.modules(&MODULES);
    let cases: Vec<Case> = (0..SAMPLE).map(|i| Case::random(&mut rng, i)).collect();
    for case in &cases {
        let Case { name, line, start, plain } = case;
        eprintln!("{name}: {line}");
        let file = scratch.file(&format!("{name}.plain"), plain);
        let size = (start + plain.len()) as u64;
        let (ours, theirs) = (format!("{name}.ours"), format!("{name}.theirs"));
        scratch.sparse(&ours, size);
        scratch.sparse(&theirs, size);
        case.ours(&scratch, "encrypt", &ours, "-i", &file);
        let reads = case.theirs(&ours, &format!("cmp {name}.plain /dev/mapper/{name}"));
        let write = format!("dd if={name}.plain of=/dev/mapper/{name} bs=64k conv=fsync status=none");
        let writes = case.theirs(&theirs, &write);
        guest.task(name, &(reads + &writes));
    }
    guest.boot();
    for case in &cases {
        let Case { name, line, plain, .. } = case;
        let (ours, theirs) = (format!("{name}.ours"), format!("{name}.theirs"));
        assert_same(
            &fs::read(scratch.path(&theirs)).unwrap(),
            &fs::read(scratch.path(&ours)).unwrap(),
            &format!("{name}: {line}: on the device"),
        );
        let back = scratch.path(&format!("{name}.back"));
        case.ours(&scratch, "decrypt", &theirs, "-o", &back);
        assert_same(&fs::read(back).unwrap(), plain, &format!("{name}: {line}"));
    }
}

/// As many options as a line may have, and a layer whose metadata are on a device of their own.
/// An older kernel, as User Mode Linux is, takes fewer options.
pub(crate) fn the_kernel_takes_the_lines_that_are_taken_here(boot: &mut Boot) {
    let scratch = boot.scratch;
    boot.modules(&["dm_integrity", "crc32c_generic"]);
    let words = "allow_discards same_cpu_crypt submit_from_crypt_cpus no_read_workqueue no_write_workqueue sector_size:4096 \
                 iv_large_sectors";
    let crypt = |count: usize| {
        let more = " allow_discards".repeat(count - 7);
        format!(
            "0 64 crypt aes-xts-plain64 {} 0 DEVICE 0 {count} {words}{more}",
            "07".repeat(16) + &"08".repeat(16)
        )
    };
    let (most, too_many) = (crypt(9), crypt(10));
    for (line, is_taken) in [(&most, true), (&too_many, false)] {
        let file = scratch.file("options.table", line.as_bytes());
        let check = underseal().args(["table", "check", "-q", "--table", text(&file)]).output().unwrap();
        assert_eq!(check.status.success(), is_taken, "{check:?}");
    }
    boot.task(
        "options",
        &format!(
            "truncate -s 1M /run/image
             loop=$(losetup --find --show /run/image)
             echo \"{most}\" | sed s:DEVICE:$loop: | dmsetup create most
             dmsetup table most | grep ' 7 allow_discards '
             dmsetup remove most
             if echo \"{too_many}\" | sed s:DEVICE:$loop: | dmsetup create many; then exit 1; fi
             dmesg | grep 'Invalid number of feature args'
             losetup --detach $loop
             rm /run/image"
        ),
    );

    let folder = scratch.folder();
    scratch.sparse("data", 2 << 20);
    let format = ["integrity", "format", "meta", "--data-device", "data", "--size", "1M", "-q"];
    run(underseal().current_dir(folder).args(format));
    let layer = "0 4096 integrity DATA 0 - J 2 internal_hash:crc32c meta_device:META";
    let here = layer.replace("DATA", "data").replace("META", "meta");
    let table = scratch.file("apart.table", here.as_bytes());
    let ours = move |what: &str, with: &str, file: &str| {
        let table = ["table", what, "-q", "--table", text(&table), with, file];
        run(underseal().current_dir(folder).args(table));
    };
    let (first, second) = (bytes(seed("apart"), 2 << 20), bytes(!seed("apart"), 2 << 20));
    scratch.file("first", &first);
    scratch.file("second", &second);
    ours("encrypt", "-i", "first");
    boot.task(
        "apart",
        &format!(
            "cp data meta /run/
             cmp data first
             data=$(losetup --find --show /run/data)
             meta=$(losetup --find --show /run/meta)
             echo \"{layer}\" | sed \"s:DATA:$data:; s:META:$meta:\" | dmsetup create apart
             dmsetup mknodes apart
             cmp first /dev/mapper/apart
             dd if=second of=/dev/mapper/apart bs=64k conv=fsync status=none
             dmsetup remove apart
             losetup --detach $data $meta
             cp /run/data /run/meta .
             sync"
        ),
    );
    boot.check(move || {
        ours("decrypt", "-o", "apart.back");
        assert_same(&fs::read(scratch.path("apart.back")).unwrap(), &second, "what the kernel wrote");
    });
}
