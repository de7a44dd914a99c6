# writer.py DEVICE FILE: writes and reads the first MiB of the device, block by block, until there is the file. How long that took at most.
import mmap, os, sys, time

device = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
longest, count = 0, 0
while not os.path.exists(sys.argv[2]):
    at = count % 256 * 4096
    data = count.to_bytes(8, "little") * 512
    block[:] = data
    begun = time.monotonic()
    assert os.pwritev(device, [block], at) == 4096
    longest = max(longest, time.monotonic() - begun)
    block[:] = bytes(4096)
    assert os.preadv(device, [block], at) == 4096
    assert block[:] == data, count
    count += 1
    time.sleep(0.02)
print(f"longest {longest * 1000:.0f} ms, of {count} writes")
