# What the tasks share. OURS is the command, PASS the passphrase's file.

# A server locks its whole program in memory, which takes three times as long from the host's folder as from the guest's memory.
[ -e /run/bin/underseal ] || { mkdir -p /run/bin && cp "$OURS" /run/bin/underseal; }
OURS=/run/bin/underseal

# serve IMAGE NAME [OPTIONS]: a block device /dev/underseal/NAME; its server's process is then $server.
serve() {
    image=$1 name=$2
    shift 2
    rm -f "$name.err" "/run/$name.ready"
    mkfifo "/run/$name.ready"
    "$OURS" open "$image" --ublk --name "$name" --passphrase-file "$PASS" -vv "$@" > "/run/$name.ready" 2>> "$name.err" &
    server=$!
    # The shell sleeps until the server prints a line or ends. A loop of grep and sleep costs an
    # emulated processor half as much again as the server's start.
    exec 8< "/run/$name.ready"
    read -r ready <&8 || { cat "$name.err"; return 1; }
    case $ready in *'is open'*) ;; *) cat "$name.err"; return 1 ;; esac
}

# ends STATUS: the server ends so, and leaves no device and no link behind.
ends() {
    status=0
    wait $server || status=$?
    [ $status = "$1" ] || { cat "$name.err"; return 1; }
    [ ! -e /dev/underseal/"$name" ]
    [ ! -e /dev/ublkc0 ]
}

stop() {
    kill $server
    ends 0
}

# no_errors: nobody has got any of the kernel's block devices'.
no_errors() {
    if dmesg | grep -i 'I/O error'; then return 1; fi
}

# pid: the process that serves the volume; fails where none does.
pid() {
    "$OURS" status "$name" --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*$'
}

# upgrade: another process takes it over, and is $server then. An emulated machine may be late, and then the old server goes on.
upgrade() {
    for attempt in 1 2 3; do
        if "$OURS" upgrade "$name" -vv 2> "$name.upgrade"; then break; fi
        cat "$name.upgrade"
        if [ $attempt = 3 ] || ! grep -q "off in time" "$name.upgrade"; then return 1; fi
        [ "$(pid)" = $server ]
    done
    cat "$name.upgrade" >> "$name.err"
    now=$(pid)
    [ "$now" != $server ]
    server=$now
}

# gone: the server, whoever has started it, ends and leaves no device and no link behind.
gone() {
    { set +x; } 2> /dev/null
    while kill -0 $server 2> /dev/null && ! grep -q '^State:.Z' /proc/$server/status; do sleep 0.1; done
    set -x
    [ ! -e /dev/underseal/"$name" ]
    if ls /dev/ublkc*; then return 1; fi
}

close() {
    "$OURS" close "$name"
    gone
}

# refused TEXT COMMAND...: the command fails and says so, and what to do.
refused() {
    text=$1
    shift
    ! "$@" > refused.out 2>&1 || { cat refused.out; return 1; }
    grep -F "$text" refused.out || { cat refused.out; return 1; }
    grep '^try: ' refused.out
}

# verify DEVICE [OPTIONS]: random writes of mixed sizes, read back.
verify() {
    device=$1
    shift
    fio --name=verify --filename="$device" --rw=randwrite --bsrange=4k-64k --iodepth=16 --ioengine=libaio --direct=1 \
        --size=4M --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --minimal --output=fio.out "$@" || { cat fio.out; return 1; }
}

# load DEVICE [OPTIONS]: bursts of 64 requests in flight together, each read back and verified, until
# `loaded`; $load is the process, which has written when `load` returns. Between two bursts the device is idle, since what is tried beside
# them has the same emulated processor.
load() {
    device=$1
    shift
    fio --name=load --filename="$device" --rw=randwrite --bsrange=4k-32k --iodepth=64 --ioengine=libaio --direct=1 \
        --size=4M --loops=1000000 --verify=crc32c --verify_backlog=64 --verify_fatal=1 --verify_state_save=0 \
        --thinktime=500ms --thinktime_blocks=64 --minimal --output=load.out "$@" &
    load=$!
    { set +x; } 2> /dev/null
    until read -r _ _ _ _ writes _ < "/sys/block/${device#/dev/}/stat" && [ "$writes" -gt 0 ]; do
        kill -0 $load || { cat load.out; return 1; }
        sleep 0.1
    done
    set -x
}

# loaded: ends the load, which has found no error. fio's status is 128 when a signal ends it.
loaded() {
    kill -INT $load
    status=0
    wait $load || status=$?
    [ $status = 128 ] || { cat load.out; return 1; }
}
