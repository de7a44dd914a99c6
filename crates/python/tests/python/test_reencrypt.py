"""Reencryption and new VeraCrypt volumes: modes, progress, exceptions and signals."""

import doctest
import inspect
import io
import os
import signal
import threading
import time
import unittest

from case import CHEAP, Case

import underseal

STEP = {"hotzone_size": 1 << 20}


class Reencryption(Case):
    def setUp(self):
        super().setUp()
        self.path = self.image()
        self.plain = os.urandom(8 << 20)
        with underseal.open(self.path, passphrase="secret", writable=True) as volume:
            volume.write_at(0, self.plain)

    def check(self, **options):
        with underseal.open(self.path, passphrase="secret", **options) as volume:
            self.assertTrue(volume.read_at(0, len(self.plain)) == self.plain)
            return volume.info

    def is_under_way(self):
        return bool(underseal.info(self.path).get("requirements"))

    def test_a_volume_gets_another_cipher_and_tells_how_far_it_is(self):
        told = []
        done = underseal.reencrypt(
            self.path, "secret", cipher="serpent-xts-plain64", key_size=32, progress=lambda *n: told.append(n), **STEP
        )
        self.assertIs(done, True)
        self.assertEqual(told, [(n << 20, 8 << 20) for n in range(9)])
        self.assertEqual(self.check()["segments"][0]["cipher"], "serpent-xts-plain64")

    def test_a_progress_that_returns_false_stops_and_resume_goes_on(self):
        self.assertIs(underseal.reencrypt(self.path, "secret", progress=lambda done, _: done < 2 << 20, **STEP), False)
        self.assertTrue(self.is_under_way())
        self.check()
        with self.assertRaises(ValueError):
            underseal.reencrypt(self.path, "secret", mode="decrypt", header=self.path + ".header")
        self.assertIs(underseal.reencrypt(self.path, "secret", mode="resume"), True)
        self.assertFalse(self.is_under_way())
        self.check()
        with self.assertRaisesRegex(ValueError, "no reencryption is under way"):
            underseal.reencrypt(self.path, "secret", mode="resume")

    def test_a_bitlocker_volume_is_encrypted_and_overwritten_by_force_only(self):
        plain = bytearray(os.urandom(2 << 20))
        plain[3:11] = b"-FVE-FS-"
        path, header = self.path + ".bitlocker", self.path + ".header"
        with open(path, "xb") as file:
            file.write(plain)
        encrypt = {"mode": "encrypt", "header": header, "pbkdf": CHEAP}
        with self.assertRaisesRegex(ValueError, "BitLocker.*force"):
            underseal.reencrypt(path, "secret", **encrypt)
        with self.assertRaisesRegex(ValueError, "BitLocker.*force"):
            underseal.format(path, "secret", pbkdf=CHEAP)
        self.assertFalse(os.path.exists(header))
        self.assertIs(underseal.reencrypt(path, "secret", **encrypt, force=True), True)
        with underseal.open(path, passphrase="secret", header=header) as volume:
            self.assertTrue(volume.read_at(0, len(plain)) == plain)

    def test_an_exception_of_the_progress_stops_and_is_raised(self):
        class Enough(Exception):
            pass

        def progress(done, _):
            if done:
                raise Enough

        with self.assertRaises(Enough):
            underseal.reencrypt(self.path, "secret", progress=progress, **STEP)
        self.assertTrue(self.is_under_way())
        self.assertTrue(underseal.reencrypt(self.path, "secret", progress=lambda *_: None))
        self.check()

    def test_ctrl_c_stops_a_reencryption_without_a_progress(self):
        def interrupt():
            while not self.is_under_way():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            underseal.reencrypt(self.path, "secret", hotzone_size=4096)
            time.sleep(30)
        thread.join()
        self.assertTrue(self.is_under_way())
        self.assertTrue(underseal.reencrypt(self.path, "secret", mode="resume"))
        self.check()

    def test_data_are_encrypted_and_decrypted_with_a_header_in_a_file(self):
        header = os.path.join(self.folder, "header")
        with open(self.path, "wb") as file:
            file.write(self.plain)
        self.assertTrue(underseal.reencrypt(self.path, "secret", mode="encrypt", header=header, pbkdf=CHEAP, label="new"))
        self.assertEqual(self.check(header=header)["label"], "new")
        self.assertTrue(underseal.reencrypt(self.path, "secret", mode="decrypt", header=header))
        with open(self.path, "rb") as file:
            self.assertTrue(file.read() == self.plain)

    def test_a_file_object_is_reencrypted(self):
        with open(self.path, "rb") as file:
            lower = io.BytesIO(file.read())
        self.assertTrue(underseal.reencrypt(lower, "secret", **STEP))
        with underseal.open(lower, passphrase="secret") as volume:
            self.assertTrue(volume.read_at(0, len(self.plain)) == self.plain)

    def test_keyslots_and_words_that_do_not_fit(self):
        header = underseal.Header(self.path, writable=True)
        header.keyslot_add(header.unlock("secret"), "other", pbkdf=CHEAP)
        with self.assertRaisesRegex(ValueError, "keyslots 1 were not given"):
            underseal.reencrypt(self.path, "secret")
        self.assertRaises(ValueError, underseal.reencrypt, self.path, "secret", mode="improve")
        self.assertRaises(ValueError, underseal.reencrypt, self.path, "secret", resilience="hope")
        self.assertRaises(underseal.WrongPassphrase, underseal.reencrypt, self.path, "wrong")
        with underseal.open(self.path, passphrase="secret"):
            self.assertRaises(underseal.Busy, underseal.reencrypt, self.path, "secret", lose_keyslots=True)
        self.assertFalse(self.is_under_way())
        self.assertTrue(underseal.reencrypt(self.path, "secret", keep_passphrases=["other"]))
        self.assertEqual(len(underseal.Header(self.path).keyslots), 2)


class NewVeracryptVolumes(Case):
    def setUp(self):
        super().setUp()
        self.path = os.path.join(self.folder, "vera")
        with open(self.path, "wb") as file:
            file.truncate(1 << 20)

    def open(self, passphrase, **options):
        return underseal.open(self.path, type="tcrypt", passphrase=passphrase, pim=1, writable=True, **options)

    def test_a_normal_volume_and_a_hidden_one(self):
        outer, hidden = "a long outer passphrase", "a long hidden passphrase"
        self.assertIs(underseal.format_veracrypt(self.path, outer, pim=1), True)
        self.assertRaises(ValueError, underseal.format_veracrypt, self.path, hidden, pim=1, hidden_size=65536)
        self.assertTrue(underseal.format_veracrypt(self.path, hidden, pim=1, hidden_size=65536, force=True))
        with self.open(hidden, hidden=True) as volume:
            self.assertEqual(volume.size, 65536)
        with self.open(outer, protect_hidden=(hidden, 1)) as volume:
            self.assertRaises(OSError, volume.write_at, volume.size - 50000, b"x")

    def test_a_stop_leaves_nothing_that_opens(self):
        passphrase = "a passphrase that is long"
        told = []

        def stop(done, total):
            told.append((done, total))
            return False

        self.assertIs(underseal.format_veracrypt(self.path, passphrase, pim=1, progress=stop), False)
        self.assertEqual(told, [(131072, 1 << 20)])
        self.assertRaises(underseal.WrongPassphrase, self.open, passphrase)


class Docstrings(Case):
    def test_their_examples_run(self):
        names = ["disk.img", "vera.img"]
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        for name, size in zip(names, (24 << 20, 1 << 20)):
            with open(name, "wb") as file:
                file.truncate(size)
        underseal.format("disk.img", "correct horse", pbkdf=CHEAP)
        runner = doctest.DocTestRunner()
        tried = 0
        for name in ["__doc__", *underseal.__all__]:
            of = underseal if name == "__doc__" else getattr(underseal, name)
            text = inspect.getdoc(of) or ""
            if ">>>" in text:
                globs = dict(vars(underseal), underseal=underseal)
                test = doctest.DocTestParser().get_doctest(text, globs, name, None, 0)
                runner.run(test)
                tried += 1
        self.assertGreaterEqual(tried, 3)
        self.assertEqual(runner.failures, 0)


if __name__ == "__main__":
    unittest.main()
