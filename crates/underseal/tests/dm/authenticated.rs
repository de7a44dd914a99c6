//! Volumes whose sectors have tags: a crypt line over a device that keeps them.

use crate::dm::mapper::Mapper;
use crate::support::{output, tool};

#[test]
fn an_authenticated_volume_is_formatted_opened_and_detects_changes() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
truncate --size 32M disk.img
printf pass | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 \\
    --cipher aes-xts-random --integrity hmac-sha256 --sector-size 4096 disk.img -
printf pass | cryptsetup open disk.img $N-x -
cryptsetup status $N-x | grep -E 'integrity:|type:'
dmsetup status ${N}-x_dif | cut -d' ' -f3-4
printf tagged | dd of=/dev/mapper/$N-x oflag=direct bs=4096 seek=3 conv=sync,notrunc status=none
cryptsetup luksSuspend $N-x
printf pass | cryptsetup luksResume $N-x
dd if=/dev/mapper/$N-x iflag=direct bs=4096 skip=3 count=1 status=none | head -c 6; echo
code=0; dmsetup remove ${N}-x_dif 2> /dev/null || code=$?; echo $code
cryptsetup close $N-x
dmsetup ls",
    );
    let expected = "  type:    LUKS2\n  integrity: hmac(sha256)\nintegrity 0\ntagged\n1\nNo devices found\n";
    assert_eq!(out, expected, "{}", mapper.log());
    // `underseal read` decrypts the same volume without device mapper.
    let pass = mapper.scratch.file("pass", b"pass");
    let disk = mapper.scratch.path("disk.img");
    let mut read = tool(env!("CARGO_BIN_EXE_underseal"));
    read.arg("read").arg(&disk).arg("--passphrase-file").arg(pass);
    let plain = output(&mut read);
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    assert_eq!(&plain.stdout[3 * 4096..3 * 4096 + 6], b"tagged");
    // Ciphertext that is another.
    let mut bytes = std::fs::read(&disk).unwrap();
    let len = bytes.len();
    bytes[24 << 20..len].iter_mut().for_each(|byte| *byte ^= 0x55);
    std::fs::write(&disk, bytes).unwrap();
    mapper.script(
        "
printf pass | cryptsetup open disk.img $N-x -
fails dd if=/dev/mapper/$N-x iflag=direct bs=64k of=/dev/null status=none 2> /dev/null
cryptsetup close $N-x",
    );
}
