"""File objects as lower devices: sound ones, and ones that lie, fail or are closed."""

import errno
import io
import os
import threading
import unittest
import unittest.mock

from case import CHEAP, Case

import underseal


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
                # Opening puts the header on the disk.
                self.assertEqual(done, ["flush", lower.fileno()] * (len(done) // 2))
                del done[:]
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

    def test_an_objects_file_is_locked_like_one_that_is_opened_by_its_path(self):
        path = self.image()
        with open(path, "r+b") as lower:
            with underseal.open(lower, passphrase="secret", writable=True):
                self.assertRaises(underseal.Busy, underseal.open, path, passphrase="secret")
                with open(path, "rb") as other:
                    self.assertRaises(underseal.Busy, underseal.open, other, passphrase="secret")
            with underseal.open(path, passphrase="secret") as reader:
                self.assertRaises(
                    underseal.Busy, underseal.open, lower, passphrase="secret", writable=True
                )
                with open(path, "rb") as other, underseal.open(other, passphrase="secret") as volume:
                    self.assertEqual(volume.read_at(0, 512), reader.read_at(0, 512))

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


if __name__ == "__main__":
    unittest.main()
