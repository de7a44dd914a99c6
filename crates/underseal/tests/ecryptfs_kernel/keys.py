#!/usr/bin/python3
"""Passphrases' keys for the kernel's eCryptfs. `make FILE..` prints those of the passphrases in the first lines of files, the key
of contents and the key of names of each: a signature and a payload a line. `add FILE` puts such lines into the user's keyring.
"""

import ctypes
import struct
import sys

ADD_KEY = 248  # x86-64, as the guest is
USER_KEYRING = -4
SALTS = [bytes.fromhex("0011223344556677"), b"99887766"]


def make(passphrase, salt):
    import hashlib

    key = hashlib.sha512(salt + passphrase).digest()
    for _ in range(65535):
        key = hashlib.sha512(key).digest()
    signature = hashlib.sha512(key).hexdigest()[:16]
    # The kernel's struct ecryptfs_auth_tok (linux/ecryptfs.h) of a passphrase.
    password = struct.pack("<IiIII64s17s8s", 0, 10, 0, 64, 2, key, signature.encode(), salt)
    payload = struct.pack("<HHI", 4, 0, 0) + bytes(588) + bytes(32) + password + bytes(3)
    print(signature, payload.hex())


def add(signature, payload):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ADD_KEY, b"user", signature.encode(), payload, len(payload), USER_KEYRING) < 0:
        raise OSError(ctypes.get_errno(), "add_key")


what, *paths = sys.argv[1:]
for path in paths:
    with open(path, "rb") as file:
        lines = file.read().splitlines()
    if what == "make":
        for salt in SALTS:
            make(lines[0], salt)
    else:
        for line in lines:
            signature, payload = line.decode().split()
            add(signature, bytes.fromhex(payload))
