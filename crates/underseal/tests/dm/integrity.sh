# integrity.sh make|check FOLDER: formats and opens devices by integritysetup, and prints their tables and states; or opens those
# that another kernel has made in that folder, and compares what is on them. $N begins all names.
set -u
what=$1
cd "$2" || exit 1
seq 60000 | head -c 327680 > pattern
printf 'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk' > key

# NAME FORMAT-OPTIONS -- OPEN-OPTIONS
device() {
    name=$1
    shift
    format=()
    while [ "$1" != -- ]; do format+=("$1"); shift; done
    shift
    echo "== $name"
    if [ $what = make ]; then
        truncate -s 8M $name.img
        # With its metadata apart.
        case $name in meta*) truncate -s 600K $name.meta ;; esac
    fi
    loop=$(losetup --find --show $name.img)
    on=($loop)
    if [ -e $name.meta ]; then
        meta=$(losetup --find --show $name.meta)
        on=(--data-device $loop $meta)
    fi
    [ $what = check ] || integritysetup format -q "${format[@]}" "${on[@]}" > out 2>&1 || echo "not formatted: $(tail -n 1 out | sed 's/ for .*//')"
    if integritysetup open "${on[@]}" $N-$name "$@" > out 2>&1; then
        look
        integritysetup close $N-$name || echo "not closed"
    else
        echo "not opened"
    fi
    losetup --detach $loop ${meta:+$meta}
    meta=
    sync
}

look() {
    for _ in $(seq 600); do # until all is recalculated
        state=$(dmsetup status $N-$name)
        case $state in *" -") break ;; esac
        set -- $state
        [ "$5" != "$6" ] || break
        sleep 0.1
    done
    if [ $what = make ]; then
        dmsetup table --showkeys $N-$name | sed -E 's/(integrity |meta_device:)[0-9]+:[0-9]+/\1DEV/g'
        dmsetup status $N-$name
        integritysetup status $N-$name | grep -vE 'device:|loop:|active'
        dd if=pattern of=/dev/mapper/$N-$name bs=64k oflag=direct conv=notrunc status=none 2> /dev/null || echo "not written"
    elif ! dd if=/dev/mapper/$N-$name bs=64k count=5 iflag=direct status=none | cmp - pattern; then
        echo "other bytes"
    fi
    # All tags are right.
    dd if=/dev/mapper/$N-$name of=/dev/null bs=64k iflag=direct status=none || echo "not read"
}

crc="--integrity crc32c"
keyed="--integrity hmac-sha256 --integrity-key-file key --integrity-key-size 32"
mac="--journal-integrity hmac-sha256 --journal-integrity-key-file key --journal-integrity-key-size 32"
crypt="--journal-crypt-key-file key --journal-crypt-key-size 32"
device plain $crc -- $crc
device journal $crc --journal-size 1M --interleave-sectors 1024 -- $crc --journal-watermark 30 --journal-commit-time 1234
device watermark $crc --journal-size 65536 -- $crc --journal-watermark 33
device buffers --integrity sha256 --buffer-sectors 16 --sector-size 4096 -- --integrity sha256 --buffer-sectors 32
device bitmap $crc -- $crc -B --bitmap-sectors-per-bit 8192 --bitmap-flush-time 5000
device bitmap-default $crc -B -- $crc -B
device direct $crc -- $crc -D
device padding $crc --integrity-legacy-padding -- $crc
device recalculated $crc --no-wipe -- $crc --integrity-recalculate
device keyed $keyed --tag-size 16 -- $keyed
device keyed-before-5.11 $keyed --integrity-legacy-hmac -- $keyed
device journal-mac $crc $mac -- $crc $mac
device journal-cbc $crc --journal-crypt cbc-aes $crypt -- $crc --journal-crypt cbc-aes $crypt
device journal-ctr $crc $mac --journal-crypt ctr-aes $crypt -- $crc $mac --journal-crypt ctr-aes $crypt
device discards $crc -- $crc --allow-discards
device metadata --integrity sha256 --buffer-sectors 4096 -- --integrity sha256 --buffer-sectors 4096
# integritysetup 2.6 sends that number as the watermark, which is a percentage.
device refused $crc -B --bitmap-sectors-per-bit 150 -- $crc

[ $what = make ] || exit 0
# Words that are no option, or whose numbers are none.
truncate -s 8M words.img
loop=$(losetup --find --show words.img)
integritysetup format -q $crc $loop
for word in journal_watermark:101 journal_watermark:100 journal_watermark:0 journal_watermark:x commit_time:-1 commit_time:0 \
    journal_sectors:x journal_sectors:0 journal_sectors interleave_sectors:x interleave_sectors:3 buffer_sectors:0 buffer_sectors:100000 \
    block_size:513 block_size:4096 block_size:8192 sectors_per_bit:x fix_padding fix_padding:1 nosuch meta_device:/nowhere \
    journal_mac: internal_hash:nosuch internal_hash journal_crypt:nosuch:00; do
    if dmsetup create $N-word --table "0 8 integrity $loop 0 4 J 2 internal_hash:crc32c $word" 2> /dev/null; then
        echo "$word: $(dmsetup table $N-word | cut -d' ' -f5-)"
        dmsetup remove $N-word
    else
        echo "$word: refused"
    fi
done
losetup --detach $loop
