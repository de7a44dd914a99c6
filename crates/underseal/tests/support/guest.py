#!/usr/bin/python3
"""The first process of the guest: makes a system of User Mode Linux, runs the cases, turns it off.

The guest's root is the host's, read-only. Its first argument is the folder of the test, which is writable and holds
NAME.sh for each case, in the order of the file "cases". Of each case it leaves NAME.log and NAME.status. The arguments
after it are modules to load.
"""

import ctypes
import os
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
FINIT_MODULE = 313  # x86-64, as user-mode-linux is
POWER_OFF = 0x4321FEDC
EEXIST = 17

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/run",
    "LC_ALL": "C.UTF-8",
    # Nobody but the test makes device nodes here.
    "DM_DISABLE_UDEV": "1",
}


def mount(source, target, kind, data=None):
    os.makedirs(target, exist_ok=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), 0, data and data.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind} on {target}")


class Modules:
    """The kernel's modules, loaded after what they depend on."""

    def __init__(self):
        self.folder = f"/usr/lib/uml/modules/{os.uname().release}"
        self.needs, self.file, self.loaded = {}, {}, set()
        with open(f"{self.folder}/modules.dep") as lines:
            for line in lines:
                path, needs = line.split(":")
                self.file[self.name(path)] = path
                self.needs[self.name(path)] = [self.name(need) for need in needs.split()]

    @staticmethod
    def name(path):
        return os.path.basename(path).split(".ko")[0].replace("-", "_")

    def load(self, name):
        if name in self.loaded or name not in self.file:
            return  # what is no module is built in
        self.loaded.add(name)
        for need in self.needs[name]:
            self.load(need)
        with open(f"{self.folder}/{self.file[name]}", "rb") as module:
            if libc.syscall(FINIT_MODULE, module.fileno(), b"", 0) and ctypes.get_errno() != EEXIST:
                print(f"module {name}: {os.strerror(ctypes.get_errno())}")

    def load_crypto(self):
        """All ciphers, hashes and modes but the kernel's own tests of them."""
        for name, path in sorted(self.file.items()):
            if path.startswith("kernel/crypto/") and "test" not in name and name != "tcrypt":
                self.load(name)


def set_up(folder, more):
    mount("proc", "/proc", "proc")
    mount("sys", "/sys", "sysfs")
    if not os.path.ismount("/dev"):
        mount("dev", "/dev", "devtmpfs")
    mount("run", "/run", "tmpfs")
    mount("none", folder, "hostfs", folder)
    modules = Modules()
    # dm-crypt asks for encrypted-keys, and that for hmac, when they are loaded: ciphers first.
    modules.load_crypto()
    for name in ["loop", "ext4", "dm_mod", "dm_crypt", *more]:
        modules.load(name)
    if not os.path.exists("/dev/mapper/control"):
        with open("/proc/misc") as misc:
            numbers = [line.split()[0] for line in misc if line.split()[1] == "device-mapper"]
        os.makedirs("/dev/mapper", exist_ok=True)
        os.mknod("/dev/mapper/control", 0o20600, os.makedev(10, int(numbers[0])))


def run(folder, case):
    with open(f"{folder}/{case}.log", "wb") as log:
        command = ["/bin/sh", "-eux", f"{folder}/{case}.sh"]
        status = subprocess.call(command, cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)
    with open(f"{folder}/{case}.status", "w") as file:
        file.write(f"{status}\n")


def main(folder, *modules):
    set_up(folder, modules)
    with open(f"{folder}/cases") as cases:
        for case in cases.read().split():
            run(folder, case)


try:
    main(*sys.argv[1:])
finally:
    sys.stdout.flush()
    os.sync()
    libc.reboot(POWER_OFF)
