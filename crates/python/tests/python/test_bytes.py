"""What is taken for bytes: passphrases, keys, data."""

import array
import copy
import gc
import pickle
import unittest

import underseal
from case import CHEAP, Case

#: ``bytes()`` makes bytes of each, and zeros of a number.
NOT_BYTES = (0, 8, True, 1 << 40, 1.5, [1, 2, 3], (1,), range(3), object(), memoryview(b"abcdef")[::2])


class Bytes(Case):
    def opens(self, passphrase):
        try:
            underseal.open(self.folder + "/image", passphrase=passphrase).close()
        except underseal.WrongPassphrase:
            return False
        return True

    def refused(self, call):
        for value in NOT_BYTES:
            with self.subTest(value=value), self.assertRaises(TypeError):
                call(value)

    def test_a_new_passphrase_is_text_or_bytes(self):
        path = self.image()
        header = underseal.Header(path, writable=True)
        key = header.unlock("secret")
        self.refused(lambda value: underseal.format(path, value, pbkdf=CHEAP, force=True))
        self.refused(lambda value: header.keyslot_add(key, value, pbkdf=CHEAP))
        self.refused(lambda value: header.keyslot_change("secret", value, pbkdf=CHEAP))
        self.refused(lambda value: underseal.format_veracrypt(path, value, force=True))
        with open(path, "r+b") as file:
            file.truncate(48 << 20)
        plain = self.folder + "/plain"
        with open(plain, "wb") as file:
            file.truncate(48 << 20)
        self.refused(lambda value: underseal.reencrypt(plain, value, mode="encrypt", reduce=32 << 20, pbkdf=CHEAP))
        with open(plain, "rb") as file:
            self.assertEqual(file.read(4096), bytes(4096))
        self.assertTrue(self.opens("secret"))
        self.assertFalse(self.opens(bytes(8)))
        self.assertEqual(len(underseal.Header(path).keyslots), 1)
        for number, passphrase in enumerate((bytearray(b"one"), memoryview(b"two"), array.array("B", b"three")), 1):
            self.assertEqual(header.keyslot_add(key, passphrase, pbkdf=CHEAP), number)
        for passphrase in ("one", b"two", bytearray(b"three")):
            self.assertTrue(self.opens(passphrase))

    def test_passphrases_and_keys_that_open_are_text_or_bytes(self):
        path = self.image()
        header = underseal.Header(path, writable=True)
        key = header.unlock(bytearray(b"secret")).reveal()
        self.refused(header.unlock)
        self.refused(lambda value: header.keyslot_change(value, "new", pbkdf=CHEAP))
        self.refused(lambda value: underseal.open(path, passphrase=value))
        self.refused(lambda value: underseal.open(path, key=value))
        self.refused(lambda value: underseal.open(path, type="tcrypt", passphrase="x", protect_hidden=(value, 1)))
        self.refused(lambda value: underseal.reencrypt(path, value))
        self.refused(lambda value: underseal.reencrypt(path, "secret", keep_passphrases=[value]))
        # A key is no text, and a list of one passphrase is no passphrase.
        with self.assertRaises(TypeError):
            underseal.open(path, key=key.decode("latin1"))
        for passphrases in ("two", b"two", bytearray(b"two")):
            with self.assertRaises(TypeError):
                underseal.reencrypt(path, "secret", keep_passphrases=passphrases)
        underseal.open(path, key=memoryview(key)).close()

    def test_the_shims_take_a_key_that_is_bytes(self):
        from underseal import dissect, pyluksde

        path = self.image()
        self.refused(pyluksde.volume().set_key)
        with open(path, "rb") as file:
            self.refused(dissect.LUKS(file).unlock)

    def test_data_are_bytes(self):
        with underseal.open(self.image(), passphrase="secret", writable=True) as volume:
            volume.write_at(0, b"A" * 8192)
            self.refused(lambda value: volume.write_at(0, value))
            self.refused(volume.write)
            for value in ("text", None):
                with self.assertRaises(TypeError):
                    volume.write_at(0, value)
            self.assertEqual(volume.read_at(0, 8192), b"A" * 8192)
            numbers = array.array("I", [1, 2, 3])
            for data in (numbers, memoryview(numbers), bytearray(b"bytes")):
                volume.write_at(100, data)
                self.assertEqual(volume.read_at(100, len(bytes(data))), bytes(data))
        path = self.folder + "/image"
        self.refused(lambda value: underseal.restore(path, value, force=True))

    def test_one_path_is_no_list_of_paths(self):
        path = self.folder + "/vera"
        with open(path, "wb") as file:
            file.truncate(1 << 20)
        key = self.folder + "/k"
        with open(key, "wb") as file:
            file.write(b"key")
        self.assertTrue(underseal.format_veracrypt(path, "", keyfiles=key, hash="sha512", pim=1, quick=True))
        underseal.open(path, type="tcrypt", passphrase="", keyfile=key, hash="sha512", pim=1).close()

    def test_an_empty_passphrase_protects_nothing_and_is_refused(self):
        path = self.image()
        header = underseal.Header(path, writable=True)
        key = header.unlock("secret")
        plain = self.folder + "/plain"
        with open(plain, "wb") as file:
            file.truncate(48 << 20)
        calls = (
            lambda empty: underseal.format(path, empty, pbkdf=CHEAP, force=True),
            lambda empty: header.keyslot_add(key, empty, pbkdf=CHEAP),
            lambda empty: header.keyslot_change("secret", empty, pbkdf=CHEAP),
            lambda empty: underseal.reencrypt(plain, empty, mode="encrypt", reduce=32 << 20, pbkdf=CHEAP),
        )
        for call in calls:
            for empty in ("", b""):
                with self.assertRaisesRegex(ValueError, "empty passphrase"):
                    call(empty)
        with open(plain, "rb") as file:
            self.assertEqual(file.read(4096), bytes(4096))
        self.assertTrue(self.opens("secret"))
        self.assertFalse(self.opens(""))


class Copies(Case):
    def test_a_volume_is_not_copied(self):
        with underseal.open(self.image(), passphrase="secret", writable=True) as volume:
            with volume.view() as view:
                for each in (volume, view):
                    for call in (copy.copy, copy.deepcopy, pickle.dumps):
                        with self.subTest(call=call), self.assertRaises(TypeError):
                            call(each)
            gc.collect()
            volume.write_at(0, b"x")


if __name__ == "__main__":
    unittest.main()
