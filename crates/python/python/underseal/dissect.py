"""A drop-in for ``dissect.fve.luks``: ``from underseal.dissect import LUKS``."""

from types import SimpleNamespace
from uuid import UUID

import underseal

__all__ = ["LUKS", "is_luks_volume"]

# Where the first LUKS header lies, and where a second one may.
_MAGICS = [(0, b"LUKS\xba\xbe"), *((0x4000 << n, b"SKUL\xba\xbe") for n in range(9))]


def is_luks_volume(fh):
    """Whether the file object holds a LUKS header, the first one or the second."""
    position = fh.tell()

    def magic(offset):
        fh.seek(offset)
        return fh.read(6)

    try:
        return any(magic(offset) == wanted for offset, wanted in _MAGICS)
    finally:
        fh.seek(position)


class LUKS:
    """A LUKS volume on a file object, with dissect.fve's methods. Wrong passphrases and keys raise ``ValueError``."""

    def __init__(self, fh):
        self.fh = fh
        self._info = underseal.Header(fh).info
        self._volume = None

    @property
    def unlocked(self):
        return self._volume is not None

    @property
    def uuid(self):
        return UUID(self._info["uuid"])

    @property
    def label(self):
        return self._info.get("label")

    @property
    def keyslots(self):
        return {slot["number"]: slot for slot in self._info["keyslots"]}

    @property
    def _active_keyslot_id(self):
        return self._volume.keyslot if self._volume else None

    def find_segment(self, keyslot):
        """The segment that the keyslot's key is for, with dissect.fve's names of its fields."""
        keyslots = self.keyslots
        if keyslot not in keyslots:
            raise ValueError(f"No digest found for keyslot {keyslot}")
        segments = [segment for segment in self._info["segments"] if segment["type"] == "crypt"]
        if len(segments) != 1:
            raise NotImplementedError(f"Keyslot {keyslot} has more than one segment")
        [segment] = segments
        return SimpleNamespace(
            type=segment["type"],
            encryption=segment["cipher"],
            offset=segment["offset"],
            size=segment["size"],
            iv_tweak=segment["iv_offset"],
            sector_size=segment["sector_size"],
        )

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
