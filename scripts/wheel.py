#!/usr/bin/env python3
"""Packs the Python package and its module into a wheel: wheel.py MODULE PLATFORM FOLDER. Prints the wheel's name.

The same bytes for the same commit: SOURCE_DATE_EPOCH is the time of all files.
"""

import base64
import hashlib
import os
import pathlib
import re
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "crates/python"


def field(name):
    """A line of pyproject.toml. Python 3.9 and 3.10 have no parser for it."""
    return re.search(rf'^{name} = "(.*)"$', (PACKAGE / "pyproject.toml").read_text(), re.MULTILINE).group(1)


def metadata(version):
    return "\n".join(
        [
            "Metadata-Version: 2.1",
            "Name: underseal",
            f"Version: {version}",
            f"Summary: {field('description')}",
            "License: Apache-2.0 OR MIT",
            "Classifier: Programming Language :: Rust",
            "Classifier: Operating System :: POSIX :: Linux",
            f"Requires-Python: {field('requires-python')}",
            "Description-Content-Type: text/markdown",
            "",
            (PACKAGE / "README.md").read_text(),
        ]
    )


def main(module, platform, folder):
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)
    info = f"underseal-{version}.dist-info"
    tag = f"cp39-abi3-{platform}"
    files = {f"underseal/{path.name}": path.read_bytes() for path in (PACKAGE / "python/underseal").glob("*.*")}
    files["underseal/_underseal.abi3.so"] = pathlib.Path(module).read_bytes()
    files[f"{info}/METADATA"] = metadata(version).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: underseal\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    )
    files[f"{info}/entry_points.txt"] = b"[fsspec.specs]\nluks=underseal.fsspec.LuksFileSystem\n"
    for name in "LICENSE-APACHE", "LICENSE-MIT":
        files[f"{info}/licenses/{name}"] = (ROOT / name).read_bytes()

    def digest(data):
        return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    record = [f"{name},sha256={digest(data)},{len(data)}" for name, data in sorted(files.items())]
    record = "\n".join([*record, f"{info}/RECORD,,", ""])
    name = f"underseal-{version}-{tag}.whl"
    when = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())))[:6]
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in [*sorted(files.items()), (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(path, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if path.endswith(".so") else 0o100644) << 16
            wheel.writestr(entry, data)
    print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
