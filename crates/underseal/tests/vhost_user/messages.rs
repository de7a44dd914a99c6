//! Messages and memory that make no sense: the front end is cut off or its ring stopped, and the
//! next one is served.

use std::fs::File;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vm_memory::MmapRegion;
use vmm_sys_util::eventfd::EventFd;

use crate::support::Scratch;
use crate::support::tools::{PATIENCE, wait_until, within};
use crate::support::volume::Volume;
use crate::vhost_user::disk::serve;
use crate::vhost_user::front::{Front, GUEST, MEMORY, NEXT, OUT, SPARE, WRITE, data, guest, request};
use crate::vhost_user::hostile::still_serves;

#[test]
fn messages_that_make_no_sense() {
    type Break = fn(&mut Front) -> bool;
    let table: [(&str, Break, &str); 10] = [
        (
            "a ring that is not there",
            |f| f.link.set_vring_enable(0, true).is_ok() && raw(f, 8, &[9, 0, 0, 0, 64, 0, 0, 0]),
            "ring 9",
        ),
        ("a ring of no power of two", |f| raw(f, 8, &[0, 0, 0, 0, 65, 0, 0, 0]), "a ring of 65"),
        ("a ring of too many", |f| raw(f, 8, &[0, 0, 0, 0, 0, 0, 1, 0]), "a ring of 65536"),
        (
            "a ring outside guest memory",
            |f| raw(f, 9, &[[0; 8], [0; 8], [0; 8], [0; 8], [0; 8]].concat()),
            "not in the guest memory",
        ),
        ("features that were not offered", |f| raw(f, 2, &u64::MAX.to_le_bytes()), "were not offered"),
        ("a message that is not known", |f| raw(f, 99, &[]), "cut off"),
        ("a message that is too long", |f| header(f, 8, 1 << 20), "cut off"),
        ("a message of the wrong length", |f| raw(f, 8, &[0; 7]), "cut off"),
        // A file of FUSE as a kick would keep a thread waiting for its server.
        (
            "a kick that is no eventfd",
            |f| {
                let file = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
                // SAFETY: the descriptor is the file's, which stays open for the call.
                let kick = ManuallyDrop::new(unsafe { EventFd::from_raw_fd(file.as_raw_fd()) });
                let _ = f.link.set_vring_kick(0, &kick);
                true
            },
            "no eventfd",
        ),
        ("a kick without a descriptor", |f| raw(f, 12, &0x100_u64.to_le_bytes()), "to be polled"),
    ];
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    for (what, breaks, why) in table {
        let before = server.log().len();
        let mut front = Front::connect(&socket);
        assert!(breaks(&mut front), "{what}");
        let told = within(PATIENCE, || {
            let log = server.log();
            log[before..].contains("cut off") && log[before..].contains(why)
        });
        assert!(told, "{what}: {why}\n{}", &server.log()[before..]);
        let mut socket = stream(&front);
        let mut rest = Vec::new();
        // The server has closed the connection; earlier answers may still be there.
        let _ = socket.read_to_end(&mut rest);
    }
    still_serves(&server, &socket);
    server.stop();
}

/// The front end's own socket, past the crate that keeps to the rules.
fn stream(front: &Front) -> UnixStream {
    use std::os::fd::{AsRawFd, BorrowedFd};
    // SAFETY: the front end's socket is open for as long as `front` is.
    let fd = unsafe { BorrowedFd::borrow_raw(front.link.as_raw_fd()) };
    let stream = UnixStream::from(fd.try_clone_to_owned().unwrap());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn header(front: &mut Front, request: u32, len: u32) -> bool {
    let header = [request.to_le_bytes(), 1_u32.to_le_bytes(), len.to_le_bytes()].concat();
    stream(front).write_all(&header).is_ok()
}

fn raw(front: &mut Front, request: u32, payload: &[u8]) -> bool {
    header(front, request, u32::try_from(payload.len()).unwrap()) && stream(front).write_all(payload).is_ok()
}

#[test]
fn memory_that_cannot_be_shared_is_refused() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    for longer in [0x1000, 1 << 40] {
        let front = Front::connect(&socket);
        let mut region = front.region();
        region.memory_size += longer;
        assert!(front.link.set_mem_table(&[region]).is_err());
    }
    let front = Front::connect(&socket);
    let region = front.region();
    let other = MmapRegion::<()>::new(4096).unwrap();
    let overlapping = vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST + 4096,
        userspace_addr: other.as_ptr() as u64,
        ..region
    };
    assert!(front.link.set_mem_table(&[region, overlapping]).is_err());
    let told = || server.log().contains("regions of guest memory");
    wait_until("the log says why", PATIENCE, told);
    drop(front);
    still_serves(&server, &socket);
    server.stop();
}

#[test]
fn memory_that_is_cut_short_stops_its_ring_and_nothing_else() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut nbd = crate::support::nbd::Client::connect(&server.socket()).unwrap();
    nbd.write(0, &[4; 4096]).unwrap();
    // The memory ends behind the ring, or is gone.
    for left in [data(0), 0] {
        let mut front = Front::connect(&socket);
        front.put(data(0), &[1; 4096]);
        front.ask(0, OUT, 0, 4096);
        front.next();
        nbd.write(0, &[4; 4096]).unwrap();
        let before = server.log().len();
        if left > 0 {
            front.lay(0, OUT, 0, 4096);
            front.offer_quietly(0);
        }
        front.cut(left);
        front.kick.write(1).unwrap();
        let told = || server.log()[before..].contains("cut short");
        wait_until("the ring is stopped", PATIENCE, told);
        assert_eq!(nbd.read(0, 4096).unwrap(), [4; 4096], "what was not there was not written");
    }
    drop(nbd);
    still_serves(&server, &socket);
    server.stop();
}

#[test]
fn a_range_is_not_zeroed_whose_numbers_are_in_memory_that_is_gone() {
    const WRITE_ZEROES: u32 = 13;
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut nbd = crate::support::nbd::Client::connect(&server.socket()).unwrap();
    nbd.write(0, &[4; 65536]).unwrap();
    let mut front = Front::connect(&socket);
    let file = File::from(memfd_create("more", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, 4096).unwrap();
    let more = vhost::VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST + MEMORY as u64,
        memory_size: 4096,
        userspace_addr: 4096,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    };
    front.link.set_mem_table(&[front.region(), more]).unwrap();
    let before = server.log().len();
    // The number of the first sector is in the other file, and their count here.
    let (count, status) = (SPARE + 16, SPARE + 32);
    front.put(SPARE, &request(WRITE_ZEROES, 0));
    front.put(count, &[128_u32.to_le_bytes(), [0; 4]].concat());
    front.describe(0, guest(SPARE), 16, NEXT, 1);
    front.describe(1, more.guest_phys_addr, 8, NEXT, 2);
    front.describe(2, guest(count), 8, NEXT, 3);
    front.describe(3, guest(status), 1, WRITE, 0);
    front.put(status, &[0xff]);
    ftruncate(&file, 0).unwrap();
    front.offer(0);
    let told = || server.log()[before..].contains("cut short");
    wait_until("the ring is stopped", PATIENCE, told);
    assert_eq!(nbd.read(0, 65536).unwrap(), [4; 65536], "sectors 0 to 127 were not meant");
    assert_eq!(front.get(status, 1), [0xff]);
    drop((front, nbd));
    still_serves(&server, &socket);
    server.stop();
}
