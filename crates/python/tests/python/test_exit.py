"""The end of the interpreter while threads are in callbacks."""

import subprocess
import sys
import unittest

from case import Case

OBJECT = """
import atexit
# The first one that is registered is called last.
atexit.register(lambda: at_the_end())
at_the_end = lambda: None
import io, sys, threading, time, underseal

class Object(io.BytesIO):
    pause = 0

    def read(self, size=-1):
        time.sleep(self.pause)
        return super().read(size)

    def write(self, data):
        time.sleep(self.pause)
        return super().write(data)

    def flush(self):
        print("flushed", flush=True)

with open(sys.argv[1], "rb") as file:
    lower = Object(file.read())

def repeat(call):
    def forever():
        while True:
            call()
    threading.Thread(target=forever, daemon=True).start()
"""

#: Threads that are in a method of the object nearly always.
THREADS = """
volume = underseal.open(lower, passphrase="secret", writable=True)
lower.pause = 0.002
for _ in range(3):
    repeat(lambda: volume.read_at(0, 65536))
repeat(lambda: volume.write_at(0, b"x" * 4096))
repeat(volume.flush)
time.sleep(0.05)
"""

REENCRYPTION = """
lower.pause = 0.002
progress = lambda done, total: time.sleep(0.001)
repeat(lambda: underseal.reencrypt(lower, "secret", hotzone_size=1 << 16, progress=progress))
time.sleep(0.3)
"""

#: A method that returns as the interpreter is gone, or not at all.
SLOW = """
volume = underseal.open(lower, passphrase="secret")
lower.pause = 1000
repeat(lambda: volume.read_at(0, 65536))
time.sleep(0.05)
"""

#: A volume that is closed when other threads have no callbacks any more.
OPEN = """
volume = underseal.open(lower, passphrase="secret", writable=True)
repeat(volume.flush)
volume.write_at(0, b"x")

def at_the_end():
    time.sleep(0.05)
    volume.read_at(0, 1)
    print("closing", flush=True)
    volume.close()
"""


class Exit(Case):
    def ran(self, script):
        ran = subprocess.run(
            [sys.executable, "-c", OBJECT + script, self.folder + "/image"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def test_threads_in_an_objects_methods_do_not_end_the_process(self):
        self.image()
        for _ in range(8):
            self.assertIn("flushed", self.ran(THREADS))

    def test_a_reencryption_in_a_thread_does_not_end_the_process(self):
        self.image()
        for _ in range(4):
            self.ran(REENCRYPTION)

    def test_the_exit_waits_a_while_for_a_method_and_not_for_ever(self):
        self.image()
        self.ran(SLOW)

    def test_a_volume_that_is_closed_at_the_end_is_flushed(self):
        self.image()
        self.assertTrue(self.ran(OPEN).endswith("closing\nflushed\n"))


if __name__ == "__main__":
    unittest.main()
