//! `underseal-lab bench ublk`, where there are ublk and dm-crypt. Not a test: `scripts/bench-ublk`.
//! And authenticated volumes beside the kernel's own:
//! `cargo test --release -p underseal --test main bench_integrity -- --ignored --nocapture`. And
//! tables beside the kernel's dm-crypt: `scripts/bench-dm-guest`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::guest::Guest;
use crate::support::Scratch;
use crate::support::volume::PASSPHRASE;

/// Five RAM disks of 64 MiB.
const DISKS: &str = "brd rd_nr=5 rd_size=65536";

#[test]
#[ignore = "measures: see scripts/bench-ublk"]
fn bench_ublk() {
    let scratch = Scratch::new();
    let mut guest = Guest::new(&scratch);
    guest.modules(&["ublk_drv", DISKS]);
    let options = std::env::var("BENCH_UBLK").unwrap_or_else(|_| "--rounds 3 --runtime 1".into());
    // The script builds it, beside the program that it measures.
    let lab = Path::new(env!("CARGO_BIN_EXE_underseal")).with_file_name("underseal-lab");
    let script = format!("{} --quiet bench ublk {options} > report", lab.display());
    guest.task_within("bench", Duration::from_secs(3600), &script);
    guest.boot();
    std::io::stdout().write_all(&fs::read(scratch.path("report")).unwrap()).unwrap();
}

/// Each volume on a separate RAM disk: dm-crypt over dm-integrity, and ours, with a journal and
/// without.
#[test]
#[ignore = "measures: cargo test --release -p underseal --test main bench_integrity -- --ignored --nocapture"]
fn bench_integrity() {
    let scratch = Scratch::new();
    scratch.file("pass", PASSPHRASE.as_bytes());
    scratch.file("serve.sh", include_bytes!("serve.sh"));
    let mut guest = Guest::new(&scratch);
    let crypto = ["algif_aead", "ghash_generic", "ghash_clmulni_intel", "gcm", "ctr", "dm_integrity"];
    guest.modules(&["ublk_drv", "brd rd_nr=4 rd_size=131072"]);
    guest.modules(&crypto);
    let script = format!("OURS={} PASS=pass\n. ./serve.sh\n{INTEGRITY}", env!("CARGO_BIN_EXE_underseal"));
    guest.task_within("bench", Duration::from_secs(3600), &script);
    guest.boot();
    std::io::stdout().write_all(&fs::read(scratch.path("report")).unwrap()).unwrap();
}

/// MB/s of large requests, in turns.
const INTEGRITY: &str = "
cipher='--cipher aes-gcm-random --integrity aead --sector-size 4096'
pbkdf='--pbkdf pbkdf2 --pbkdf-force-iterations 1000'
cryptsetup luksFormat -q --type luks2 --key-file pass $cipher --key-size 256 $pbkdf /dev/ram0
cryptsetup luksFormat -q --type luks2 --key-file pass $cipher --key-size 256 $pbkdf --integrity-no-journal /dev/ram1
cryptsetup open --key-file pass /dev/ram0 journal
cryptsetup open --key-file pass /dev/ram1 direct
\"$OURS\" format /dev/ram2 -q --force --passphrase-file pass $cipher $pbkdf
\"$OURS\" format /dev/ram3 -q --force --passphrase-file pass $cipher $pbkdf --integrity-no-journal
serve /dev/ram2 ours --direct
first=$server
serve /dev/ram3 ours-direct --direct --ublk-id 1
{ set +x; } 2> /dev/null
grep -m 1 'model name' /proc/cpuinfo > report
for round in 1 2 3; do
    for rw in write read; do
        for disk in /dev/mapper/journal /dev/ublkb0 /dev/mapper/direct /dev/ublkb1; do
            rate=$(fio --name=bench --filename=$disk --rw=$rw --bs=1m --iodepth=4 --ioengine=libaio --direct=1 --size=64M \\
                --time_based --runtime=5 --minimal | cut -d ';' -f $([ $rw = read ] && echo 7 || echo 48))
            echo \"$round $rw $disk $((rate / 1024)) MiB/s\" >> report
        done
    done
done
kill $first $server
wait
";

/// A volume on a RAM disk under the kernel's dm-crypt, and one under `underseal dm`, whose device
/// is a ublk disk where the kernel changes the sizes of these.
#[test]
#[ignore = "measures: see scripts/bench-dm-guest"]
fn bench_tables() {
    let scratch = Scratch::new();
    scratch.file("pass", PASSPHRASE.as_bytes());
    let mut guest = Guest::new(&scratch);
    guest.modules(&["ublk_drv", "brd rd_nr=2 rd_size=131072"]);
    let of = |variable: &str| std::env::var(variable).expect("scripts/bench-dm-guest sets it");
    let (ours, library) = (of("BENCH_PROGRAM"), of("UNDERSEAL_DM_LIBRARY"));
    let script = format!("OURS={ours}\nexport UNDERSEAL_DM_LIBRARY={library}\n{TABLES}");
    guest.task_within("bench", Duration::from_secs(3600), &script);
    guest.boot();
    std::io::stdout().write_all(&fs::read(scratch.path("report")).unwrap()).unwrap();
}

/// Requests a second of both in turns, and the ratio of each round.
const TABLES: &str = "
dm() { \"$OURS\" dm run --folder /run/dm \"$@\"; }
pbkdf='--pbkdf pbkdf2 --pbkdf-force-iterations 1000'
for ram in 0 1; do cryptsetup luksFormat -q --key-file pass $pbkdf --sector-size 4096 /dev/ram$ram; done
cryptsetup open --key-file pass /dev/ram0 kernels
dm cryptsetup open --key-file pass /dev/ram1 ours
{ set +x; } 2> /dev/null
{
    uname -r
    grep -m 1 'model name' /proc/cpuinfo
    readlink -f /sys/dev/block/$(stat -c %Hr:%Lr /dev/mapper/ours)
} > report
for round in 1 2 3 4 5; do
    for job in 'randread 4k 1' 'randread 4k 32' 'randwrite 4k 32' 'read 1m 4' 'write 1m 4'; do
        set -- $job
        case $1 in *read) field=8 ;; *) field=49 ;; esac
        rates=
        for name in kernels ours; do
            rates=\"$rates $(fio --name=bench --filename=/dev/mapper/$name --rw=$1 --bs=$2 --iodepth=$3 --ioengine=libaio \\
                --direct=1 --size=96M --time_based --runtime=2 --minimal | cut -d ';' -f $field)\"
        done
        set -- $1 $2 $3 $rates
        echo \"$round $1 $2 depth $3: dm-crypt $4, underseal $5 a second, ratio $(awk \"BEGIN { printf \\\"%.2f\\\", $5 / $4 }\")\" >> report
    done
done
dm cryptsetup close ours
cryptsetup close kernels
";
