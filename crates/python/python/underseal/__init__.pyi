import io
import os
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Optional, Protocol, Union

__version__: str

_Path = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]
_Bytes = Union[bytes, bytearray, memoryview]
_Secret = Union[str, _Bytes]
_Pbkdf = Union[tuple[str, int], tuple[str, int, int, int]]

class _FileObject(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def seek(self, offset: int, whence: int = ..., /) -> Any: ...
    def tell(self) -> int: ...

class WrongPassphrase(PermissionError): ...
class NotEncrypted(ValueError): ...
class BadHeader(ValueError): ...
class Unsupported(NotImplementedError): ...
class Busy(OSError): ...
class Mismatch(OSError): ...

class VolumeKey:
    def reveal(self) -> bytes: ...

class Segment(tuple[int, int, Optional[int], str]):
    start: int
    length: int
    lower: Optional[int]
    kind: str

class Volume(io.RawIOBase):
    size: int
    sector_size: int
    @property
    def keyslot(self) -> Optional[int]: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def segments(self) -> list[Segment]: ...
    def read_at(self, offset: int, length: int) -> bytes: ...
    def readinto_at(self, offset: int, buffer: Any) -> int: ...
    def write_at(self, offset: int, data: Any) -> None: ...
    def discard(self, offset: int, length: int) -> None: ...
    def view(self) -> Volume: ...

class Header:
    def __init__(self, image: Union[_Path, _FileObject, BinaryIO], *, writable: bool = ...) -> None: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def uuid(self) -> str: ...
    @property
    def label(self) -> Optional[str]: ...
    @property
    def type(self) -> str: ...
    @property
    def keyslots(self) -> Sequence[dict[str, Any]]: ...
    @property
    def tokens(self) -> Sequence[dict[str, Any]]: ...
    @property
    def segments(self) -> Sequence[dict[str, Any]]: ...
    @property
    def digests(self) -> Sequence[dict[str, Any]]: ...
    def unlock(self, passphrase: _Secret, keyslot: Optional[int] = ...) -> VolumeKey: ...
    def keyslot_add(
        self, key: VolumeKey, passphrase: _Secret, *, number: Optional[int] = ..., pbkdf: Optional[_Pbkdf] = ...
    ) -> int: ...
    def keyslot_remove(self, number: int, *, last: bool = ...) -> None: ...
    def keyslot_change(
        self, old: _Secret, new: _Secret, *, keyslot: Optional[int] = ..., pbkdf: Optional[_Pbkdf] = ...
    ) -> int: ...
    def backup(self) -> bytes: ...

def open(
    image: Union[_Path, _FileObject, BinaryIO],
    *,
    passphrase: Optional[_Secret] = ...,
    key: Optional[_Bytes] = ...,
    keyfile: Optional[Union[_Path, Sequence[_Path]]] = ...,
    header: Optional[_Path] = ...,
    keyslot: Optional[int] = ...,
    writable: bool = ...,
    allow_null: bool = ...,
    allow_discards: bool = ...,
    type: Optional[str] = ...,
    partition: Optional[int] = ...,
    cipher: Optional[str] = ...,
    key_size: Optional[int] = ...,
    hash: Optional[str] = ...,
    sector_size: Optional[int] = ...,
    offset: Optional[int] = ...,
    skip: Optional[int] = ...,
    pim: Optional[int] = ...,
    hidden: bool = ...,
    backup_header: bool = ...,
    system: bool = ...,
    protect_hidden: Optional[Union[_Secret, tuple[_Secret, int]]] = ...,
    other_devices: Union[_Path, Sequence[_Path]] = ...,
) -> Volume: ...
def protect_process() -> None: ...
def info(image: Union[_Path, _FileObject, BinaryIO]) -> dict[str, Any]: ...
def format(
    path: _Path,
    passphrase: _Secret,
    *,
    version: int = ...,
    cipher: Optional[str] = ...,
    key_size: Optional[int] = ...,
    sector_size: Optional[int] = ...,
    pbkdf: Optional[_Pbkdf] = ...,
    label: Optional[str] = ...,
    uuid: Optional[str] = ...,
    header: Optional[_Path] = ...,
    force: bool = ...,
) -> None: ...
def reencrypt(
    image: Union[_Path, _FileObject, BinaryIO],
    passphrase: _Secret,
    *,
    mode: str = ...,
    cipher: Optional[str] = ...,
    key_size: Optional[int] = ...,
    sector_size: Optional[int] = ...,
    keep_key: bool = ...,
    keep_passphrases: Sequence[_Secret] = ...,
    lose_keyslots: bool = ...,
    resilience: Optional[str] = ...,
    resilience_hash: Optional[str] = ...,
    hotzone_size: Optional[int] = ...,
    reduce: Optional[int] = ...,
    header: Optional[_Path] = ...,
    pbkdf: Optional[_Pbkdf] = ...,
    label: Optional[str] = ...,
    force: bool = ...,
    progress: Optional[Callable[[int, int], Any]] = ...,
) -> bool: ...
def format_veracrypt(
    path: _Path,
    passphrase: _Secret,
    *,
    cipher: Optional[str] = ...,
    hash: Optional[str] = ...,
    pim: int = ...,
    sector_size: int = ...,
    quick: bool = ...,
    hidden_size: Optional[int] = ...,
    keyfiles: Union[_Path, Sequence[_Path]] = ...,
    force: bool = ...,
    progress: Optional[Callable[[int, int], Any]] = ...,
) -> bool: ...
def restore(path: _Path, backup: _Bytes, *, force: bool = ...) -> None: ...
def check(path: _Path) -> dict[str, Any]: ...
