"""Encrypted images in fsspec: ``fsspec.open("luks://volume::file://disk.img", luks={"passphrase": ...})``."""

from fsspec.archive import AbstractArchiveFileSystem
from fsspec.core import url_to_fs

import underseal

#: The name of the one file in the file system: the volume's plaintext.
NAME = "volume"


class LuksFileSystem(AbstractArchiveFileSystem):
    """A file system with one file, the plaintext of an encrypted image that another fsspec file system holds."""

    protocol = "luks"
    root_marker = ""
    cachable = False

    def __init__(self, fo="", target_protocol=None, target_options=None, passphrase=None, key=None, keyslot=None, **kwargs):
        super().__init__(**kwargs)
        if isinstance(fo, str):
            fs, path = url_to_fs(fo, protocol=target_protocol, **(target_options or {}))
            fo = fs.open(path, "rb")
        self.volume = underseal.open(fo, passphrase=passphrase, key=key, keyslot=keyslot)
        self.dir_cache = None

    def _get_dirs(self):
        if self.dir_cache is None:
            self.dir_cache = {NAME: {"name": NAME, "size": self.volume.size, "type": "file"}}

    def _open(self, path, mode="rb", **kwargs):
        if mode != "rb":
            raise ValueError("encrypted images are opened for reading here")
        if self._strip_protocol(path) != NAME:
            raise FileNotFoundError(path)
        return self.volume.view()
