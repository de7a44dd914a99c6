#!/usr/bin/python3
"""Puts the keys of passphrases into the user's keyring, as the kernel's eCryptfs wants them: each argument is a file whose
first line is a passphrase; the key of contents and the key of names of each go in.
"""

import ctypes
import hashlib
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
ADD_KEY = 248  # x86-64, as the guest is
USER_KEYRING = -4
SALTS = [bytes.fromhex("0011223344556677"), b"99887766"]


def payload(signature, key, salt):
    """The kernel's struct ecryptfs_auth_tok (linux/ecryptfs.h) of a passphrase."""
    password = struct.pack("<IiIII64s17s8s", 0, 10, 0, 64, 2, key, signature, salt)
    return struct.pack("<HHI", 4, 0, 0) + bytes(588) + bytes(32) + password + bytes(3)


def add(passphrase, salt):
    key = hashlib.sha512(salt + passphrase).digest()
    for _ in range(65535):
        key = hashlib.sha512(key).digest()
    signature = hashlib.sha512(key).hexdigest()[:16].encode()
    data = payload(signature, key, salt)
    if libc.syscall(ADD_KEY, b"user", signature, data, len(data), USER_KEYRING) < 0:
        raise OSError(ctypes.get_errno(), "add_key")
    print(signature.decode())


for path in sys.argv[1:]:
    with open(path, "rb") as file:
        passphrase = file.readline().rstrip(b"\n")
    for salt in SALTS:
        add(passphrase, salt)
