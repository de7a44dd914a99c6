"""libnbd's calls, one after the other and many at once. libnbd.py URI discards|no-discards SEED"""

import errno
import random
import sys

import nbd

uri, discards, seed = sys.argv[1], sys.argv[2] == "discards", int(sys.argv[3])
rng = random.Random(seed)
KIB, MIB = 1 << 10, 1 << 20


def connect():
    handle = nbd.NBD()
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    # What the server must refuse is to get there.
    handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle


def fails(number, call, *args):
    try:
        call(*args)
    except nbd.Error as error:
        assert error.errnum == number, f"{call.__name__}{args}: {error.errnum}, not {number}"
    else:
        raise AssertionError(f"{call.__name__}{args} did not fail")


def flags_and_sizes(h):
    assert h.get_protocol() == "newstyle-fixed"
    assert h.get_structured_replies_negotiated()
    assert h.can_multi_conn() and h.can_flush() and h.can_fua() and h.can_cache() and h.can_df()
    assert h.can_zero() and h.can_fast_zero() and not h.is_read_only()
    assert bool(h.can_trim()) == discards
    assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    assert h.get_block_size(nbd.SIZE_MINIMUM) in (512, 4096)
    assert h.get_block_size(nbd.SIZE_MAXIMUM) == 32 * MIB
    assert h.get_size() % h.get_block_size(nbd.SIZE_MINIMUM) == 0


def write_read_zero(h):
    data = rng.randbytes(MIB)
    h.pwrite(data, 8 * MIB)
    assert h.pread(MIB, 8 * MIB) == data
    h.pwrite(data[:4096], 9 * MIB, nbd.CMD_FLAG_FUA)
    assert h.pread(4096, 9 * MIB) == data[:4096]
    h.zero(256 * KIB, 8 * MIB + 4096)
    h.zero(4096, 9 * MIB - 4096, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    expected = bytearray(data)
    expected[4096:4096 + 256 * KIB] = bytes(256 * KIB)
    expected[-4096:] = bytes(4096)
    assert h.pread(MIB, 8 * MIB) == expected
    # Zeroes under a cipher are not faster than a write, and that is what is asked here.
    fails(errno.EOPNOTSUPP, h.zero, 4096, 0, nbd.CMD_FLAG_FAST_ZERO)
    h.cache(MIB, 8 * MIB)
    h.flush()
    pieces = []
    h.pread_structured(MIB, 8 * MIB, lambda piece, at, status, error: pieces.append((at, bytes(piece))))
    assert b"".join(piece for _, piece in sorted(pieces)) == expected
    pieces.clear()
    h.pread_structured(
        MIB, 8 * MIB, lambda piece, at, status, error: pieces.append((at, bytes(piece))), nbd.CMD_FLAG_DF
    )
    assert len(pieces) == 1 and pieces[0] == (8 * MIB, bytes(expected))


def trim(h):
    data = rng.randbytes(256 * KIB)
    h.pwrite(data, 4 * MIB)
    if discards:
        h.trim(128 * KIB, 4 * MIB)
    else:
        fails(errno.EINVAL, h.trim, 128 * KIB, 4 * MIB)
        assert h.pread(128 * KIB, 4 * MIB) == data[:128 * KIB]
    assert h.pread(128 * KIB, 4 * MIB + 128 * KIB) == data[128 * KIB:]


def block_status(h):
    def extents(length, offset, flags=0):
        found = []

        def note(context, at, entries, error):
            assert context == nbd.CONTEXT_BASE_ALLOCATION and at == offset and error.value == 0
            found.extend(zip(entries[::2], entries[1::2]))

        h.block_status(length, offset, note, flags)
        return found

    size = h.get_size()
    at, covered = 0, []
    while at < size:
        found = extents(size - at, at)
        assert found and all(length > 0 for length, _ in found)
        # What is not stored reads as noise under a cipher: a hole it is, but never zero.
        assert all(not flags & nbd.STATE_ZERO for _, flags in found)
        for length, flags in found:
            covered.append((at, length, flags))
            at += length
    assert at == size, "extents beyond the end"
    stored = [(at, length) for at, length, flags in covered if not flags & nbd.STATE_HOLE]
    assert any(at <= 8 * MIB and at + length >= 9 * MIB for at, length in stored), stored
    assert len(extents(size, 0, nbd.CMD_FLAG_REQ_ONE)) == 1


def refusals(h):
    size, block = h.get_size(), h.get_block_size(nbd.SIZE_MINIMUM)
    before = h.pread(4096, 8 * MIB)
    fails(errno.EINVAL, h.pread, block, size)
    fails(errno.EINVAL, h.pread, block // 2, 0)
    fails(errno.EINVAL, h.pread, block, 1)
    fails(errno.ENOSPC, h.pwrite, bytes(block), size)
    fails(errno.ENOSPC, h.pwrite, bytes(4 * block), size - block)
    fails(errno.EINVAL, h.pwrite, bytes(block), 8 * MIB + block // 2)
    fails(errno.EINVAL, h.cache, block, size)
    fails(errno.ENOSPC, h.zero, 2 * block, size - block)
    # The connection goes on after each.
    assert h.pread(4096, 8 * MIB) == before


def pipelined(handles):
    """Writes, reads and zeroes of all lengths in flight at once, each in a place of its own."""
    h = handles[0]
    block, size = h.get_block_size(nbd.SIZE_MINIMUM), h.get_size()
    model = bytearray(b"".join(h.pread(MIB, at) for at in range(0, size // MIB * MIB, MIB)))
    for _ in range(6):
        places, at = [], 0
        while True:
            at += block * rng.randrange(0, 64)
            length = block * rng.choice([1, 1, 2, 3, 8, 33, 64, 200])
            if at + length > len(model):
                break
            places.append((at, length))
            at += length
        rng.shuffle(places)
        cookies = []
        for number, (at, length) in enumerate(places):
            h = handles[number % len(handles)]
            kind = rng.choice("wwrrz")
            if kind == "w":
                data = rng.randbytes(length)
                buffer = nbd.Buffer.from_bytearray(bytearray(data))
                cookies.append((h, h.aio_pwrite(buffer, at), None, None))
                model[at:at + length] = data
            elif kind == "z":
                cookies.append((h, h.aio_zero(length, at), None, None))
                model[at:at + length] = bytes(length)
            else:
                buffer = nbd.Buffer(length)
                cookies.append((h, h.aio_pread(buffer, at), buffer, bytes(model[at:at + length])))
            if len(cookies) > 100 * len(handles):
                finish(cookies, rng.randrange(50))
        finish(cookies, 0)
        handles[-1].flush()
    for number, at in enumerate(range(0, len(model), MIB)):
        found = handles[number % len(handles)].pread(MIB, at)
        assert found == model[at:at + MIB], f"in the MiB at {at}"


def finish(cookies, leave):
    while len(cookies) > leave:
        h, cookie, buffer, expected = cookies.pop(0)
        while not h.aio_command_completed(cookie):
            h.poll(-1)
        if buffer is not None:
            assert buffer.to_bytearray() == expected, "a read in flight"


h = connect()
flags_and_sizes(h)
write_read_zero(h)
trim(h)
block_status(h)
refusals(h)
pipelined([h, connect(), connect()])
h.shutdown()
print("all asserted")
