"""File objects as lower devices: sound ones, and ones that lie, fail or are closed."""

import errno
import gzip
import io
import os
import sys
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

    def test_an_object_that_flushes_its_own_volume_fails_and_the_volume_stays_sound(self):
        class Recursive(io.BytesIO):
            uses = None
            flushes = 0

            def flush(self):
                if self.uses is not None:
                    self.uses()
                self.flushes += 1

        lower = Recursive(self.bytes)
        errors = []

        def catching(call):
            def caught():
                with self.assertRaises(OSError) as raised:
                    call()
                errors.append(raised.exception.errno)

            return caught

        with underseal.open(lower, passphrase="secret", writable=True) as volume:
            volume.write_at(0, b"x" * 4096)
            calls = (volume.flush, lambda: volume.read_at(0, 1), lambda: underseal.info(lower))
            for call in calls:
                lower.uses = catching(call)
                volume.flush()
            self.assertEqual(errors, [errno.EDEADLK] * 3)
            flushes, lower.uses = lower.flushes, None
            volume.flush()
            self.assertEqual(lower.flushes, flushes + 1)
            lower.uses = volume.flush
            with self.assertRaises(OSError) as raised:
                volume.flush()
            self.assertEqual(raised.exception.errno, errno.EDEADLK)
            # That flush of the object has failed: what it was to keep may be lost.
            lower.uses = None
            self.assertRaises(OSError, volume.flush)
            volume.flush = lambda: None

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

    def test_one_user_at_a_time_moves_an_objects_position(self):
        class Counted(io.BytesIO):
            def __init__(self, data):
                super().__init__(data)
                self.calls = []

            def note(self, name):
                self.calls.append((threading.get_ident(), name))

            def seek(self, offset, whence=0):
                self.note("seek")
                return super().seek(offset, whence)

            def read(self, size=-1):
                self.note("use")
                return super().read(size)

            def write(self, data):
                self.note("use")
                return super().write(data)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        self.addCleanup(sys.setswitchinterval, interval)
        path = self.image()
        with open(path, "r+b") as file:
            for lower in (Counted(self.bytes), file):
                with underseal.open(lower, passphrase="secret", writable=True) as volume:
                    stop = threading.Event()

                    def look():
                        while not stop.is_set():
                            underseal.info(lower)

                    looker = threading.Thread(target=look)
                    looker.start()
                    for block in range(300):
                        volume.write_at(block * 512, b"x" * 512)
                    stop.set()
                    looker.join(30)
                    self.assertEqual(volume.read_at(0, 300 * 512), b"x" * 300 * 512)
                underseal.open(lower, passphrase="secret").close()
                calls = getattr(lower, "calls", [])
                for (seeker, name), (user, after) in zip(calls, calls[1:]):
                    if name == "seek" and after == "use":
                        self.assertEqual(seeker, user)

    def test_a_header_on_a_buffered_file_sees_what_other_programs_changed(self):
        for version, buffering in ((1, 8192), (2, 65536)):
            path = self.image(version=version)
            with open(path, "r+b", buffering=buffering) as lower:
                header = underseal.Header(lower)
                theirs = underseal.Header(path, writable=True)
                theirs.keyslot_add(theirs.unlock("secret"), "theirs", pbkdf=CHEAP)
                underseal.info(lower)
                try:
                    header.keyslot_add(header.unlock("secret"), "ours", pbkdf=CHEAP)
                except underseal.Busy:
                    pass
                underseal.open(path, passphrase="theirs").close()

    def test_a_child_changes_nothing_that_its_parent_has_opened(self):
        path = self.image()
        with open(path, "r+b") as lower:
            for device in (path, lower):
                header = underseal.Header(device, writable=True)
                key = header.unlock("secret")
                with underseal.open(device, passphrase="secret", writable=True) as volume:
                    changes = (
                        lambda: volume.write_at(0, b"x"),
                        lambda: header.keyslot_add(key, "new", pbkdf=CHEAP),
                    )
                    child = os.fork()
                    if child == 0:
                        refused = 0
                        try:
                            volume.read_at(0, 512)
                            for change in changes:
                                try:
                                    change()
                                except OSError as e:
                                    refused += "fork" in str(e)
                        finally:
                            os._exit(refused)
                    self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 2)
                    for change in changes:
                        change()
                header.keyslot_remove(1)

    def test_an_object_that_writes_at_its_end_is_an_exception(self):
        path = self.image()
        with open(path, "a+b") as lower:
            with underseal.open(lower, passphrase="secret", writable=True) as volume:
                volume.write_at(0, b"somewhere")
                volume.flush()
            header = underseal.Header(lower)
            header.keyslot_add(header.unlock("secret"), "new", pbkdf=CHEAP)
        with underseal.open(path, passphrase="new") as volume:
            self.assertEqual(volume.read_at(0, 9), b"somewhere")
        self.assertEqual(os.path.getsize(path), len(self.bytes))

        class Appends(io.BytesIO):
            def write(self, data):
                self.seek(0, 2)
                return super().write(data)

        with self.assertRaises(OSError) as raised:
            with underseal.open(Appends(self.bytes), passphrase="secret", writable=True) as volume:
                volume.write_at(0, b"elsewhere")
        self.assertIn("another place", str(raised.exception))

    def test_an_object_that_shows_other_bytes_than_its_file_is_read_by_its_methods(self):
        packed = self.folder + "/packed"
        with gzip.open(packed, "wb", compresslevel=1) as file:
            file.write(self.bytes)
        with gzip.open(packed, "rb") as lower:
            self.assertEqual(underseal.info(lower)["format"], "luks2")

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

    def test_an_interrupt_belongs_to_the_call_that_it_came_in(self):
        class Interrupted(io.BytesIO):
            interrupts = 0

            def read(self, size=-1):
                if self.interrupts:
                    self.interrupts -= 1
                    raise KeyboardInterrupt
                return super().read(size)

            def flush(self):
                if self.fails:
                    raise OSError(errno.ENOSPC, "full")

            fails = False

        lower = Interrupted(self.bytes)
        # The second header copy would do instead.
        lower.interrupts = 1
        self.assertRaises(
            KeyboardInterrupt, underseal.open, lower, passphrase="secret", writable=True
        )
        volume = underseal.open(lower, passphrase="secret", writable=True)
        volume.write_at(0, bytes(4096))
        lower.fails = True
        with self.assertRaises(OSError) as raised:
            volume.flush()
        self.assertEqual(raised.exception.errno, errno.ENOSPC)


if __name__ == "__main__":
    unittest.main()
