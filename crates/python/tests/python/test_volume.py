"""Volumes, headers and shims beside real cryptsetup and the vectors of real kernels."""

import errno
import hashlib
import io
import json
import lzma
import os
import random
import subprocess
import tempfile
import threading
import unittest
import unittest.mock

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


class FileObjects(Case):
    def setUp(self):
        super().setUp()
        with open(self.image(), "rb") as file:
            self.bytes = file.read()

    def test_a_file_object_is_read(self):
        with underseal.open(self.folder + "/image", passphrase="secret") as volume:
            expected = volume.read_at(5, 100000)
        with underseal.open(io.BytesIO(self.bytes), passphrase="secret") as volume:
            self.assertEqual(volume.read_at(5, 100000), expected)
        self.assertEqual(underseal.info(io.BytesIO(self.bytes))["format"], "luks2")

    def test_objects_that_lie_raise_or_stop_are_exceptions(self):
        class Short(io.BytesIO):
            def seek(self, offset, whence=0):
                return super().seek(offset, whence)

            def read(self, size=-1):
                return super().read(min(size, 1000))

        with underseal.open(Short(self.bytes), passphrase="secret") as volume:
            self.assertEqual(len(volume.read_at(0, 8192)), 8192)

        class Raises(io.BytesIO):
            armed = False

            def read(self, size=-1):
                if self.armed:
                    raise OSError(errno.EREMOTEIO, "gone")
                return super().read(size)

        lower = Raises(self.bytes)
        with underseal.open(lower, passphrase="secret") as volume:
            lower.armed = True
            with self.assertRaises(OSError) as raised:
                volume.read_at(0, 4096)
            self.assertEqual(raised.exception.errno, errno.EREMOTEIO)
            lower.armed = False
            lower.close()
            self.assertRaises(OSError, volume.read_at, 0, 4096)

        class Lies(io.BytesIO):
            def read(self, size=-1):
                return b"x" * (size + 1)

        for lower in (Lies(self.bytes), object()):
            self.assertRaises(Exception, underseal.open, lower, passphrase="secret")

    def test_an_object_that_lies_about_its_size_or_fails_at_any_call_is_an_exception(self):
        class Sized(io.BytesIO):
            claims = 0

            def tell(self):
                return self.claims

        for claims in (0, 511, 1 << 20, len(self.bytes) + 1, 1 << 62):
            lower = Sized(self.bytes)
            lower.claims = claims
            with self.subTest(claims=claims):
                try:
                    with underseal.open(lower, passphrase="secret") as volume:
                        self.assertEqual(len(volume.read_at(0, 4096)), 4096)
                        if volume.size > 8 << 20:
                            self.assertRaises(OSError, volume.read_at, volume.size - 512, 512)
                except (ValueError, OSError):
                    self.assertLess(claims, len(self.bytes))
        for claims in (-1, 1 << 64, None, "x"):
            lower.claims = claims
            with self.subTest(claims=claims), self.assertRaises((OverflowError, TypeError, ValueError)):
                underseal.open(lower, passphrase="secret")

        class Fails(io.BytesIO):
            left = 0

            def read(self, size=-1):
                self.left -= 1
                if self.left < 0:
                    raise RuntimeError("no more")
                return super().read(size)

        for calls in range(500):
            lower = Fails(self.bytes)
            lower.left = calls
            try:
                with underseal.open(lower, passphrase="secret") as volume:
                    volume.read_at(0, 8192)
                break
            except OSError as e:
                self.assertIn("no more", str(e))
        self.assertTrue(3 < calls < 499, calls)

    def test_an_object_that_returns_no_bytes_is_an_exception(self):
        for value in (None, "text", bytearray(9), memoryview(b"abc"), 5):

            class Odd(io.BytesIO):
                def read(self, size=-1):
                    return value

            with self.subTest(value=value), self.assertRaises((OSError, ValueError)):
                underseal.open(Odd(self.bytes), passphrase="secret")

    def test_another_thread_closes_the_volume_or_the_object_while_one_reads(self):
        class Slow(io.BytesIO):
            reads = None

            def read(self, size=-1):
                if self.reads is not None:
                    self.reads.set()
                    self.goes_on.wait(30)
                return super().read(size)

        for closed in ("volume", "object"):
            lower = Slow(self.bytes)
            volume = underseal.open(lower, passphrase="secret")
            expected = volume.read_at(0, 4096)
            lower.goes_on, lower.reads = threading.Event(), threading.Event()
            results = []

            def read():
                try:
                    results.append(volume.read_at(0, 4096))
                except OSError as e:
                    results.append(e)

            reader = threading.Thread(target=read)
            reader.start()
            self.assertTrue(lower.reads.wait(30))
            (volume if closed == "volume" else lower).close()
            lower.goes_on.set()
            reader.join(30)
            self.assertFalse(reader.is_alive())
            if closed == "volume":
                # The call ends as if the volume were open; the next one fails.
                self.assertEqual(results, [expected])
                self.assertRaises(ValueError, volume.read_at, 0, 1)
            else:
                self.assertIsInstance(results[0], OSError)
                self.assertIn("closed file", str(results[0]))
                volume.close()

    def test_an_object_that_uses_its_own_volume_while_it_writes_fails_instead_of_waiting(self):
        class Recursive(io.BytesIO):
            volume = None

            def write(self, data):
                if self.volume is not None:
                    self.volume.read_at(0, 16)
                return super().write(data)

        lower = Recursive(self.bytes)
        with underseal.open(lower, passphrase="secret", writable=True) as volume:
            lower.volume = volume
            with self.assertRaises(OSError) as raised:
                volume.write_at(0, b"x" * 4096)
            self.assertEqual(raised.exception.errno, errno.EDEADLK)
            lower.volume = None
            volume.write_at(0, b"x" * 4096)

    def test_an_object_that_uses_its_own_header_fails_instead_of_waiting(self):
        class Recursive(io.BytesIO):
            header = None

            def write(self, data):
                return self.header.info and super().write(data)

        lower = Recursive(self.bytes)
        lower.header = underseal.Header(lower, writable=True)
        with self.assertRaises(OSError) as raised:
            lower.header.keyslot_change("secret", "other", pbkdf=CHEAP)
        self.assertEqual(raised.exception.errno, errno.EDEADLK)
        self.assertEqual(lower.header.type, "luks2")

    def test_an_interrupt_in_an_object_is_the_callers(self):
        class Interrupted(io.BytesIO):
            armed = False

            def read(self, size=-1):
                if self.armed:
                    raise KeyboardInterrupt
                return super().read(size)

        lower = Interrupted(self.bytes)
        with underseal.open(lower, passphrase="secret") as volume:
            lower.armed = True
            self.assertRaises(KeyboardInterrupt, volume.read_at, 0, 4096)
            lower.armed = False
            self.assertEqual(len(volume.read_at(0, 4096)), 4096)

    def test_a_flush_and_header_changes_sync_the_objects_file(self):
        path = self.image()
        done = []
        real = os.fsync

        class Counted(io.FileIO):
            def flush(self):
                done.append("flush")

        def fsync(number):
            done.append(number)
            real(number)

        with Counted(path, "r+") as lower, unittest.mock.patch("os.fsync", fsync):
            with underseal.open(lower, passphrase="secret", writable=True) as volume:
                volume.write_at(0, b"x")
                volume.flush()
                self.assertEqual(done, ["flush", lower.fileno()])
            del done[:]
            underseal.Header(lower).keyslot_change("secret", "other", pbkdf=CHEAP)
            # Each step of the change is on disk before the next one begins.
            self.assertGreater(done.count(lower.fileno()), 3)
            self.assertEqual(done, ["flush", lower.fileno()] * (len(done) // 2))
        # A file in memory has no descriptor, and one that fails is an exception.
        with underseal.open(io.BytesIO(self.bytes), passphrase="secret", writable=True) as volume:
            volume.flush()

        class Broken(io.BytesIO):
            def fileno(self):
                return 1 << 20

        with self.assertRaises(OSError) as raised:
            with underseal.open(Broken(self.bytes), passphrase="secret", writable=True) as volume:
                volume.flush()
        self.assertEqual(raised.exception.errno, errno.EBADF)

    def test_an_object_that_reads_from_its_own_volume_fails_instead_of_waiting(self):
        class Recursive(io.BytesIO):
            volume = None

            def read(self, size=-1):
                if self.volume is not None:
                    return self.volume.read_at(0, size)
                return super().read(size)

        lower = Recursive(self.bytes)
        with underseal.open(lower, passphrase="secret") as volume:
            lower.volume = volume
            self.assertRaises(OSError, volume.read_at, 0, 4096)


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
        locked.set_password("wrong")
        self.assertFalse(locked.unlock())
        locked.close()

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
