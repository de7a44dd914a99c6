"""A drop-in for the module ``pyluksde`` of libluksde: ``from underseal import pyluksde``. LUKS2 works too."""

import io

import underseal

__all__ = [
    "check_volume_signature",
    "check_volume_signature_file_object",
    "get_version",
    "open",
    "open_file_object",
    "volume",
]

_MAGIC = b"LUKS\xba\xbe"
# libluksde's numbers of ciphers and chaining modes (libluksde/definitions.h).
_METHODS = {"anubis": 1, "aes": 2, "arc4": 3, "blowfish": 4, "serpent": 5, "twofish": 6}
_MODES = {"cbc": 1, "ctr": 2, "ecb": 3, "xts": 4}


def get_version():
    """The version of this module."""
    return underseal.__version__


def check_volume_signature(filename):
    """Whether the file begins with a LUKS header."""
    with io.open(filename, "rb") as file:
        return file.read(6) == _MAGIC


def check_volume_signature_file_object(file_object):
    """Whether the file object begins with a LUKS header."""
    file_object.seek(0)
    return file_object.read(6) == _MAGIC


def open(filename, mode="r"):
    """A volume that is open, and locked as long as no passphrase was set."""
    opened = volume()
    opened.open(filename, mode)
    return opened


def open_file_object(file_object, mode="r"):
    """As :func:`open`, on a file object."""
    opened = volume()
    opened.open_file_object(file_object, mode)
    return opened


class volume:
    """A LUKS volume with libluksde's methods."""

    def __init__(self):
        self._image = None
        self._password = None
        self._key = None
        self._info = None
        self._volume = None

    def open(self, filename, mode="r"):
        self._open(filename, mode)

    def open_file_object(self, file_object, mode="r"):
        self._open(file_object, mode)

    def _open(self, image, mode):
        if mode not in ("r", "rb"):
            raise ValueError(f"unsupported mode: {mode}")
        if self._image is not None:
            raise IOError("volume already open")
        self._info = _info(image)
        self._image = image
        self.unlock()

    def set_password(self, password):
        self._password = password

    def set_key(self, key):
        self._key = underseal._bytes(key)

    def unlock(self):
        """Whether the passphrase or key opens the volume. Without one the volume stays locked."""
        if self._image is None:
            raise IOError("volume not open")
        if self._volume is not None:
            return True
        if self._password is None and self._key is None:
            return False
        secret = {"key": self._key} if self._key is not None else {"passphrase": self._password}
        try:
            self._volume = underseal.open(self._image, **secret)
        except underseal.WrongPassphrase:
            return False
        except (ValueError, NotImplementedError) as e:
            raise IOError(str(e)) from e
        return True

    def is_locked(self):
        return self._volume is None

    def close(self):
        if self._image is None:
            raise IOError("volume not open")
        if self._volume is not None:
            self._volume.close()
        self._image = self._volume = self._info = None

    def signal_abort(self):
        """Does nothing: no call waits without end."""

    def _unlocked(self):
        if self._volume is None:
            raise IOError("volume is locked")
        return self._volume

    def read_buffer(self, size=None):
        volume = self._unlocked()
        if size is not None and size < 0:
            raise ValueError("negative size")
        return volume.read(-1 if size is None else size)

    read = read_buffer

    def read_buffer_at_offset(self, size, offset):
        self._unlocked()
        if offset < 0:
            raise ValueError("negative offset")
        self.seek_offset(offset)
        return self.read_buffer(size)

    def seek_offset(self, offset, whence=0):
        try:
            self._unlocked().seek(offset, whence)
        except ValueError as e:
            raise IOError(str(e)) from e

    seek = seek_offset

    def get_offset(self):
        return self._unlocked().tell()

    tell = get_offset

    def get_size(self):
        """The length of the data, which the header of a locked volume tells, too."""
        if self._volume is not None:
            return self._volume.size
        if self._info is None:
            raise IOError("volume not open")
        segments = self._info["segments"]
        if len(segments) != 1:
            raise IOError("volume is locked")
        size = segments[0]["size"]
        return _length(self._image) - segments[0]["offset"] if size is None else size

    def _cipher(self):
        segments = self._info["segments"] if self._info else []
        spec = next((s["cipher"] for s in segments if s.get("cipher")), "")
        name, _, mode = spec.partition("-")
        return name, mode.partition("-")[0]

    def get_encryption_method(self):
        return _METHODS.get(self._cipher()[0], 0)

    def get_encryption_chaining_mode(self):
        return _MODES.get(self._cipher()[1], 0)

    def get_volume_identifier(self):
        if self._info is None:
            raise IOError("volume not open")
        return self._info["uuid"]

    size = property(get_size)
    encryption_method = property(get_encryption_method)
    encryption_chaining_mode = property(get_encryption_chaining_mode)
    volume_identifier = property(get_volume_identifier)


def _length(image):
    if not hasattr(image, "seek"):
        with io.open(image, "rb") as file:
            return file.seek(0, io.SEEK_END)
    position = image.tell()
    try:
        image.seek(0, io.SEEK_END)
        return image.tell()
    finally:
        image.seek(position)


def _info(image):
    try:
        return underseal.Header(image).info
    except (ValueError, NotImplementedError) as e:
        raise IOError(str(e)) from e
