//! Volumes made here, opened and written by the kernel, and read here again.

use std::fs;

use fastrand::Rng;

use crate::kernel::patches::Patches;
use crate::kernel::tables::{Kind, Table, guest, tables};
use crate::support::scratch::assert_same;
use crate::support::volume::{PASSPHRASE, Volume, text, underseal};
use crate::support::{Scratch, bytes, run, seed};

/// The images' sizes: LUKS2's header takes 16 MiB. Volumes are filled to their ends.
const LUKS2_IMAGE: u64 = 18 << 20;
const OTHER_IMAGE: u64 = 4 << 20;

struct Case {
    name: String,
    table: Table,
    volume: Volume,
    plain: Vec<u8>,
    patches: Patches,
}

#[test]
fn the_kernel_reads_what_we_wrote_and_we_read_what_it_wrote_over_it() {
    let mut rng = Rng::with_seed(seed("ours"));
    let scratch = Scratch::new();
    scratch.file("pass", PASSPHRASE.as_bytes());
    let mut guest = guest(&scratch);
    let cases: Vec<_> = tables(&mut rng, 4)
        .into_iter()
        .enumerate()
        .map(|(i, table)| {
            let case = make(&scratch, &mut rng, i, table);
            guest.task(&case.name, &script(&scratch, &case));
            case
        })
        .collect();
    guest.boot();
    for Case { name, table, volume, mut plain, patches } in cases {
        patches.apply(&mut plain);
        assert_same(&volume.read_all(), &plain, &format!("{name}: {table:?}"));
    }
}

/// Formats a volume and fills it with random bytes.
fn make(scratch: &Scratch, rng: &mut Rng, number: usize, table: Table) -> Case {
    let name = format!("ours{number}");
    let mut volume = Volume::at(scratch, &format!("{name}.img")).with(table.open_options());
    let header = scratch.path(&format!("{name}.hdr"));
    let header_option = [String::from("--header"), text(&header).into()];
    if table.is_detached() {
        volume = volume.with(header_option.clone());
    }
    let size = if table.kind == Kind::Luks2 { LUKS2_IMAGE } else { OTHER_IMAGE };
    let mut format = underseal();
    format.args(["format", "-q", text(&volume.image)]).args(table.format_options());
    if table.is_detached() {
        format.args(&header_option);
    }
    format.args(["--size", &size.to_string()]);
    run(format.arg("--passphrase-file").arg(&volume.passphrase));

    let plain = bytes(rng.u64(..), volume.read_all().len());
    volume.write(0, &plain);
    let patches = Patches::random(rng, plain.len());
    Case { name, table, volume, plain, patches }
}

fn script(scratch: &Scratch, case: &Case) -> String {
    let Case { name, table, plain, patches, .. } = case;
    scratch.file(&format!("{name}.plain"), plain);
    let mut patched = plain.clone();
    patches.apply(&mut patched);
    scratch.file(&format!("{name}.patched"), &patched);
    format!(
        "loop=$(losetup --find --show {name}.img)\n\
         {open}\
         cmp {name}.plain /dev/mapper/{name}\n\
         {write}\
         cmp {name}.patched /dev/mapper/{name}\n\
         cryptsetup close {name}\n\
         losetup --detach $loop\n\
         sync\n",
        open = table.cryptsetup_open("$loop", &format!("{name}.hdr"), name),
        write = patches.script(scratch, &format!("{name}.new"), &format!("/dev/mapper/{name}")),
    )
}

#[test]
fn ciphertext_is_all_that_is_stored() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "20M");
    let marker = b"this must not be found in the image".repeat(2000);
    volume.write(4096, &marker);
    let image = fs::read(&volume.image).unwrap();
    assert!(!image.windows(35).any(|window| window == &marker[..35]));
    assert_same(&volume.read(4096, marker.len()), &marker, "read back");
}
