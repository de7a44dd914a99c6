"""Encrypted images as files, without root or a daemon: LUKS1, LUKS2, plain dm-crypt, VeraCrypt, BitLocker, FileVault 2, loop-AES.

>>> import underseal
>>> with underseal.open("disk.img", passphrase="correct horse") as volume:
...     start = volume.read(512)

A volume is an ``io.RawIOBase``: any byte offset may be read, and ``io.BufferedReader`` or ``TextIOWrapper`` go on top.
``read_at`` reads from several threads at once; the global lock is released while it runs.

Copies of passphrases and keys that this module makes are wiped, and are in no core dump. The ``str`` and ``bytes`` objects of
the caller are not: Python keeps them until it reuses their memory. :func:`protect_process` keeps all memory out of core dumps.
"""

import io
import os

from . import _underseal
from ._underseal import (
    BadHeader,
    Busy,
    Mismatch,
    NotEncrypted,
    Unsupported,
    VolumeKey,
    WrongPassphrase,
    __version__,
)

__all__ = [
    "BadHeader",
    "Busy",
    "Header",
    "Mismatch",
    "NotEncrypted",
    "Segment",
    "Unsupported",
    "Volume",
    "VolumeKey",
    "WrongPassphrase",
    "check",
    "format",
    "format_veracrypt",
    "info",
    "open",
    "protect_process",
    "reencrypt",
    "restore",
]


def _parsed(text):
    """The dictionary of a JSON text. The parser is imported when it is needed: it takes longer than this module."""
    import json

    return json.loads(text)


def _bytes(value):
    """The bytes of an object that has bytes; ``bytes(8)`` would make zeros of a number."""
    if type(value) is bytes:
        return value
    with memoryview(value) as view:
        if not view.c_contiguous:
            raise TypeError("bytes that do not lie in one piece")
        return view.tobytes()


def _key(value):
    """The bytes of a volume key that may be missing."""
    return None if value is None else _bytes(value)


def _secret(value):
    """The bytes of a passphrase that may be missing: text is encoded as UTF-8."""
    return value.encode() if isinstance(value, str) else _key(value)


def _secrets(values):
    if isinstance(values, (str, bytes, bytearray, memoryview)):
        raise TypeError("a list of passphrases is wanted, not one passphrase")
    return [_secret(value) for value in values]


def _is_path(image):
    if image is None:
        raise TypeError("neither a path nor a file object")
    return isinstance(image, (str, bytes, os.PathLike))


def _path(path):
    return None if path is None else os.fsdecode(path)


def _paths(paths):
    """One path, or several."""
    return [os.fsdecode(path) for path in ([paths] if _is_path(paths) else paths)]


def _pbkdf(pbkdf):
    """The cost of a keyslot as the native module takes it: a name and three numbers."""
    if pbkdf is None:
        return None
    name, *numbers = pbkdf
    wanted = {"pbkdf2": 1, "argon2id": 3}.get(name)
    if wanted is None or len(numbers) != wanted:
        raise ValueError("pbkdf is ('pbkdf2', rounds) or ('argon2id', passes, memory_kib, threads)")
    return (name, *numbers, 0, 0)[:4] if wanted == 1 else (name, *numbers)


def open(
    image,
    *,
    passphrase=None,
    key=None,
    keyfile=None,
    header=None,
    keyslot=None,
    writable=False,
    allow_null=False,
    allow_discards=False,
    type=None,
    partition=None,
    cipher=None,
    key_size=None,
    hash=None,
    sector_size=None,
    offset=None,
    skip=None,
    pim=None,
    hidden=False,
    backup_header=False,
    system=False,
    protect_hidden=None,
    other_devices=(),
):
    """Opens an encrypted image and returns its plaintext as a :class:`Volume`.

    ``image`` is a path, an ``nbd:`` or ``rbd:`` address, or a file object with ``read``, ``seek`` and ``tell`` (a split image,
    an E01 container, an HTTP range reader). The file of one of Python's own file objects is opened a second time, so that closing
    the object changes nothing for the volume. One of ``passphrase``, ``key`` (the volume key) and ``keyfile`` opens it.

    LUKS, BitLocker and FileVault 2 are told by their headers. ``type`` names another one: ``"tcrypt"`` (TrueCrypt and VeraCrypt),
    ``"plain"``, ``"loopaes"``; or requires ``"luks"``, ``"bitlk"``, ``"fvault2"``. ``partition`` is the number of the partition
    of a whole disk that holds the volume.

    - ``tcrypt``: ``pim``, ``hidden``, ``backup_header``, ``system``; ``keyfile`` may be a list; ``hash`` and ``cipher`` where
      they are known. ``protect_hidden`` is the passphrase of the hidden volume, or ``(passphrase, pim)``: a write to the outer
      volume that would reach the hidden one raises ``OSError`` (``EROFS``), and so does every later one.
    - ``plain``: ``cipher``, ``key_size`` and ``sector_size`` (in bytes), ``hash``, ``offset`` and ``skip`` (in 512-byte sectors).
    - ``loopaes``: ``keyfile``; ``cipher``, ``key_size``, ``hash``, ``offset``, ``skip``.
    - ``bitlk``: ``passphrase`` is a password or a recovery password, ``keyfile`` a startup key. A suspended one needs none.
    - ``fvault2``: ``other_devices`` are the paths of the volume's further disks.

    Raises ``WrongPassphrase`` (a ``PermissionError``), ``NotEncrypted`` and ``BadHeader`` (``ValueError``), ``Unsupported``
    (``NotImplementedError``), ``Busy`` and other ``OSError``.
    """
    if type is None and cipher is not None:
        type = "plain"
    named = {
        "type": type,
        "partition": partition,
        "cipher": cipher,
        "key-size": key_size,
        "hash": hash,
        "sector-size": sector_size,
        "offset": offset,
        "skip": skip,
        "pim": pim,
        "hidden": 1 if hidden else None,
        "backup-header": 1 if backup_header else None,
        "system": 1 if system else None,
    }
    options = [(name, str(value)) for name, value in named.items() if value is not None]
    if keyfile is not None:
        options += [("key-file", path) for path in _paths(keyfile)]
    options += [("other-device", path) for path in _paths(other_devices)]
    if protect_hidden is not None:
        secret, number = protect_hidden if isinstance(protect_hidden, tuple) else (protect_hidden, 0)
        protect_hidden = (_secret(secret), number)
    opened = _underseal.open(
        _path(image) if _is_path(image) else None,
        None if _is_path(image) else image,
        _secret(passphrase),
        _key(key),
        _path(header),
        keyslot,
        (bool(writable), bool(allow_null), bool(allow_discards)),
        options,
        protect_hidden,
    )
    return Volume(opened)


class Segment(tuple):
    """A run of a volume: ``start`` and ``length`` in bytes, ``lower`` (the place on the lower device, or None), ``kind``."""

    __slots__ = ()
    start = property(lambda self: self[0])
    length = property(lambda self: self[1])
    lower = property(lambda self: self[2])
    kind = property(lambda self: self[3])


class Volume(io.RawIOBase):
    """The plaintext of an open image, as an unbuffered binary file. It is not copied; :meth:`view` is another file over it."""

    def __init__(self, image):
        self._image = image
        self._position = 0
        self.size = image.size
        self.sector_size = image.sector_size

    @property
    def info(self):
        """What the header says, as a dictionary."""
        return _parsed(self._image.info_json)

    @property
    def keyslot(self):
        """The number of the LUKS keyslot that the passphrase opened, or None."""
        return self._image.keyslot

    @property
    def segments(self):
        """The runs of the volume, in order."""
        return [Segment(each) for each in self._image.segments()]

    def read_at(self, offset, length):
        """Reads ``length`` bytes at ``offset``, fewer at the end of the volume only. Moves no position: threads may share it."""
        if offset < 0 or length < 0:
            raise ValueError("negative offset or length")
        return self._image.read_at(offset, length)

    def readinto_at(self, offset, buffer):
        """Reads into a writable buffer at ``offset`` and returns the number of bytes."""
        with memoryview(buffer) as view, view.cast("B") as target:
            data = self.read_at(offset, len(target))
            target[: len(data)] = data
            return len(data)

    def write_at(self, offset, data):
        """Writes all of ``data`` at ``offset``. Nothing is written when the range ends beyond the volume."""
        if offset < 0:
            raise ValueError("negative offset")
        self._image.write_at(offset, _bytes(data))

    def discard(self, offset, length):
        """Tells the lower device that whole sectors within the range are not needed any more."""
        self._image.discard(offset, length)

    def readable(self):
        self._check()
        return True

    def writable(self):
        self._check()
        return self._image.writable

    def seekable(self):
        self._check()
        return True

    def seek(self, offset, whence=os.SEEK_SET):
        self._check()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"invalid whence: {whence}")
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self):
        self._check()
        return self._position

    def read(self, size=-1):
        self._check()
        if size is None or size < 0:
            size = max(self.size - self._position, 0)
        data = self._image.read_at(self._position, size)
        self._position += len(data)
        return data

    def readall(self):
        return self.read()

    def readinto(self, buffer):
        self._check()
        count = self.readinto_at(self._position, buffer)
        self._position += count
        return count

    def write(self, data):
        self._check()
        if not self._image.writable:
            raise io.UnsupportedOperation("not open for writing")
        data = _bytes(data)
        left = max(self.size - self._position, 0)
        if data and not left:
            raise OSError(28, "the volume ends here")
        data = data[:left]
        self._image.write_at(self._position, data)
        self._position += len(data)
        return len(data)

    def flush(self):
        """Returns when everything that was written is on stable storage.

        On an object of another class than Python's own files that means its ``flush``, and ``os.fsync`` of its ``fileno`` where it
        has one.
        """
        if not self.closed:
            self._image.flush()

    def view(self):
        """Another file over the same volume, with a position of its own. Closing it leaves the volume open."""
        return _View(self._image)

    def close(self):
        if not self.closed:
            try:
                super().close()
            finally:
                self._close_image()

    def _close_image(self):
        self._image.close()

    def __reduce_ex__(self, protocol):
        # A copy would close the image of the original.
        raise TypeError(f"cannot copy or pickle {type(self).__name__!r} object")

    def _check(self):
        if self.closed:
            raise ValueError("I/O operation on a closed volume")


class _View(Volume):
    """A file over a volume that others use too."""

    def _close_image(self):
        pass


class Header:
    """A LUKS header on an image or in a file of its own. Changes are on disk when a method returns.

    On a file object without ``fileno`` they are as durable, and in the order, that its ``flush`` makes them: change headers
    by their path where a power cut matters.
    """

    def __init__(self, image, *, writable=False):
        is_path = _is_path(image)
        self._header = _underseal.Header(_path(image) if is_path else None, None if is_path else image, writable)

    @property
    def info(self):
        """What the header says, as ``underseal info --json`` prints it."""
        return _parsed(self._header.info_json)

    @property
    def uuid(self):
        return self.info["uuid"]

    @property
    def label(self):
        return self.info.get("label") or None

    @property
    def type(self):
        return self.info["format"]

    @property
    def keyslots(self):
        return self.info["keyslots"]

    @property
    def tokens(self):
        return self.info["tokens"]

    @property
    def segments(self):
        return self.info["segments"]

    @property
    def digests(self):
        return self.info["digests"]

    def unlock(self, passphrase, keyslot=None):
        """Returns the volume key that a passphrase opens."""
        return self._header.unlock(_secret(passphrase), keyslot)

    def keyslot_add(self, key, passphrase, *, number=None, pbkdf=None):
        """Adds a keyslot for ``passphrase`` and returns its number. ``key`` comes from :meth:`unlock`."""
        return self._header.keyslot_add(key, _secret(passphrase), number, _pbkdf(pbkdf))

    def keyslot_remove(self, number, *, last=False):
        """Removes a keyslot; ``last`` allows to remove the last one, which makes the data unreadable."""
        self._header.keyslot_remove(number, last)

    def keyslot_change(self, old, new, *, keyslot=None, pbkdf=None):
        """Replaces the keyslot that ``old`` opens by one for ``new`` and returns its number."""
        return self._header.keyslot_change(_secret(old), _secret(new), keyslot, _pbkdf(pbkdf))

    def backup(self):
        """The header and its keyslots as bytes."""
        return self._header.backup()


def protect_process():
    """Keeps this process's memory out of core dumps, and away from debuggers and other processes of the same user."""
    _underseal.protect_process()


def info(image):
    """What the header of an image says, as a dictionary: LUKS, BitLocker, FileVault 2. Others show nothing without the secret."""
    is_path = _is_path(image)
    return _parsed(_underseal.info(_path(image) if is_path else None, None if is_path else image))


def format(
    path,
    passphrase,
    *,
    version=2,
    cipher=None,
    key_size=None,
    sector_size=None,
    pbkdf=None,
    label=None,
    uuid=None,
    header=None,
    force=False,
):
    """Makes a new LUKS volume on an existing image file or block device. ``key_size`` and ``sector_size`` are in bytes.

    ``force`` overwrites what is there, but not the detached header of a volume that is open (``Busy``).
    """
    _underseal.format(
        os.fsdecode(path),
        _secret(passphrase),
        version,
        cipher,
        key_size,
        sector_size,
        _pbkdf(pbkdf),
        label,
        uuid,
        _path(header),
        force,
    )


def reencrypt(
    image,
    passphrase,
    *,
    mode="reencrypt",
    cipher=None,
    key_size=None,
    sector_size=None,
    keep_key=False,
    keep_passphrases=(),
    lose_keyslots=False,
    resilience=None,
    resilience_hash=None,
    hotzone_size=None,
    reduce=None,
    header=None,
    pbkdf=None,
    label=None,
    force=False,
    progress=None,
):
    """Reencrypts the closed volume on an image in place; True when that is finished.

    ``image`` is a path, an ``nbd:`` or ``rbd:`` address, or a file object that can be written to. ``mode`` is one of:

    - ``"reencrypt"``: a LUKS2 volume gets a new key, and the ``cipher`` and ``sector_size`` that are named (sizes are in
      bytes). ``passphrase`` and ``keep_passphrases`` open the keyslots that are kept; others are lost only with
      ``lose_keyslots``. ``keep_key`` changes nothing but cipher and sectors.
    - ``"encrypt"``: plain data get a header, and ``passphrase`` opens it. The header needs room: ``reduce`` gives up so many
      bytes at the end of the image, and the data move by half of that; or ``header`` names a new file for it. ``pbkdf`` and
      ``label`` are the new header's.
    - ``"decrypt"``: the image holds the plain data afterwards. ``header`` names a new file, to which a header in front of the
      data is moved: until the end it is the volume's header.
    - ``"resume"``: goes on with what is under way, and begins nothing.

    ``progress(done, total)`` is called before each step, of ``hotzone_size`` bytes at most (64 MiB by default), and at the
    end. When it returns ``False`` the reencryption stops, and the result is False. An exception, also Ctrl-C's, stops it
    too, and is raised. What was stopped, killed or cut off by a power cut goes on with ``mode="resume"``, or with the same
    call, or in cryptsetup; meanwhile the volume opens for reading. ``resilience`` is ``"checksum"``, ``"journal"`` or
    ``"none"``, with which a crash loses data. ``force`` makes sectors larger although nothing is known of what is on the
    volume, decrypts over the start of an image that has no header any more, and encrypts data that are a BitLocker or
    FileVault 2 volume, or a whole disk with a partition table, or a file system that reaches into what ``reduce`` gives up.

    >>> half = lambda done, total: done < total // 2
    >>> reencrypt("disk.img", "correct horse", cipher="serpent-xts-plain64", hotzone_size=1 << 20, progress=half)
    False
    >>> reencrypt("disk.img", "correct horse", mode="resume")
    True
    """
    request = {
        "mode": mode,
        "cipher": cipher,
        "key_size": key_size,
        "sector_size": sector_size,
        "keep_key": bool(keep_key),
        "resilience": resilience,
        "resilience_hash": resilience_hash,
        "hotzone_size": hotzone_size,
        "reduce": reduce,
        "header": _path(header),
        "lose_keyslots": bool(lose_keyslots),
        "force": bool(force),
        "pbkdf": _pbkdf(pbkdf),
        "label": label,
    }
    is_path = _is_path(image)
    path, device = (_path(image), None) if is_path else (None, image)
    return _underseal.reencrypt(path, device, _secret(passphrase), _secrets(keep_passphrases), request, progress)


def format_veracrypt(
    path,
    passphrase,
    *,
    cipher=None,
    hash=None,
    pim=0,
    sector_size=512,
    quick=False,
    hidden_size=None,
    keyfiles=(),
    force=False,
    progress=None,
):
    """Makes a new VeraCrypt volume on an existing image file or block device; True when it was completed.

    Old headers are overwritten first, then the data are filled with random bytes (not with ``quick``), and the new headers are
    written last. ``progress(done, total)`` is called about each MiB; when it returns ``False`` or raises, the filling stops,
    and nothing opens. ``hidden_size`` makes a hidden volume of so many bytes at the end of a volume that is there: what the
    outer file system has there is lost, so this needs ``force``, which else overwrites a header, file system or partition table.

    ``cipher`` is ``"aes"``, ``"serpent-twofish-aes"``, ``"AES(Twofish)"``; ``hash`` is ``"sha512"``, ``"whirlpool"``,
    ``"argon2id"``. A ``pim`` with fewer rounds than the default wants a passphrase of 20 bytes, or ``keyfiles``.

    >>> format_veracrypt("vera.img", "correct horse battery", pim=1)
    True
    >>> with open("vera.img", type="tcrypt", passphrase="correct horse battery", pim=1) as volume:
    ...     volume.size
    786432
    """
    request = {
        "cipher": cipher,
        "hash": hash,
        "pim": pim,
        "sector_size": sector_size,
        "quick": bool(quick),
        "hidden_size": hidden_size,
        "keyfiles": _paths(keyfiles),
        "force": bool(force),
    }
    return _underseal.format_veracrypt(os.fsdecode(path), _secret(passphrase), request, progress)


def restore(path, backup, *, force=False):
    """Puts a header backup back; without ``force`` over the same volume's header or zeros only."""
    _underseal.restore(os.fsdecode(path), _bytes(backup), force)


def check(path):
    """Looks at a header and its keyslots: a dictionary with ``sound`` and ``findings``."""
    return _parsed(_underseal.check(os.fsdecode(path)))
