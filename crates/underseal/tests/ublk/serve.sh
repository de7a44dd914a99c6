# What the tasks share. OURS is the command, PASS the passphrase's file.

# serve IMAGE NAME [OPTIONS]: a block device /dev/underseal/NAME; its server's process is then $server.
serve() {
    image=$1 name=$2
    shift 2
    rm -f "$name.ready" "$name.err"
    "$OURS" open "$image" --ublk --name "$name" --passphrase-file "$PASS" -vv "$@" > "$name.ready" 2>> "$name.err" &
    server=$!
    { set +x; } 2> /dev/null
    until grep -q 'is open' "$name.ready"; do
        kill -0 $server || { cat "$name.err"; return 1; }
        sleep 0.1
    done
    set -x
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

# pid: who serves it now.
pid() {
    "$OURS" status "$name" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])'
}

# upgrade: another process takes it over, and is $server then.
upgrade() {
    "$OURS" upgrade "$name" -vv 2>> "$name.err" || { cat "$name.err"; return 1; }
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
        --size=12M --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --minimal --output=fio.out "$@" || { cat fio.out; return 1; }
}
