//! Rings: hostile code asks the helper for one, as the server does, and tries every operation on
//! it.

use std::fs;

use rustix::io::Errno;

use crate::hostile::inject::Inside;

/// An entry of a submission queue, and operations that the kernel may have some day.
const ENTRY: usize = 64;
const OPERATIONS: u8 = 70;
/// `IORING_OP_`: NOP, FSYNC, POLL_ADD, FALLOCATE, READ, WRITE, FADVISE.
const OF_QUEUES: [u8; 7] = [0, 3, 6, 17, 22, 23, 24];

/// The sockets that carry messages, which are those of the helper.
fn sockets(inside: &mut Inside) -> Vec<u64> {
    let open = fs::read_dir(format!("/proc/{}/fd", inside.pid)).unwrap().flatten();
    let is_socket = |path: std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let open: Vec<u64> = open
        .filter(|fd| is_socket(fd.path()))
        .map(|fd| fd.file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let (kind, len) = (inside.put(&[0; 4]), inside.put(&4_u32.to_ne_bytes()));
    let what = [libc::SOL_SOCKET as u64, libc::SO_TYPE as u64, kind, len];
    let is_of_messages = |fd: &u64| {
        let [one, two, three, four] = what;
        inside.call(libc::SYS_getsockopt, &[*fd, one, two, three, four]).is_ok()
            && u32::from_ne_bytes(inside.read(kind)) == libc::SOCK_SEQPACKET as u32
    };
    open.into_iter().filter(is_of_messages).collect()
}

/// Says something to the helper: the answer, without its first four bytes.
fn said(inside: &mut Inside, socket: u64, message: &[u8]) -> Result<Vec<u8>, Errno> {
    let (text, answer) = (inside.put(message), inside.put(&[0; 512]));
    inside.call(libc::SYS_sendto, &[socket, text, message.len() as u64, 0, 0, 0]).unwrap();
    let len = inside.call(libc::SYS_recvfrom, &[socket, answer, 512, 0, 0, 0]).unwrap();
    let all: [u8; 512] = inside.read(answer);
    match i32::from_ne_bytes(all[..4].try_into().unwrap()) {
        0 => Ok(all[4..usize::try_from(len).unwrap()].to_vec()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// `IORING_OP_URING_CMD`.
const COMMAND: u8 = 46;

/// A server without rings gets none. One with rings gets restricted ones.
pub(crate) fn are_restricted(inside: &mut Inside, has_rings: bool, has_commands: bool) {
    let none = inside.put(&[0; 128]);
    let setup = |inside: &mut Inside| inside.call(libc::SYS_io_uring_setup, &[4, none]);
    let enter =
        |inside: &mut Inside, ring: u64| inside.call(libc::SYS_io_uring_enter, &[ring, 1, 1, 1, 0, 0]);
    let is_disabled = |inside: &mut Inside, ring: u64| {
        assert_eq!(enter(inside, ring), Err(Errno::BADFD), "it is disabled");
    };
    let mut own = setup(inside);
    if let Ok(ring) = own {
        // A thread of the server had asked for it, and would have been the next to get it.
        is_disabled(inside, ring);
        inside.call(libc::SYS_close, &[ring]).unwrap();
        own = setup(inside);
    }
    assert_eq!(own, Err(Errno::PERM), "a ring of its own making");
    let mut request = [0; 11];
    request[0] = b'r';
    request[1..5].copy_from_slice(&4_u32.to_ne_bytes());
    request[5..9].copy_from_slice(&8_u32.to_ne_bytes());
    // The request asks for drivers' commands too.
    request[10] = 1;
    let mut made = Vec::new();
    for socket in sockets(inside) {
        for message in [&b"c"[..], b"!", b"sunix", b"lx", b"r"] {
            assert!(said(inside, socket, message).is_err(), "{message:?}: the list is sealed");
        }
        made.extend(said(inside, socket, &request));
    }
    assert_eq!(made.len(), usize::from(has_rings));
    let Some(parameters) = made.pop() else { return };
    let number = |at: usize| u32::from_ne_bytes(parameters[at..at + 4].try_into().unwrap());
    let ring = setup(inside).unwrap();
    assert_eq!(setup(inside), Err(Errno::PERM), "it was one");
    is_disabled(inside, ring);
    // Every operation of io_uring_register(2) but the one that enables it.
    for operation in (0..64).filter(|operation| ![4, 12].contains(operation)) {
        for operation in [operation, operation | 1 << 31] {
            let answer = inside.call(libc::SYS_io_uring_register, &[ring, operation, none, 1]);
            assert_eq!(answer, Err(Errno::PERM), "io_uring_register {operation}");
        }
    }
    assert_eq!(inside.call(libc::SYS_io_uring_register, &[ring, 12]), Ok(0), "it is enabled");
    let both = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let mut map = |at: u64| {
        inside.call(libc::SYS_mmap, &[0, 1 << 14, both, libc::MAP_SHARED as u64, ring, at]).unwrap()
    };
    // `IORING_OFF_SQ_RING`, which the other queue is in as well, and `IORING_OFF_SQES`; of
    // `struct io_uring_params` the offsets of head, tail, mask and array, and of the other queue's.
    let (rings, entries) = (map(0), map(0x1000_0000));
    let [tail, mask, array] = [44, 48, 64].map(|at| rings + u64::from(number(at)));
    let [head, other_mask, completions] = [80, 88, 100].map(|at| rings + u64::from(number(at)));
    let word = |inside: &Inside, at: u64| u32::from_ne_bytes(inside.read(at));
    let mut does = |entry: [u8; ENTRY]| {
        let at = word(inside, tail);
        let slot = u64::from(at & word(inside, mask));
        inside.write(entries + slot * ENTRY as u64, &entry);
        inside.write(array + slot * 4, &u32::try_from(slot).unwrap().to_ne_bytes());
        inside.write(tail, &(at + 1).to_ne_bytes());
        enter(inside, ring).unwrap();
        let at = word(inside, head);
        let completion = completions + u64::from(at & word(inside, other_mask)) * 16;
        let result = i32::from_ne_bytes(inside.read(completion + 8));
        inside.write(head, &(at + 1).to_ne_bytes());
        result
    };
    for operation in 0..OPERATIONS {
        let mut entry = [0; ENTRY];
        entry[0] = operation;
        // No descriptor.
        entry[4..8].copy_from_slice(&(-1_i32).to_ne_bytes());
        let result = does(entry);
        match OF_QUEUES.contains(&operation) || has_commands && operation == COMMAND {
            true => assert_ne!(result, -libc::EACCES, "operation {operation} is a queue's"),
            // The kernel refuses operations that it does not know before it checks the
            // restrictions.
            false => assert!([-libc::EACCES, -libc::EINVAL].contains(&result), "{operation}: {result}"),
        }
        // With a registered file, a chosen buffer, or a link to the next.
        for flag in [0, 1, 2, 3, 5] {
            let mut entry = entry;
            (entry[0], entry[1]) = (22, 1 << flag);
            assert_eq!(does(entry), -libc::EACCES, "flag {flag}");
        }
    }
    // SOCKET, CONNECT, SENDMSG, SETXATTR, OPENAT, URING_CMD: what matters is known to this kernel,
    // and refused as not allowed.
    for operation in [45, 16, 9, 42, 18, COMMAND].into_iter().filter(|one| !has_commands || *one != COMMAND) {
        let mut entry = [0; ENTRY];
        (entry[0], entry[4]) = (operation, 2);
        assert_eq!(does(entry), -libc::EACCES, "operation {operation}");
    }
    for map in [rings, entries] {
        inside.call(libc::SYS_munmap, &[map, 1 << 14]).unwrap();
    }
    inside.call(libc::SYS_close, &[ring]).unwrap();
    inside.forget();
}
