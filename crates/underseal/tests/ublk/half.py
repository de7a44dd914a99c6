"""half.py N QUEUES WHERE: begins to take over /dev/ublkcN as the next server does, and dies there: once it has begun, once it has
mapped the descriptors of a queue, or once so many queues fetch their requests."""
import ctypes, mmap, os, struct, sys, threading, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
SETUP, ENTER = 425, 426
URING_CMD, SQE128 = 46, 1 << 10
GET_INFO, START_RECOVERY = 0x80207502, 0xC0207510
FETCH = 0xC0107520


class Ring:
    """A ring of the calling thread."""

    def __init__(self, entries, flags=0):
        self.params = bytearray(120)
        struct.pack_into("I", self.params, 8, flags)
        self.each = 128 if flags & SQE128 else 64
        self.fd = libc.syscall(SETUP, entries, (ctypes.c_char * 120).from_buffer(self.params))
        assert self.fd >= 0, os.strerror(ctypes.get_errno())
        self.entries = struct.unpack_from("I", self.params, 0)[0]
        cq_entries = struct.unpack_from("I", self.params, 4)[0]
        self.sq = struct.unpack_from("10I", self.params, 40)
        self.cq = struct.unpack_from("10I", self.params, 80)
        size = max(self.sq[6] + 4 * self.entries, self.cq[5] + 16 * cq_entries)
        self.rings = mmap.mmap(self.fd, size, offset=0)
        self.sqes = mmap.mmap(self.fd, self.each * self.entries, offset=0x10000000)
        self.count = 0

    def push(self, fd, operation, payload):
        at = self.count
        entry = struct.pack("=BBHiQ", URING_CMD, 0, 0, fd, operation) + bytes(32) + payload
        entry = entry.ljust(self.each, b"\0")
        self.sqes[at * self.each:(at + 1) * self.each] = entry
        struct.pack_into("I", self.rings, self.sq[6] + 4 * at, at)
        self.count += 1

    def submit(self, wait):
        struct.pack_into("I", self.rings, self.sq[1], self.count)
        done = libc.syscall(ENTER, self.fd, self.count, wait, 1 if wait else 0, None, 0)
        assert done == self.count, (done, os.strerror(ctypes.get_errno()))

    def answers(self):
        head, tail = (struct.unpack_from("I", self.rings, self.cq[at])[0] for at in (0, 1))
        return [struct.unpack_from("i", self.rings, self.cq[5] + 16 * at + 8)[0] for at in range(head, tail)]


def control(number, operation, into=None):
    """One command to the driver; its answer."""
    ring = Ring(1, SQE128)
    address = ctypes.addressof(ctypes.c_char.from_buffer(into)) if into else 0
    command = struct.pack("=IHHQQHHI", number, 0xFFFF, len(into or b""), address, 0, 0, 0, 0)
    ring.push(os.open("/dev/ublk-control", os.O_RDWR), operation, command)
    ring.submit(1)
    return ring.answers()[0]


number, where = int(sys.argv[1]), sys.argv[2]
while (answer := control(number, START_RECOVERY)) == -16:
    time.sleep(0.05)
assert answer == 0, os.strerror(-answer)
if where == "begun":
    os._exit(0)
info = bytearray(64)
assert control(number, GET_INFO, info) == 0
queues, depth = struct.unpack_from("HH", info)
device = os.open(f"/dev/ublkc{number}", os.O_RDWR)
if where == "mapped":
    assert libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, device, 0) != ctypes.c_void_p(-1).value
    os._exit(0)


def fetch(queue, ready):
    ring = Ring(depth)
    for tag in range(depth):
        ring.push(device, FETCH, struct.pack("=HHiQ", queue, tag, 0, 0))
    ring.submit(0)
    assert ring.answers() == [], ring.answers()
    ready.release()
    threading.Event().wait()


ready = threading.Semaphore(0)
for queue in range(int(where)):
    threading.Thread(target=fetch, args=(queue, ready), daemon=True).start()
    ready.acquire()
os._exit(0)
