"""A volume that was opened before a fork: what the child may do with it."""

import contextlib
import fcntl
import gc
import glob
import io
import os
import signal
import socket
import subprocess
import threading
import time
import unittest

import underseal
from case import Case


def refusals(*calls):
    """Forks; returns how many of the calls the child was refused, by the reason. A child that
    hangs is ended after half a minute."""
    child = os.fork()
    if child == 0:
        refused = 0
        try:
            signal.alarm(30)
            for call in calls:
                try:
                    call()
                except OSError as e:
                    refused += "fork" in str(e)
            gc.collect()
        finally:
            os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Forks(Case):
    @contextlib.contextmanager
    def server(self, image):
        address = os.path.join(self.folder, "nbd")
        server = subprocess.Popen(["qemu-nbd", "--socket", address, "--persistent", "--shared=8", "-f", "raw", image])
        try:
            while not self.accepts(address):
                self.assertIsNone(server.poll())
                time.sleep(0.05)
            yield "nbd+unix:///?socket=" + address
        finally:
            # qemu-nbd may lose a SIGTERM as it begins.
            server.kill()
            server.wait()

    @staticmethod
    def accepts(path):
        """Whether a server listens: its socket's name is there a moment before."""
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(path) == 0

    def test_a_child_discards_nothing(self):
        with underseal.open(self.image(), passphrase="secret", writable=True, allow_discards=True) as volume:
            volume.write_at(0, b"x" * 65536)
            volume.flush()
            self.assertEqual(refusals(lambda: volume.discard(0, 65536)), 1)
            self.assertEqual(volume.read_at(0, 65536), b"x" * 65536)
            volume.discard(0, 65536)

    def test_a_child_leaves_an_authenticated_volume_alone(self):
        path = self.vector("luks2-int-hmac-sha256-xts-512.img.xz")
        volume = underseal.open(path, passphrase="r3 golden passphrase", writable=True)
        volume.write_at(0, b"before")
        calls = (lambda: volume.write_at(0, b"x"), lambda: volume.read_at(0, 512), volume.flush, volume.close)
        self.assertEqual(refusals(*calls), 4)
        held = [volume]
        del volume
        # The child that lets go of the object waits for no thread.
        self.assertEqual(refusals(held.clear), 0)
        [volume] = held
        volume.write_at(6, b"after")
        volume.close()
        with underseal.open(path, passphrase="r3 golden passphrase") as volume:
            self.assertEqual(volume.read_at(0, 11), b"beforeafter")

    def test_a_connection_is_of_the_process_that_opened_it(self):
        with self.server(self.image()) as address:
            with underseal.open(address, passphrase="secret", writable=True) as volume:
                volume.write_at(0, b"before")
                self.assertEqual(refusals(lambda: volume.read_at(0, 6), volume.flush, volume.close), 3)
                volume.write_at(6, b"after")
                volume.flush()
                self.assertEqual(volume.read_at(0, 11), b"beforeafter")

    @contextlib.contextmanager
    def thread(self, work):
        """Repeats a call in another thread."""
        is_over = threading.Event()

        def repeat():
            while not is_over.is_set():
                work()

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def test_a_child_reads_while_its_parent_writes(self):
        data = os.urandom(1 << 20)
        with underseal.open(self.image(), passphrase="secret", writable=True) as volume:
            with self.thread(lambda: volume.write_at(0, data)):
                for _ in range(20):
                    time.sleep(0.01)
                    calls = (lambda: volume.read_at(4 << 20, 512), lambda: volume.write_at(4 << 20, b"x"), volume.flush)
                    self.assertEqual(refusals(*calls), 2)

    def test_a_child_is_refused_at_once_while_its_parent_writes(self):
        data = os.urandom(1 << 20)
        with self.server(self.image()) as address:
            authenticated = self.vector("luks2-int-hmac-sha256-xts-512.img.xz")
            for path, passphrase in ((address, "secret"), (authenticated, "r3 golden passphrase")):
                with underseal.open(path, passphrase=passphrase, writable=True) as volume:
                    with self.thread(lambda: volume.write_at(0, data)):
                        for _ in range(5):
                            time.sleep(0.02)
                            calls = (lambda: volume.read_at(4096, 512), lambda: volume.write_at(0, b"x"), volume.flush)
                            self.assertEqual(refusals(*calls), 3)

    def test_a_child_leaves_a_file_object_alone(self):
        with open(self.image(), "rb") as file:
            lower = io.BytesIO(file.read())
        with underseal.open(lower, passphrase="secret", writable=True) as volume:
            with self.thread(lambda: volume.write_at(0, b"x" * 65536)):
                for _ in range(5):
                    time.sleep(0.01)
                    self.assertEqual(refusals(lambda: volume.read_at(0, 512), volume.flush), 2)

    def test_a_child_opens_an_object_anew_that_a_thread_of_its_parent_uses(self):
        class Slow(io.BytesIO):
            pause = 0

            def read(self, size=-1):
                time.sleep(self.pause)
                return super().read(size)

        with open(self.image(), "rb") as file:
            lower = Slow(file.read())
        with underseal.open(lower, passphrase="secret") as volume:
            lower.pause = 0.02
            with self.thread(lambda: volume.read_at(0, 512)):
                time.sleep(0.05)
                child = os.fork()
                if child == 0:
                    try:
                        signal.alarm(30)
                        lower.pause = 0
                        underseal.open(lower, passphrase="secret").close()
                    finally:
                        os._exit(0)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_a_child_waits_for_no_thread_that_uses_a_header(self):
        header = underseal.Header(self.image(), writable=True)
        key = header.unlock("secret")
        adds = threading.Thread(target=lambda: header.keyslot_add(key, "new", pbkdf=("pbkdf2", 3000000)))
        adds.start()
        time.sleep(0.2)
        self.assertEqual(refusals(header.backup), 1)
        adds.join()
        self.assertEqual(refusals(header.backup), 0)

    def test_a_child_leaves_its_parents_lock_of_reencryptions_alone(self):
        with underseal.open(self.image(), passphrase="secret", writable=True) as volume:
            lock = glob.glob("/run/cryptsetup/LN_LUKS2-reencryption-" + volume.info["uuid"])
            if not lock:
                self.skipTest("only root takes the lock of reencryptions")
            held = [volume]
            for let_go in (volume._close_image, held.clear):
                self.assertEqual(refusals(let_go), 0)
                with open(lock[0]) as file, self.assertRaises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.assertFalse(os.path.exists(lock[0]))

    def test_a_child_reads_a_header_under_a_lock_of_its_own(self):
        path = self.image()
        header = underseal.Header(path, writable=True)
        [number] = [n for n in os.listdir("/proc/self/fd") if os.path.realpath("/proc/self/fd/" + n) == path]
        fcntl.flock(int(number), fcntl.LOCK_SH)
        self.assertEqual(refusals(header.backup), 0)
        with open(path) as other, self.assertRaises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_an_export_has_one_writer(self):
        with self.server(self.image()) as address:
            with underseal.open(address, passphrase="secret", writable=True):
                with self.assertRaises(underseal.Busy):
                    underseal.open(address, passphrase="secret", writable=True)
                underseal.open(address, passphrase="secret").close()
            underseal.open(address, passphrase="secret", writable=True).close()


if __name__ == "__main__":
    unittest.main()
