//! Times in the machine's time zone, which the C library knows.

#![expect(unsafe_code, reason = "the C library's time zones")]

use std::mem::MaybeUninit;

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Formats seconds since 1970-01-01 as `ctime` does, without its line end: `Sat Jan 11 00:00:00
/// 2020`.
pub(crate) fn local_time(seconds: i64) -> String {
    let seconds: libc::time_t = seconds;
    let mut broken = MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both are valid for the call, which reads one and writes the other.
    if unsafe { libc::localtime_r(&raw const seconds, broken.as_mut_ptr()) }.is_null() {
        return format!("{seconds} seconds since 1970");
    }
    // SAFETY: the call succeeded, and has written all of it.
    let of = unsafe { broken.assume_init() };
    let name = |names: &[&'static str], nth: i32| {
        usize::try_from(nth).ok().and_then(|nth| names.get(nth).copied()).unwrap_or("???")
    };
    let (day, month) = (name(&DAYS, of.tm_wday), name(&MONTHS, of.tm_mon));
    let (hour, minute, second) = (of.tm_hour, of.tm_min, of.tm_sec);
    let year = i64::from(of.tm_year) + 1900;
    format!("{day} {month} {:>2} {hour:02}:{minute:02}:{second:02} {year}", of.tm_mday)
}
