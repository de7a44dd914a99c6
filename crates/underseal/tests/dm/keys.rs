//! Keys of the kernel's keyring in tables.

use crate::control::keys::pages_with;
use crate::dm::mapper::{FAILS, Mapper};
use crate::support::mounts::skip;
use crate::support::tools::children;
use crate::support::{bytes, output, seed, tool};

/// A script that has a session keyring of its own, `$low` of 4 MiB, and a key in the keyring.
fn script(mapper: &Mapper, script: &str) -> Option<String> {
    if !output(tool("sh").args(["-c", "keyctl show @s"])).status.success() {
        skip("keys of the keyring", "there is no keyctl, or the kernel has no keyring");
        return None;
    }
    let script = format!(
        "
{FAILS}
truncate --size 4M low.img
low=$(losetup --find --show low.img)
trap 'losetup --detach $low' EXIT
HEX=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
printf '\\000\\001\\002\\003\\004\\005\\006\\007\\010\\011\\012\\013\\014\\015\\016\\017\\020\\021\\022\\023\\024\\025\\026\\027\\030\\031\\032\\033\\034\\035\\036\\037' > key
keyctl padd logon us:$N @s < key > /dev/null
keyctl padd user us:$N @s < key > /dev/null
{script}"
    );
    mapper.scratch.file("keys.sh", script.as_bytes());
    Some(mapper.script("keyctl session - sh -euc '. ./keys.sh' 2> errors || { cat errors >&2; exit 1; }"))
}

#[test]
fn logon_and_user_keys_decrypt_as_their_digits_do() {
    let Some(mapper) = Mapper::new() else { return };
    let out = script(
        &mapper,
        "
dmsetup create $N-x --table \"0 8192 crypt aes-xts-plain64 $HEX 0 $low 0\"
printf secret | dd of=/dev/mapper/$N-x oflag=direct bs=4096 conv=sync,notrunc status=none
dmsetup remove $N-x
for kind in logon user; do
    dmsetup create $N-x --table \"0 8192 crypt aes-xts-plain64 :32:$kind:us:$N 0 $low 0\"
    dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | head -c 6; echo
    dmsetup table --showkeys $N-x | sed 's/ [0-9]*:[0-9]* / DEV /'
    dmsetup suspend $N-x
    dmsetup message $N-x 0 key wipe
    dmsetup message $N-x 0 key set $HEX
    dmsetup message $N-x 0 key set :32:$kind:us:$N
    dmsetup resume $N-x
    dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | head -c 6; echo
    dmsetup remove $N-x
done",
    );
    let Some(out) = out else { return };
    let name = mapper.name("");
    let of = |kind: &str| {
        let line = format!("0 8192 crypt aes-xts-plain64 :32:{kind}:us:{} 0 DEV 0", &name[..name.len() - 1]);
        format!("secret\n{line}\nsecret\n")
    };
    assert_eq!(out, of("logon") + &of("user"), "{}", mapper.log());
}

#[test]
fn keys_that_the_caller_does_not_have_are_refused() {
    let Some(mapper) = Mapper::new() else { return };
    let out = script(
        &mapper,
        "
try() { fails dmsetup create $N-x --table \"0 8192 crypt aes-xts-plain64 $1 0 $low 0\" 2> /dev/null; }
try :32:logon:us:nosuch
try :31:logon:us:$N
try :64:logon:us:$N
# Another session does not have the key, and the back end has it still.
fails keyctl session - dmsetup create $N-x --table \"0 8192 crypt aes-xts-plain64 :32:logon:us:$N 0 $low 0\" > /dev/null 2>&1
keyctl revoke $(keyctl search @s logon us:$N)
try :32:logon:us:$N
# A key that is no key takes the volume's away.
dmsetup create $N-x --table \"0 8192 crypt aes-xts-plain64 $HEX 0 $low 0\"
dmsetup suspend $N-x
fails dmsetup message $N-x 0 key set :32:logon:us:nosuch 2> /dev/null
dmsetup resume $N-x
dmsetup suspend $N-x
fails dmsetup message $N-x 0 key set $(echo $HEX | tr 0 x) 2> /dev/null
fails dmsetup resume $N-x 2> /dev/null
dmsetup message $N-x 0 key set :32:user:us:$N
dmsetup resume $N-x
dmsetup remove $N-x
dmsetup ls",
    );
    let Some(out) = out else { return };
    assert_eq!(out, "No devices found\n", "{}", mapper.log());
}

#[test]
fn luks2_is_opened_with_its_key_in_the_keyring() {
    let Some(mapper) = Mapper::new() else { return };
    let out = script(
        &mapper,
        "
truncate --size 32M disk.img
printf pass | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 disk.img -
printf pass | cryptsetup open disk.img $N-x -
cryptsetup status $N-x | grep 'key location'
dmsetup table $N-x | cut -d' ' -f5 | cut -d: -f2-4
printf kept | dd of=/dev/mapper/$N-x oflag=direct bs=4096 conv=sync,notrunc status=none
cryptsetup luksSuspend $N-x
printf pass | cryptsetup luksResume $N-x
dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | head -c 4; echo
printf pass | cryptsetup refresh --allow-discards $N-x
dmsetup table $N-x | grep -c allow_discards
uuid=$(cryptsetup luksUUID disk.img | tr -d -)
test \"$(readlink -f /dev/disk/by-id/dm-uuid-CRYPT-LUKS2-$uuid-$N-x)\" = \"$(readlink -f /dev/disk/by-id/dm-name-$N-x)\"
cryptsetup close $N-x
test ! -e /dev/disk/by-id/dm-name-$N-x",
    );
    let Some(out) = out else { return };
    assert_eq!(out, "  key location: keyring\n64:logon:cryptsetup\nkept\n1\n", "{}", mapper.log());
}

#[test]
fn a_wiped_key_is_in_no_process_of_the_back_end() {
    let Some(mapper) = Mapper::new() else { return };
    let key = bytes(seed("a_wiped_key_is_in_no_process_of_the_back_end"), 64);
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    mapper.scratch.file("key", &key);
    let open = "
truncate --size 32M disk.img
printf pass | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --volume-key-file key disk.img -
low=$(losetup --find --show disk.img)
trap 'losetup --detach $low' EXIT
printf pass | cryptsetup open --disable-keyring $low $N-x -
";
    mapper.script(open);
    let back_end = mapper.back_end().unwrap().as_raw_nonzero().get();
    let all = children(u32::try_from(back_end).unwrap()).into_iter().chain([back_end]);
    let all: Vec<_> = all.map(|pid| u64::try_from(pid).unwrap()).collect();
    let with = |part: &[u8]| all.iter().filter(|pid| !pages_with(**pid, part).is_empty()).count();
    assert!(with(&key[..32]) > 0, "this test cannot see the key");
    mapper.script("cryptsetup luksSuspend $N-x");
    let parts = [&key[..32], &key[32..], &hex.as_bytes()[..64], &hex.as_bytes()[64..]];
    assert_eq!(parts.map(with), [0; 4], "{}", mapper.log());
    mapper.script("printf pass | cryptsetup luksResume $N-x\ncryptsetup close $N-x");
}
