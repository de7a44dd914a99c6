//! Volumes with a tag for each block: LUKS2 with integrity, and dm-integrity alone. The kernel
//! reads and overwrites volumes that were made here, and the other way round; also journals that
//! have to be replayed, because the machine of either side stopped in the middle.
//!
//! In the guest images lie in its own memory: there dm-integrity reads its tags wrong through a
//! loop device over 9p (dm-bufio's buffers of several pages; kernels 6.1 and 6.12, also volumes
//! that cryptsetup made).

use std::fs;
use std::process::{Command, Stdio};

use fastrand::Rng;

use crate::guest::Guest;
use crate::kernel::patches::Patches;
use crate::kernel::tables;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, underseal};
use crate::support::{Scratch, Server, bytes, output, run, seed};

/// Cipher, key bits without the MAC's, `--integrity`, and more options that both take.
const LUKS2: [(&str, &str, &str, &str); 7] = [
    ("aes-gcm-random", "256", "aead", ""),
    ("aes-gcm-random", "128", "aead", "--integrity-no-journal"),
    ("aes-ccm-random", "280", "aead", ""),
    ("aegis128-random", "128", "aead", ""),
    ("chacha20-random", "256", "poly1305", ""),
    ("aes-xts-plain64", "512", "hmac-sha256", "--sector-size 512"),
    ("aes-xts-random", "256", "hmac-sha512", ""),
];

/// The hash's name in tables and for integritysetup, its key's bytes, and the mode.
const ALONE: [(&str, &str, usize, char); 13] = [
    ("crc32c", "crc32c", 0, 'J'),
    ("crc32", "crc32", 0, 'B'),
    ("xxhash64", "xxhash64", 0, 'J'),
    ("sha1", "sha1", 0, 'D'),
    ("sha256", "sha256", 0, 'B'),
    ("hmac(sha1)", "hmac-sha1", 20, 'D'),
    ("hmac(sha256)", "hmac-sha256", 32, 'J'),
    ("hmac(sha512)", "hmac-sha512", 64, 'J'),
    ("blake2b-256", "blake2b-256", 0, 'J'),
    ("sha512", "sha512", 0, 'B'),
    ("sha3-256", "sha3-256", 0, 'J'),
    ("poly1305", "poly1305", 0, 'D'),
    ("md5", "md5", 0, 'J'),
];

/// The modules that the kernel needs for them besides.
const MODULES: [&str; 17] = [
    "algif_aead",
    "dm_integrity",
    "gcm",
    "ccm",
    "ctr",
    "ghash_generic",
    "authenc",
    "aegis128",
    "chacha20poly1305",
    "chacha_generic",
    "poly1305_generic",
    "hmac",
    "sha512_generic",
    "sha3_generic",
    "crc32_generic",
    "xxhash_generic",
    "blake2b_generic",
];

/// The images' size.
pub(crate) const IMAGE: &str = "4M";

pub(crate) fn guest(scratch: &Scratch) -> Guest<'_> {
    let mut guest = tables::guest(scratch);
    guest.modules(&MODULES);
    guest
}

/// A guest's task with an image in the guest's memory, while it is open as `/dev/mapper/NAME`. The
/// image comes back twice: as it was before it was closed, and after.
pub(crate) fn with_image(name: &str, from: &str, open: &str, close: &str, act: &str) -> String {
    with_files(name, &["img"], from, open, close, act)
}

/// The same with an image in several files, `NAME.PART`; `$PART` is the device that each becomes.
/// They come back as `NAME.cut.PART` and `NAME.closed.PART`.
pub(crate) fn with_files(
    name: &str,
    parts: &[&str],
    from: &str,
    open: &str,
    close: &str,
    act: &str,
) -> String {
    let each = |script: &str| -> String { parts.iter().map(|part| script.replace("PART", part)).collect() };
    let attach = each(&format!("PART=$(losetup --find --show /run/{name}.PART)\n"));
    let cut = each(&format!("cp --sparse=always /run/{name}.PART {name}.cut.PART\n"));
    let closed = each(&format!(
        "losetup --detach $PART\n\
         cp --sparse=always /run/{name}.PART {name}.closed.PART\n\
         rm /run/{name}.PART\n"
    ));
    format!("{from}{attach}{open}{act}{cut}{close}\n{closed}sync\n")
}

fn made_here(name: &str) -> String {
    format!("cp {name}.img /run/\n")
}

/// Reads all of it as it should be, writes over it, reads again.
pub(crate) fn turns(scratch: &Scratch, name: &str, plain: &[u8], patches: &Patches) -> String {
    scratch.file(&format!("{name}.plain"), plain);
    let mut patched = plain.to_vec();
    patches.apply(&mut patched);
    scratch.file(&format!("{name}.patched"), &patched);
    format!(
        "cmp {name}.plain /dev/mapper/{name}\n\
         {write}\
         cmp {name}.patched /dev/mapper/{name}\n",
        write = patches.script(scratch, &format!("{name}.new"), &format!("/dev/mapper/{name}")),
    )
}

/// Writes over a served volume, and stops the server when that is flushed: it has put nothing in
/// order.
pub(crate) fn write_and_kill(server: Server, plain: &mut [u8], rng: &mut Rng) {
    let mut client = Client::connect(&server.socket()).unwrap();
    let new = bytes(rng.u64(..), plain.len());
    for block in 0..plain.len() / 4096 {
        if rng.u8(..4) == 0 {
            let range = block * 4096..(block + 1) * 4096;
            client.write(range.start as u64, &new[range.clone()]).unwrap();
            plain[range.clone()].copy_from_slice(&new[range]);
        }
    }
    client.flush().unwrap();
    server.kill();
}

#[test]
fn authenticated_luks2_volumes_go_both_ways_also_when_their_journal_is_full() {
    let mut rng = Rng::with_seed(seed("authenticated"));
    let scratch = Scratch::new();
    scratch.file("pass", PASSPHRASE.as_bytes());
    let mut guest = guest(&scratch);
    let mut cases = Vec::new();
    for (i, (cipher, key, integrity, more)) in LUKS2.into_iter().enumerate() {
        let name = format!("luks{i}");
        let more: Vec<&str> = more.split_whitespace().collect();
        let options = ["--cipher", cipher, "--key-size", key, "--integrity", integrity];
        let small = ["--metadata-size", "16K", "--keyslots-size", "512K", "--data-offset", "1M"];
        let volume = Volume::at(&scratch, &format!("{name}.img"))
            .format(IMAGE, &[&options[..], &small, &more].concat());
        let mut plain = bytes(rng.u64(..), volume.read_all().len());
        volume.write(0, &plain);
        write_and_kill(Server::start(&volume, &[]), &mut plain, &mut rng);
        let patches = Patches::random(&mut rng, plain.len());
        let open = format!("cryptsetup open --key-file pass $img {name}\n");
        let close = format!("cryptsetup close {name}");
        let act = turns(&scratch, &name, &plain, &patches);
        guest.task(&name, &with_image(&name, &made_here(&name), &open, &close, &act));
        patches.apply(&mut plain);
        cases.push((name, format!("{cipher} {integrity}"), plain));

        let name = format!("luks{i}theirs");
        let format =
            [&["cryptsetup luksFormat -q --type luks2 --key-file pass"][..], &options, &CHEAP_PBKDF2, &more];
        let format = format.concat().join(" ");
        let make = format!(
            "truncate -s {IMAGE} /run/{name}.img\n\
             {format} --luks2-metadata-size 16k --luks2-keyslots-size 512k /run/{name}.img\n"
        );
        let plain = bytes(rng.u64(..), 1 << 20);
        scratch.file(&format!("{name}.plain"), &plain);
        let open = format!("cryptsetup open --key-file pass $img {name}\n");
        let act = format!("dd if={name}.plain of=/dev/mapper/{name} bs=64k conv=fsync status=none\n");
        let close = format!("cryptsetup close {name}");
        guest.task(&name, &with_image(&name, &make, &open, &close, &act));
        cases.push((name, format!("{cipher} {integrity}"), plain));
    }
    guest.boot();
    for (name, what, plain) in cases {
        for image in [format!("{name}.closed.img"), format!("{name}.cut.img")] {
            let volume = Volume::at(&scratch, &image);
            // Opened for writing once, it is in order.
            volume.write(0, &plain[..4096]);
            assert_same(&volume.read(0, plain.len()), &plain, &format!("{image}: {what}"));
            run(volume.command("check").stdout(Stdio::null()));
        }
    }
}

#[test]
fn dm_integrity_alone_goes_both_ways_with_each_hash_and_mode() {
    let mut rng = Rng::with_seed(seed("integrity"));
    let scratch = Scratch::new();
    let mut guest = guest(&scratch);
    let mut cases = Vec::new();
    for (i, (hash, setup, key_size, mode)) in ALONE.into_iter().enumerate() {
        let key = bytes(rng.u64(..), key_size);
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let key_file = format!("hash{i}.key");
        scratch.file(&key_file, &key);
        let block = if i % 2 == 0 { 512 } else { 4096 };
        let mut options = vec!["--integrity".into(), setup.into()];
        if key_size > 0 {
            options.extend([
                "--integrity-key-file".into(),
                key_file,
                "--integrity-key-size".into(),
                key_size.to_string(),
            ]);
        }
        let in_mode = match mode {
            'B' => "--integrity-bitmap-mode",
            'D' => "--integrity-no-journal",
            _ => "",
        };
        let open = |name: &str| format!("integritysetup open {} {in_mode} $img {name}\n", options.join(" "));
        let line = |image: &str, sectors: u64| {
            let hash = if hex.is_empty() { hash.into() } else { format!("{hash}:{hex}") };
            let (image, number) = (scratch.path(image), 3);
            let image = image.display();
            let mode_options = format!("{number} internal_hash:{hash} block_size:{block} fix_padding");
            format!("0 {sectors} integrity {image} 0 - {mode} {mode_options}\n")
        };

        let name = format!("hash{i}");
        let image = format!("{name}.img");
        let mut format = underseal();
        format.args(["integrity", "format", &image, "--size", IMAGE, "--sector-size", &block.to_string()]);
        run(format.args(&options).current_dir(scratch.folder()));
        let sectors = sectors_of(&scratch, &image);
        scratch.file(&format!("{name}.table"), line(&image, sectors).as_bytes());
        let mut plain = bytes(rng.u64(..), usize::try_from(sectors * 512).unwrap());
        scratch.file(&format!("{name}.all"), &plain);
        let mut write = underseal();
        write.args(["table", "encrypt", "--table", &format!("{name}.table"), "-i", &format!("{name}.all")]);
        run(write.current_dir(scratch.folder()));
        if mode != 'B' || key_size == 0 {
            let mut serve = underseal();
            serve.args(["table", "open", "--table", &format!("{name}.table")]).current_dir(scratch.folder());
            write_and_kill(Server::start_command(serve, &[]), &mut plain, &mut rng);
        }
        let patches = Patches::random(&mut rng, plain.len());
        let act = turns(&scratch, &name, &plain, &patches);
        let close = format!("integritysetup close {name}");
        guest.task(&name, &with_image(&name, &made_here(&name), &open(&name), &close, &act));
        patches.apply(&mut plain);
        cases.push((name, (setup, mode), plain, line("IMAGE", sectors)));

        let name = format!("hash{i}theirs");
        // integritysetup does not know the tag sizes of these hashes.
        let tag = match setup {
            "blake2b-256" | "sha3-256" => "--tag-size 32",
            "sha512" => "--tag-size 64",
            "poly1305" | "md5" => "--tag-size 16",
            _ => "",
        };
        let make = format!(
            "truncate -s {IMAGE} /run/{name}.img\n\
             integritysetup format -q --sector-size {block} {} {tag} /run/{name}.img\n",
            options.join(" ")
        );
        let plain = bytes(rng.u64(..), 1 << 20);
        scratch.file(&format!("{name}.plain"), &plain);
        let act = format!("dd if={name}.plain of=/dev/mapper/{name} bs=64k conv=fsync status=none\n");
        let close = format!("integritysetup close {name}");
        guest.task(&name, &with_image(&name, &make, &open(&name), &close, &act));
        cases.push((name, (setup, mode), plain, line("IMAGE", 1 << 11)));
    }
    guest.boot();
    for (name, (hash, mode), plain, line) in cases {
        for image in [format!("{name}.closed.img"), format!("{name}.cut.img")] {
            let sectors = sectors_of(&scratch, &image);
            let rest = line.split_once(" integrity ").unwrap().1.replace("IMAGE", &image);
            scratch.file("table", format!("0 {sectors} integrity {rest}").as_bytes());
            scratch.file("first", &plain[..4096]);
            let run_here = |args: &[&str]| run(underseal().args(args).current_dir(scratch.folder()));
            // Opened for writing once, it is in order; but the tags of regions that were being
            // written are made beside.
            run_here(&["table", "encrypt", "--table", "table", "-i", "first"]);
            if mode == 'B' {
                run_here(&["integrity", "recalculate", &image, "--integrity", hash]);
            }
            run_here(&["table", "decrypt", "--table", "table", "-o", "read"]);
            let read = fs::read(scratch.path("read")).unwrap();
            assert_same(&read[..plain.len()], &plain, &format!("{image}: {hash} {mode}"));
            fs::remove_file(scratch.path("read")).unwrap();
        }
    }
}

/// The size of a volume in sectors, from its superblock.
fn sectors_of(scratch: &Scratch, image: &str) -> u64 {
    let mut info = underseal();
    info.args(["integrity", "info", image, "--json"]).current_dir(scratch.folder());
    sectors(&mut info)
}

/// The size in sectors, as the command `info` prints it.
pub(crate) fn sectors(info: &mut Command) -> u64 {
    let info: serde_json::Value = serde_json::from_slice(&output(info).stdout).unwrap();
    info["size"].as_u64().unwrap() / 512
}
