"""A drop-in for ``dissect.fve.luks``: ``from underseal.dissect import LUKS``."""

import underseal

__all__ = ["LUKS", "is_luks_volume"]

_MAGIC = b"LUKS\xba\xbe"


def is_luks_volume(fh):
    """Whether the file object holds a LUKS header where it stands."""
    position = fh.tell()
    try:
        return fh.read(6) == _MAGIC
    finally:
        fh.seek(position)


class LUKS:
    """A LUKS volume on a file object, with dissect.fve's methods. Wrong passphrases and keys raise ``ValueError``."""

    def __init__(self, fh):
        self.fh = fh
        self._info = underseal.info(fh)
        self._volume = None

    @property
    def unlocked(self):
        return self._volume is not None

    @property
    def uuid(self):
        return self._info["uuid"]

    @property
    def label(self):
        return self._info.get("label")

    @property
    def keyslots(self):
        return {slot["number"]: slot for slot in self._info["keyslots"]}

    def unlock(self, key, keyslot=None):
        """Unlocks with the volume key."""
        self._try({"key": key})

    def unlock_with_passphrase(self, passphrase, keyslot=None):
        self._try({"passphrase": passphrase, "keyslot": keyslot})

    def unlock_with_key_file(self, path, offset=0, size=-1, keyslot=None):
        with open(path, "rb") as file:
            self.unlock_with_key_fh(file, offset, size, keyslot)

    def unlock_with_key_fh(self, fh, offset=0, size=-1, keyslot=None):
        fh.seek(offset)
        self._try({"passphrase": fh.read(size), "keyslot": keyslot})

    def _try(self, secret):
        try:
            self._volume = underseal.open(self.fh, **secret)
        except underseal.WrongPassphrase as e:
            raise ValueError(f"Failed to unlock: {e}") from e

    def open(self):
        """The plaintext as a seekable stream for reading."""
        if self._volume is None:
            raise ValueError("Volume is locked")
        return self._volume.view()
