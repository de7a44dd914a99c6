# A user's programs that give system calls what the server of a file never answers for.
#     silent.py path|descriptor CALLERS FILE
import ctypes, errno, fcntl, os, sys, time

what, callers, path = sys.argv[1:]
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
file = os.open(path, os.O_RDONLY)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, 4096, 1, 1, file, 0)

children = []
for _ in range(int(callers)):
    child = os.fork()
    if child == 0:
        if what == "path":
            libc.open(ctypes.c_void_p(page), 0)
        else:
            try:
                fcntl.ioctl(file, 0xFD00)
            except OSError as e:
                print(errno.errorcode[e.errno], flush=True)
        os._exit(0)
    children.append(child)
print("begun", flush=True)
for child in children:
    os.waitpid(child, 0)
print("over", flush=True)
