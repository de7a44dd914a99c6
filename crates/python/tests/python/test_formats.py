"""VeraCrypt, BitLocker, FileVault 2 and loop-AES volumes."""

import errno
import hashlib
import io
import json
import os
import subprocess
import unittest

from case import FORMATS, Case

import underseal


class Formats(Case):
    """VeraCrypt, BitLocker, FileVault 2 and loop-AES volumes of an independent maker."""

    def setUp(self):
        super().setUp()
        subprocess.run(["tar", "-xJf", os.path.join(FORMATS, "images.tar.xz"), "-C", self.folder], check=True)
        with open(os.path.join(FORMATS, "formats.json")) as file:
            self.entries = json.load(file)["images"]

    def options(self, entry):
        """One secret that opens the entry's volume, and the options that its header does not tell."""
        if entry["format"] == "tcrypt":
            header = entry["header"]
            return {
                "type": "tcrypt",
                "passphrase": entry["passphrase"],
                "keyfile": [os.path.join(self.folder, name) for name in entry.get("keyfiles", [])],
                "pim": entry["pim"],
                "hash": entry["kdf"][0],
                "hidden": "hidden" in header,
                "backup_header": "backup" in header,
                "system": header == "system",
            }
        if entry["format"] == "loopaes":
            return {
                "type": "loopaes",
                "keyfile": os.path.join(self.folder, entry["keyfile"]),
                "key_size": entry["key_bits"] // 8,
                "hash": entry.get("hash"),
                "offset": entry.get("offset_sectors"),
                "skip": entry.get("skip_sectors"),
            }
        if "passphrases" in entry:
            return {"passphrase": entry["passphrases"][-1]}
        if entry.get("startup_keys"):
            return {"keyfile": os.path.join(self.folder, entry["startup_keys"][0])}
        return {"passphrase": entry.get("passphrase") or entry.get("recovery", [""])[0]}

    def test_every_volume_opens_or_is_refused_as_the_manifest_says(self):
        opened = refused = 0
        for entry in self.entries:
            path = os.path.join(self.folder, entry["image"])
            options = self.options(entry)
            if entry.get("reason") == "another chain is asked for":
                options["cipher"] = entry["chain_cryptsetup"].split()[-1]
            with self.subTest(entry["image"], **options):
                if entry["expect"] == "open" or entry["image"] == "bl-paused.img":
                    with underseal.open(path, **options) as volume:
                        data = volume.read()
                        self.assertEqual(volume.info["format"], entry["format"])
                    self.assertEqual(hashlib.sha256(data).hexdigest(), entry["plaintext_sha256"])
                    opened += 1
                    continue
                with self.assertRaises((ValueError, PermissionError, NotImplementedError)) as raised:
                    underseal.open(path, **options)
                self.assertIn(path, str(raised.exception))
                if entry.get("negative"):
                    self.assertIsInstance(raised.exception, underseal.WrongPassphrase)
                refused += 1
        self.assertEqual((opened, refused), (128, 40))

    def test_writes_reach_the_image_and_not_a_protected_hidden_volume(self):
        [entry] = [entry for entry in self.entries if entry["image"] == "vc-hidden.img" and "hidden_protection" in entry]
        path = os.path.join(self.folder, entry["image"])
        hidden = entry["hidden_protection"]
        protected = (hidden["passphrase"], hidden["pim"])
        with underseal.open(path, writable=True, protect_hidden=protected, **self.options(entry)) as volume:
            for offset, length in entry["writes"]:
                volume.write_at(offset, bytes((7 * at + 13) % 256 for at in range(offset, offset + length)))
            for offset in (hidden["first_byte"], 0):
                with self.assertRaises(OSError) as raised:
                    volume.write_at(offset, b"x")
                self.assertEqual(raised.exception.errno, errno.EROFS)
        with open(path, "rb") as file:
            self.assertEqual(hashlib.sha256(file.read()).hexdigest(), entry["image_sha256_after"])

    def test_cut_images_are_exceptions(self):
        names = {"bl-8004-512.img": {}, "fv-plain.img": {}, "vc-aes.img": {"type": "tcrypt", "hash": "sha512", "pim": 1}}
        for name, options in names.items():
            entry = next(entry for entry in self.entries if entry["image"] == name and entry["expect"] == "open")
            secret = entry.get("passphrase") or entry["passphrases"][0]
            with open(os.path.join(self.folder, name), "rb") as file:
                whole = file.read()
            for cut in (0, 511, 512, 4096, 65536, len(whole) // 2, len(whole) - 512):
                with self.subTest(name, cut=cut):
                    try:
                        with underseal.open(io.BytesIO(whole[:cut]), passphrase=secret, **options) as volume:
                            self.assertLess(volume.size, len(whole))
                            volume.read()
                    except (ValueError, OSError, NotImplementedError) as e:
                        self.assertTrue(str(e))

    def test_options_that_do_not_fit_are_value_errors(self):
        path = self.image()
        for options in (
            {"type": "zip"},
            {"pim": 5},
            {"type": "tcrypt", "pim": -1},
            {"type": "tcrypt", "hidden": True, "system": True},
            {"type": "tcrypt", "hash": "md5"},
            {"protect_hidden": "x"},
            {"partition": 1},
            {"other_devices": [path]},
            {"keyfile": [path, path]},
            {"key": b"x" * 64},
        ):
            with self.subTest(**options):
                self.assertRaises(ValueError, underseal.open, path, passphrase="secret", **options)
        self.assertEqual(underseal.info(os.path.join(self.folder, "bl-8004-512.img"))["format"], "bitlk")


if __name__ == "__main__":
    unittest.main()
