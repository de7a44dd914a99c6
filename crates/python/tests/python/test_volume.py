"""Volumes, headers and shims beside real cryptsetup and the vectors of real kernels."""

import errno
import hashlib
import io
import json
import os
import random
import subprocess
import threading
import unittest

from case import CHEAP, VECTORS, Case

import underseal


class Vectors(Case):
    def test_volumes_of_a_real_kernel_read_back_exactly(self):
        count = 0
        for manifest in "basic.json", "integrity.json":
            with open(os.path.join(VECTORS, manifest)) as file:
                images = json.load(file)["images"]
            for name, about in images.items():
                files = [self.vector(each) for each in about["files"]]
                header = {"header": files[1]} if len(files) > 1 else {}
                key = bytes.fromhex(about["volume_key"])
                with self.subTest(name), underseal.open(files[0], key=key, **header) as volume:
                    data = volume.read(about["data_bytes"])
                    self.assertEqual(hashlib.sha256(data).hexdigest(), about["plain_sha256"])
                    count += 1
        self.assertEqual(count, 29)


class Files(Case):
    def test_a_volume_is_a_binary_file(self):
        path = self.image()
        with underseal.open(path, passphrase="secret", writable=True) as volume:
            self.assertIsInstance(volume, io.RawIOBase)
            self.assertEqual((volume.size, volume.sector_size), (8 << 20, 4096))
            volume.seek(1000)
            self.assertEqual(volume.write(b"x" * 5000), 5000)
            self.assertEqual(volume.tell(), 6000)
            volume.flush()
            volume.seek(-10, os.SEEK_END)
            self.assertEqual(volume.write(bytes(20)), 10)
            with self.assertRaises(OSError) as raised:
                volume.write(b"x")
            self.assertEqual(raised.exception.errno, errno.ENOSPC)
            self.assertEqual(volume.read(1), b"")
            volume.seek(1 << 40)
            self.assertEqual(volume.read(1), b"")
        with underseal.open(path, passphrase="secret") as volume:
            text = io.BufferedReader(volume)
            text.seek(999)
            self.assertEqual(text.read(5002)[1:-1], b"x" * 5000)
            self.assertFalse(volume.writable())
            with self.assertRaises(io.UnsupportedOperation):
                volume.write(b"x")
        self.assertTrue(volume.closed)
        with self.assertRaises(ValueError):
            volume.read(1)
        with self.assertRaises(ValueError):
            volume.read_at(0, 1)

    def test_random_ranges_are_what_the_model_says(self):
        seed = random.randrange(1 << 32)
        chance = random.Random(seed)
        with underseal.open(self.image(sector_size=512), passphrase="secret", writable=True) as volume:
            model = bytearray(volume.read())
            for _ in range(300):
                offset, length = chance.randrange(len(model)), chance.randrange(1, 20000)
                if chance.random() < 0.5:
                    data = chance.randbytes(min(length, len(model) - offset))
                    volume.write_at(offset, data)
                    model[offset : offset + len(data)] = data
                else:
                    buffer = bytearray(length)
                    count = volume.readinto_at(offset, buffer)
                    self.assertEqual(buffer[:count], model[offset : offset + length], f"seed {seed}")
            self.assertEqual(volume.read_at(0, len(model)), model, f"seed {seed}")
            for offset, length in (-1, 1), (1, -1):
                self.assertRaises(ValueError, volume.read_at, offset, length)
            self.assertRaises(ValueError, volume.write_at, len(model) - 1, b"xx")

    def test_threads_read_at_once_and_one_closes(self):
        path = self.image()
        with underseal.open(path, passphrase="secret") as volume:
            whole = volume.read()
        volume = underseal.open(path, passphrase="secret")
        wrong = []

        def read(seed):
            chance = random.Random(seed)
            try:
                for _ in range(3000):
                    offset = chance.randrange(len(whole) - 5000)
                    if volume.read_at(offset, 5000) != whole[offset : offset + 5000]:
                        wrong.append(offset)
            except ValueError:
                pass

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        volume.close()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def test_a_fork_reads_on(self):
        with underseal.open(self.image(), passphrase="secret") as volume:
            expected = volume.read_at(100, 100)
            child = os.fork()
            if child == 0:
                os._exit(0 if volume.read_at(100, 100) == expected else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)


class Refusals(Case):
    def test_each_failure_is_a_kind_of_pythons_own(self):
        path = self.image()
        plain = os.path.join(self.folder, "plain")
        with open(plain, "wb") as file:
            file.truncate(1 << 20)
        with self.assertRaises(underseal.WrongPassphrase) as raised:
            underseal.open(path, passphrase="wrong")
        self.assertIsInstance(raised.exception, PermissionError)
        self.assertIn(path, str(raised.exception))
        self.assertRaises(underseal.NotEncrypted, underseal.open, plain, passphrase="x")
        self.assertRaises(FileNotFoundError, underseal.open, plain + "x", passphrase="x")
        self.assertRaises(ValueError, underseal.open, path)
        self.assertRaises(ValueError, underseal.format, path, "x", pbkdf=CHEAP)
        self.assertRaises(ValueError, underseal.format, path, "x", pbkdf=("scrypt", 1), force=True)
        with underseal.open(path, passphrase="secret", writable=True):
            self.assertRaises(underseal.Busy, underseal.open, path, passphrase="secret")

    def test_cut_and_damaged_images_are_exceptions(self):
        path = self.image()
        with open(path, "rb") as file:
            whole = file.read()
        chance = random.Random(1)
        for cut in (0, 5, 512, 4096, 32768, 1 << 20, (16 << 20) + 1):
            with self.subTest(cut=cut), self.assertRaises((ValueError, OSError, NotImplementedError)):
                underseal.open(io.BytesIO(whole[:cut]), passphrase="secret")
        for _ in range(50):
            damaged = bytearray(whole[: 1 << 16])
            for _ in range(3):
                damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            try:
                underseal.open(io.BytesIO(damaged + whole[1 << 16 :]), passphrase="secret").close()
            except (ValueError, OSError, NotImplementedError):
                pass


class Headers(Case):
    def opens(self, path, passphrase):
        run = subprocess.run(
            ["cryptsetup", "open", "--test-passphrase", "--key-file", "-", path],
            input=passphrase.encode(),
            stderr=subprocess.DEVNULL,
        )
        return run.returncode == 0

    def test_keyslots_come_change_and_go_and_cryptsetup_opens_them(self):
        path = self.image(label="work")
        header = underseal.Header(path, writable=True)
        self.assertEqual((header.type, header.label, len(header.keyslots)), ("luks2", "work", 1))
        key = header.unlock("secret")
        self.assertEqual(repr(key), "VolumeKey([redacted])")
        self.assertEqual(header.keyslot_add(key, "two", number=4, pbkdf=CHEAP), 4)
        self.assertEqual(header.keyslot_change("two", "three", pbkdf=CHEAP), 4)
        backup = header.backup()
        header.keyslot_remove(0)
        self.assertRaises(ValueError, header.keyslot_remove, 4)
        self.assertEqual([self.opens(path, p) for p in ("secret", "two", "three")], [False, False, True])
        underseal.restore(path, backup)
        self.assertTrue(self.opens(path, "secret"))
        self.assertTrue(underseal.check(path)["sound"])
        with underseal.open(path, key=key.reveal()) as volume:
            self.assertEqual(volume.segments[0].start, 0)


class Shims(Case):
    def test_pyluksde(self):
        from underseal import pyluksde

        path = self.image(version=1)
        with underseal.open(path, passphrase="secret", writable=True) as volume:
            volume.write_at(3, b"bytes")
            size = volume.size
        self.assertTrue(pyluksde.check_volume_signature(path))
        self.assertRaises(TypeError, pyluksde.open, None)
        self.assertRaises(ValueError, pyluksde.open, path, mode="w")
        volume = pyluksde.volume()
        volume.set_password("secret")
        with open(path, "rb") as file:
            volume.open_file_object(file)
            self.assertFalse(volume.is_locked())
            self.assertEqual(volume.read_buffer_at_offset(5, 3), b"bytes")
            self.assertEqual((volume.get_offset(), volume.get_size()), (8, size))
            self.assertRaises(ValueError, volume.read_buffer, -1)
            self.assertRaises(ValueError, volume.read_buffer_at_offset, 1, -1)
            self.assertEqual((volume.get_encryption_method(), volume.encryption_chaining_mode), (2, 4))
            self.assertEqual(volume.get_volume_identifier(), underseal.info(path)["uuid"])
            volume.close()
        locked = pyluksde.open(path)
        self.assertTrue(locked.is_locked())
        self.assertRaises(IOError, locked.read, 1)
        self.assertEqual(locked.get_size(), size)
        locked.set_password("wrong")
        self.assertFalse(locked.unlock())
        locked.close()
        self.assertRaises(IOError, locked.get_size)
        with open(path, "rb") as file:
            locked.open_file_object(file)
            self.assertEqual((locked.is_locked(), locked.size), (True, size))

    def test_dissect(self):
        from underseal.dissect import LUKS, is_luks_volume

        path = self.image(label="x")
        with open(path, "rb") as file:
            whole = file.read()
        self.assertTrue(is_luks_volume(io.BytesIO(bytes(4096) + whole[4096:])))
        self.assertFalse(is_luks_volume(io.BytesIO(bytes(1 << 16))))
        with open(path, "rb") as file:
            self.assertTrue(is_luks_volume(file))
            luks = LUKS(file)
            self.assertEqual((luks.unlocked, luks.label, list(luks.keyslots)), (False, "x", [0]))
            self.assertRaises(ValueError, luks.unlock_with_passphrase, "wrong")
            self.assertRaises(ValueError, luks.open)
            luks.unlock_with_passphrase("secret")
            self.assertEqual(luks.find_segment(luks._active_keyslot_id).encryption, "aes-xts-plain64")
            self.assertEqual(str(luks.uuid), underseal.info(file.name)["uuid"])
            first, second = luks.open(), luks.open()
            self.assertEqual(first.read(10), second.read(10))
            first.close()
            self.assertEqual(len(second.read(10)), 10)
            second.close()


if __name__ == "__main__":
    unittest.main()
