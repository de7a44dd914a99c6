# Commands of dmsetup and what they print, with numbers of devices taken out. $N begins all names, $low is a block device of 4 MiB.
#
# kernel.txt beside this file is what it prints on Linux 6.1.176 (User Mode Linux, Debian's dmsetup 1.02.185) with N=cmp.
n=$N
say() {
    echo "\$ $*"
    code=0
    "$@" > out 2>&1 || code=$?
    sed -E 's/\([0-9]+(:|, )[0-9]+\)/(DEV)/g; s/(linear|[0-9]) [0-9]+:[0-9]+ /\1 DEV /; s/(Major, minor:).*/\1 DEV/' out
    [ $code = 0 ] || echo "=> $code"
}
say dmsetup create $n-a --notable
say dmsetup table $n-a
say dmsetup status $n-a
say dmsetup deps $n-a
say dmsetup resume $n-a
say dmsetup suspend $n-a
say dmsetup info -c --noheadings -o name,attr,open,segments,events,uuid $n-a
say dmsetup resume $n-a
say dmsetup load $n-a --table '0 8 zero'
say dmsetup info -c --noheadings -o name,attr,open,segments,events $n-a
say dmsetup table --inactive $n-a
say dmsetup clear $n-a
say dmsetup table --inactive $n-a
say dmsetup load $n-a --table '0 8 nosuch'
say dmsetup load $n-a --table '8 8 zero'
say dmsetup load $n-a --table '0 0 zero'
say dmsetup load $n-a --table '0 8 linear'
say dmsetup load $n-a --table "0 8 linear $low"
say dmsetup load $n-a --table "0 8 linear $low x"
say dmsetup load $n-a --table "0 8 linear /nowhere 0"
say dmsetup load $n-a --table "0 8 linear $low 0
8 8 zero
16 8 error"
say dmsetup resume $n-a
say dmsetup table $n-a
say dmsetup status $n-a
say dmsetup info -c --noheadings -o name,attr,open,segments,events $n-a
say dmsetup rename $n-a --setuuid first
say dmsetup rename $n-a --setuuid second
say dmsetup rename $n-a $n-b
say dmsetup rename $n-b a/b
say dmsetup info -c --noheadings -o name,uuid,events $n-b
say dmsetup create $n-b --table '0 8 zero'
say dmsetup create $n-c --uuid first --table '0 8 zero'
say dmsetup message $n-b 0 hello
say dmsetup message $n-b 9 hello
say dmsetup message $n-b 24 hello
say dmsetup message $n-b 0 @nosuch
say dmsetup create $n-crypt --table "0 16 crypt aes-xts-plain64 00112233445566778899aabbccddeeff102132435465768798a9bacbdcedfe0f 0 $low 8 2 allow_discards sector_size:512"
say dmsetup table --showkeys $n-crypt
say dmsetup table $n-crypt
say dmsetup status $n-crypt
say dmsetup message $n-crypt 0 key wipe
say dmsetup suspend $n-crypt
say dmsetup message $n-crypt 0 key wipe
say dmsetup resume $n-crypt
say dmsetup message $n-crypt 0 key set 00112233445566778899aabbccddeeff102132435465768798a9bacbdcedfe0f
say dmsetup resume $n-crypt
say dmsetup table --showkeys $n-crypt
say dmsetup message $n-crypt 0 nonsense
say dmsetup reload $n-crypt --table "0 8 crypt aes-xts-plain64 00112233445566778899aabbccddeeff102132435465768798a9bacbdcedfe0f 0 $low 8"
say dmsetup resume $n-crypt
say dmsetup info -c --noheadings -o name,attr,open,segments,events $n-crypt
say dmsetup load $n-crypt --table "0 8 crypt aes-xts-plain64 0011 0 $low 8"
say dmsetup load $n-crypt --table "0 8 crypt nosuch-xts-plain64 00112233445566778899aabbccddeeff102132435465768798a9bacbdcedfe0f 0 $low 8"
say dmsetup create $n-ro --readonly --table "0 8 linear $low 0"
say dmsetup info -c --noheadings -o name,attr,open,segments,events $n-ro
say dmsetup create $n-up --table "0 8 linear /dev/mapper/$n-b 0"
say dmsetup info -c --noheadings -o name,open $n-b
say dmsetup remove $n-b
say dmsetup ls
say dmsetup ls --target crypt
say dmsetup table --target linear
say dmsetup remove $n-up
say dmsetup remove --deferred $n-ro
say dmsetup remove $n-nosuch
say dmsetup info $n-nosuch
say dmsetup wipe_table $n-b
say dmsetup table $n-b
say dmsetup mknodes
say dmsetup mangle
say dmsetup setgeometry $n-b 1 1 1 0
say dmsetup remove_all
say dmsetup ls
