//! Row "files" of the table.

use libc as l;
use rustix::io::Errno;

use crate::hostile::inject::{Answer, Inside};
use crate::hostile::rows::{CWD, ExportKind, NOBODY, Row, makes, row};

use ExportKind::{Tls, Tree};

const OVER_FILES: &[ExportKind] =
    &[ExportKind::Nbd, ExportKind::Fuse, ExportKind::VhostUser, Tree, Tls, ExportKind::Ublk];

fn opens(inside: &mut Inside, path: &std::path::Path, flags: i32) -> Answer {
    let path = inside.text(path);
    let fd = inside.call(l::SYS_openat, &[CWD, path, flags as u64, 0o600])?;
    inside.call(l::SYS_close, &[fd])
}

/// Opens a file that not every machine has.
fn opens_if_there(inside: &mut Inside, path: &str, flags: i32) -> Answer {
    if std::path::Path::new(path).exists() { opens(inside, path.as_ref(), flags) } else { Err(Errno::ACCESS) }
}

/// Row "files".
pub(crate) const FILES: &[Row] = &[
    row!("its own file, to read and write", OVER_FILES, |inside, around| opens(
        inside,
        &around.own,
        l::O_RDWR
    )),
    row!("a secret, to read", NOBODY, |inside, around| opens(inside, &around.secret(), l::O_RDONLY)),
    row!("a secret, to write", NOBODY, |inside, around| opens(inside, &around.secret(), l::O_WRONLY)),
    row!("a secret, to cut", NOBODY, |inside, around| {
        opens(inside, &around.secret(), l::O_WRONLY | l::O_TRUNC)
    }),
    row!("a secret, by the root that a process has", NOBODY, |inside, around| {
        let path = format!("/proc/self/root{}", around.secret().display());
        opens(inside, path.as_ref(), l::O_RDONLY)
    }),
    // The root folder of `ecryptfs mount` is empty, and can be listed without Landlock.
    Row {
        what: "a folder, to list",
        works: &[Tree],
        at_most: true,
        try_it: |inside, _| opens(inside, "/".as_ref(), l::O_RDONLY | l::O_DIRECTORY),
    },
    row!("the certificates", &[Tls], |inside, around| {
        let path = around.certificates.clone().unwrap_or_else(|| around.secret());
        opens(inside, &path, l::O_RDONLY)
    }),
    row!("the certificates, to write", NOBODY, |inside, around| {
        let path = around.certificates.clone().unwrap_or_else(|| around.secret());
        opens(inside, &path, l::O_WRONLY)
    }),
    row!("out of a folder that is open", NOBODY, |inside, around| {
        let up = "../".repeat(16);
        let secret = inside.text(format!("{up}{}", around.secret().display()));
        let open = std::fs::read_dir(format!("/proc/{}/fd", inside.pid)).unwrap();
        let open = open.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap());
        let mut out = Err(Errno::ACCESS);
        for fd in open.chain([CWD]) {
            let read = inside.call(l::SYS_openat, &[fd, secret, l::O_RDONLY as u64, 0]);
            let changed = inside.call(l::SYS_fchmodat, &[fd, secret, 0o644]);
            out = out.or(read).or(changed).map_err(|_| Errno::ACCESS);
        }
        out
    }),
    row!("a device node that is there", NOBODY, |inside, around| {
        if around.door != Tree {
            return Err(Errno::ACCESS);
        }
        opens(inside, &around.own.with_file_name("null"), l::O_RDWR)
    }),
    row!("a file beside the image, to make", &[Tree], |inside, around| {
        let path = around.own.with_file_name("new");
        opens(inside, &path, l::O_WRONLY | l::O_CREAT)?;
        let path = inside.text(path);
        inside.call(l::SYS_unlinkat, &[CWD, path, 0])
    }),
    row!("a file elsewhere, to make", NOBODY, |inside, around| {
        opens(inside, &around.scratch.path("new"), l::O_WRONLY | l::O_CREAT)
    }),
    row!("a file without a name", NOBODY, |inside, around| {
        opens(inside, around.scratch.folder(), l::O_WRONLY | l::O_TMPFILE)
    }),
    row!("the log", NOBODY, |inside, around| { opens(inside, &around.log, l::O_WRONLY | l::O_APPEND) }),
    row!("home", NOBODY, |inside, _| opens(inside, "/root".as_ref(), l::O_RDONLY)),
    row!("/etc/passwd", NOBODY, |inside, _| opens(inside, "/etc/passwd".as_ref(), l::O_RDONLY)),
    row!("/dev/mem", NOBODY, |inside, _| opens_if_there(inside, "/dev/mem", l::O_RDONLY)),
    row!("/dev/kmsg", NOBODY, |inside, _| opens_if_there(inside, "/dev/kmsg", l::O_WRONLY)),
    row!("a loop device", NOBODY, |inside, _| opens_if_there(inside, "/dev/loop0", l::O_RDWR)),
    row!("the memory of process 1, to read", NOBODY, |inside, _| {
        opens(inside, "/proc/1/mem".as_ref(), l::O_RDONLY)
    }),
    row!("the memory of process 1, to write", NOBODY, |inside, _| {
        opens(inside, "/proc/1/mem".as_ref(), l::O_RDWR)
    }),
    row!("its own memory, past what may be written", NOBODY, |inside, _| {
        opens(inside, "/proc/self/mem".as_ref(), l::O_RDWR)
    }),
    row!("another process's memory", NOBODY, |inside, around| {
        opens(inside, format!("/proc/{}/mem", around.victim()).as_ref(), l::O_RDONLY)
    }),
    // Newer kernels show it to CAP_SYS_ADMIN: said in the table.
    Row {
        what: "another process's environment",
        works: &[Tree],
        at_most: true,
        try_it: |inside, around| {
            opens(inside, format!("/proc/{}/environ", around.victim()).as_ref(), l::O_RDONLY)
        },
    },
    row!("another process's files", NOBODY, |inside, around| {
        opens(inside, format!("/proc/{}/root/etc/passwd", around.victim()).as_ref(), l::O_RDONLY)
    }),
    row!("whether a process is being killed", &[Tree], |inside, around| {
        opens(inside, format!("/proc/{}/status", around.victim()).as_ref(), l::O_RDONLY)
    }),
    row!("what the kernel is set to", NOBODY, |inside, _| {
        opens_if_there(inside, "/proc/sys/kernel/core_pattern", l::O_WRONLY)
    }),
    row!("sysrq", NOBODY, |inside, _| opens_if_there(inside, "/proc/sysrq-trigger", l::O_WRONLY)),
    row!("unlink", NOBODY, |inside, around| {
        let path = inside.text(around.secret());
        inside.call(l::SYS_unlinkat, &[CWD, path, 0])
    }),
    row!("unlink its own", &[Tree], |inside, around| {
        let path = inside.text(&around.own);
        inside.call(l::SYS_unlinkat, &[CWD, path, 0])
    }),
    row!("rename", NOBODY, |inside, around| {
        let (from, to) = (inside.text(around.secret()), inside.text(around.scratch.path("gone")));
        inside.call(l::SYS_renameat2, &[CWD, from, CWD, to, 0])
    }),
    row!("take a file in", NOBODY, |inside, around| {
        let (from, to) = (inside.text(around.secret()), inside.text(around.own.with_file_name("taken")));
        match inside.call(l::SYS_linkat, &[CWD, from, CWD, to, 0]) {
            // Landlock answers XDEV where a file would get more rights by the link.
            Err(Errno::XDEV) => Err(Errno::ACCESS),
            answer => answer,
        }
    }),
    row!("a folder", NOBODY, |inside, around| {
        let path = inside.text(around.scratch.path("new"));
        inside.call(l::SYS_mkdirat, &[CWD, path, 0o777])
    }),
    row!("a link", NOBODY, |inside, around| {
        let (to, path) = (inside.text("/etc"), inside.text(around.scratch.path("new")));
        inside.call(l::SYS_symlinkat, &[to, CWD, path])
    }),
    row!("a device node of a disk", NOBODY, |inside, around| {
        let path = inside.text(around.own.with_file_name("disk"));
        inside.call(l::SYS_mknodat, &[CWD, path, u64::from(l::S_IFBLK | 0o600), l::makedev(7, 0)])
    }),
    row!("a device node of memory", NOBODY, |inside, around| {
        let path = inside.text(around.own.with_file_name("memory"));
        inside.call(l::SYS_mknodat, &[CWD, path, u64::from(l::S_IFCHR | 0o600), l::makedev(1, 1)])
    }),
    row!("cut by its path", NOBODY, |inside, around| {
        let path = inside.text(around.secret());
        inside.call(l::SYS_truncate, &[path, 0])
    }),
    // Landlock knows neither.
    row!("the mode of any file", NOBODY, |inside, around| {
        let path = inside.text(around.secret());
        inside.call(l::SYS_fchmodat, &[CWD, path, 0o644])
    }),
    row!("the owner of any file", NOBODY, |inside, around| {
        let path = inside.text(around.secret());
        inside.call(l::SYS_fchownat, &[CWD, path, 0, 0, 0])
    }),
    row!("an extended attribute of any file", NOBODY, |inside, around| {
        let (path, name) = (inside.text(around.secret()), inside.text("user.x"));
        inside.call(l::SYS_setxattr, &[path, name, name, 1, 0])
    }),
    row!("inotify", NOBODY, |inside, _| makes(inside, l::SYS_inotify_init1, &[0])),
];
