"""A volume that was opened before a fork: what the child may do with it."""

import contextlib
import gc
import os
import signal
import subprocess
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
        socket = os.path.join(self.folder, "nbd")
        server = subprocess.Popen(["qemu-nbd", "--socket", socket, "--persistent", "--shared=8", "-f", "raw", image])
        try:
            while not os.path.exists(socket):
                self.assertIsNone(server.poll())
                time.sleep(0.05)
            yield "nbd+unix:///?socket=" + socket
        finally:
            server.terminate()
            server.wait()

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

    def test_an_export_has_one_writer(self):
        with self.server(self.image()) as address:
            with underseal.open(address, passphrase="secret", writable=True):
                with self.assertRaises(underseal.Busy):
                    underseal.open(address, passphrase="secret", writable=True)
                underseal.open(address, passphrase="secret").close()
            underseal.open(address, passphrase="secret", writable=True).close()


if __name__ == "__main__":
    unittest.main()
