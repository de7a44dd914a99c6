#!/bin/sh
# The guest's system: runs the tasks of the folder in their order, then turns the machine off. What a task printed is in
# NAME.log, its exit status in NAME.status.
[ "$ROOT" != hostfs ] || mount -t hostfs -o "$FOLDER" folder "$FOLDER"
cd "$FOLDER" || exit 1
: > up
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/run TMPDIR=/run LC_ALL=C.UTF-8 DM_DISABLE_UDEV=1 UNDERSEAL_RUNTIME_DIR=/run/underseal

mount -t proc proc /proc
mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs mnt /mnt
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
# /dev/root of some images is the host's; links that programs expect.
ln -sfn /proc/self/fd /dev/fd

# Modules are those that the test names. Asking for others, which the kernel does for each of a cipher's many names, takes time.
echo > /proc/sys/kernel/modprobe
# Those that a kernel has built in, or not at all, are no reason to leave out the others.
# shellcheck disable=SC2046 # one module a line
modprobe -d "$KERNEL" -a $(grep -v ' ' modules) || echo "not all modules are there"
grep ' ' modules | while read -r module; do
    # shellcheck disable=SC2086 # a module and its parameters
    modprobe -d "$KERNEL" $module || echo "no module $module"
done

while read -r name seconds; do
    dmesg --clear
    before=$(date +%s)
    timeout -k 30 "$seconds" sh -eux "./$name.sh" > "$name.log" 2>&1 < /dev/null
    status=$?
    [ $status != 124 ] || echo "it took longer than $seconds s" >> "$name.log"
    [ $status = 0 ] || { echo "== the kernel:"; dmesg | tail -n 60; } >> "$name.log"
    echo "$name $(($(date +%s) - before)) s" >> times
    echo $status > "$name.part" && mv "$name.part" "$name.status"
done < tasks

sync
# QEMU ends instead of booting again; User Mode Linux ends when it is turned off.
if [ "$ROOT" = hostfs ]; then echo o; else echo b; fi > /proc/sysrq-trigger
sleep 60
