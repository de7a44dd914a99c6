//! Which machine each subject's tasks run in. A boot costs more than most tasks do, so subjects
//! share one.
//!
//! Each test is a machine. A task that fails is named with its subject, and the others run all the
//! same. `UNDERSEAL_SUBJECT=zones scripts/test ublk::boots` runs the subjects with that in their
//! names, each machine that has one.

use std::time::Duration;

use crate::guest::{Guest, TWO_PROCESSORS};
use crate::kernel::lines;
use crate::support::Scratch;
use crate::support::volume::Volume;
use crate::ublk::{disk, mapper, recovery, tasks, upgrade, zoned};

/// Names the functions, each of which adds the tasks of its subject.
macro_rules! boot {
    ($hardware:expr, $($subject:path),+ $(,)?) => {
        boot(&$hardware, &[$((stringify!($subject), $subject)),+])
    };
}

#[test]
fn a_volume_is_a_disk() {
    boot!(
        [],
        disk::a_volume_is_a_disk_to_the_kernel,
        disk::the_machines_own_dm_crypt_reads_what_we_wrote_and_we_what_it_wrote,
        zoned::zones_are_told_written_in_order_appended_to_and_emptied,
        lines::the_kernel_takes_the_lines_that_are_taken_here,
    );
}

#[test]
fn a_disk_outlives_its_server() {
    boot!(
        [],
        recovery::a_device_goes_on_with_the_next_server_and_its_users_see_no_error,
        // It leaves a device that is stopped.
        recovery::users_of_a_device_that_does_not_go_on_get_errors,
    );
}

#[test]
fn a_disk_is_handed_over() {
    boot!(
        [],
        upgrade::a_device_of_the_next_process_is_what_it_was,
        upgrade::a_device_goes_on_when_nobody_takes_it,
        // Under a kernel whose disks keep their sizes, this one ends as it begins.
        mapper::a_device_of_the_mapper_is_a_disk,
    );
}

#[test]
fn a_disk_has_two_processors() {
    boot!(
        TWO_PROCESSORS,
        disk::its_processors_have_queues_of_their_own,
        recovery::a_recovery_that_another_process_finished_for_one_queue_or_all_is_finished,
        upgrade::a_device_stays_while_new_processes_take_over,
    );
}

/// A machine to which subjects add their tasks.
pub(crate) struct Boot<'s> {
    pub(crate) scratch: &'s Scratch,
    /// A LUKS2 volume of 48 MiB, of which each task has a copy.
    pub(crate) volume: &'s Volume,
    guest: Guest<'s>,
    subject: &'static str,
    checks: Vec<Box<dyn FnOnce() + 's>>,
}

impl<'s> Boot<'s> {
    /// Adds a task, whose name need not differ from those of other subjects' tasks.
    pub(crate) fn task(&mut self, name: &str, script: &str) {
        self.guest.task(&format!("{}.{name}", self.subject), script);
    }

    /// Adds a task that may take so long.
    pub(crate) fn task_within(&mut self, name: &str, limit: Duration, script: &str) {
        self.guest.task_within(&format!("{}.{name}", self.subject), limit, script);
    }

    /// Loads modules before the tasks.
    pub(crate) fn modules(&mut self, modules: &[&str]) {
        self.guest.modules(modules);
    }

    /// Adds what is checked when the machine has turned itself off.
    pub(crate) fn check(&mut self, check: impl FnOnce() + 's) {
        self.checks.push(Box::new(check));
    }
}

type Subject = (&'static str, for<'b, 's> fn(&'b mut Boot<'s>));

fn boot(hardware: &[&str], subjects: &[Subject]) {
    let wanted = std::env::var("UNDERSEAL_SUBJECT").unwrap_or_default();
    let subjects: Vec<_> = subjects.iter().filter(|(name, _)| name.contains(&wanted)).collect();
    if subjects.is_empty() {
        eprintln!("this machine has no subject with {wanted:?} in its name");
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let mut guest = tasks::guest(&scratch);
    guest.hardware(hardware);
    let mut boot = Boot { scratch: &scratch, volume: &volume, guest, subject: "", checks: Vec::new() };
    for (name, add) in subjects {
        boot.subject = name.rsplit("::").next().unwrap_or(name);
        add(&mut boot);
    }
    boot.guest.boot();
    for check in boot.checks {
        check();
    }
}
