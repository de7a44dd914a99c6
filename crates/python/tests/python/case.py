"""What the tests of this folder share: images of their own, and those of the vectors."""

import lzma
import os
import tempfile
import unittest

import underseal

VECTORS = os.environ["UNDERSEAL_VECTORS"]
FORMATS = os.environ["UNDERSEAL_FORMATS"]
CHEAP = ("pbkdf2", 1000)


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def image(self, **options):
        path = os.path.join(self.folder, "image")
        with open(path, "wb") as file:
            file.truncate(24 << 20)
        underseal.format(path, "secret", pbkdf=CHEAP, **options)
        return path

    def vector(self, name):
        path = os.path.join(self.folder, os.path.basename(name)[:-3])
        with lzma.open(os.path.join(VECTORS, os.path.basename(name))) as packed, open(path, "wb") as file:
            file.write(packed.read())
        return path
