//! Kernels that know less of Landlock: a library in front of the C library's answers the question
//! for its version.

use std::fs;
use std::process::Command;

use crate::support::{Scratch, run, tool};

/// Landlock is asked for its version by `landlock_create_ruleset(NULL, 0, 1)`, which has no
/// function of its own.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>

long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_landlock_create_ruleset) {
        if (LEVEL == 0) {
            errno = ENOSYS;
            return -1;
        }
        if (a[2] == 1)
            return LEVEL;
    }
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
"#;

/// The library's file, which the program needs when it starts.
pub(crate) struct OlderKernel {
    _scratch: Scratch,
}

impl OlderKernel {
    /// Starts the program as on a kernel whose Landlock has this version; 0: none.
    pub(crate) fn around(command: &mut Command, level: u32) -> Self {
        let scratch = Scratch::new();
        let (source, library) = (scratch.path("older.c"), scratch.path("older.so"));
        fs::write(&source, SOURCE).unwrap();
        let mut cc = tool("cc");
        cc.args(["-shared", "-fPIC", &format!("-DLEVEL={level}"), "-o"]).arg(&library).arg(&source);
        run(&mut cc);
        command.env("LD_PRELOAD", library);
        Self { _scratch: scratch }
    }
}
