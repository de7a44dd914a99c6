//! The start of all restrictions.

use std::os::fd::AsRawFd;

use rustix::thread::CapabilitySet;

use crate::seccomp::{self, Refusal, violations};
use crate::threads::{self, Failed, Steps};
use crate::{Needs, Rings, State, capabilities, helper, landlock, mark};

/// Drops every unneeded privilege from every thread of this process, and from later threads. A
/// restriction that fails, or that Linux does not support, is reported once, and the server
/// continues: it keeps no more than it would have without the sandbox.
pub fn enter(needs: &Needs) -> State {
    let mut missing = Vec::new();
    capabilities::keep_locking();
    helper::files::seal();
    if let Err(e) = mark::set() {
        missing.push(format!("the mark for other servers ({e})"));
    }
    let kept = capabilities::kept(needs).unwrap_or_else(|e| {
        missing.push(format!("capabilities ({e})"));
        CapabilitySet::all()
    });
    let rules = landlock::rules(needs).map_err(|why| missing.push(format!("Landlock ({why})"))).ok();
    // A refused call must not end the process.
    let filters = seccomp::filters(needs, Refusal::Told).and_then(|filters| {
        if threads::has_filters() {
            return Err("a filter around this process hides which threads have taken another one".into());
        }
        let silent = seccomp::filters(needs, Refusal::Silent)?;
        violations::listen().map_err(|e| e.to_string())?;
        Ok((filters, silent))
    });
    let mut rings = needs.rings;
    let filters = filters.and_then(|filters| {
        if rings != Rings::OfHelper {
            return Ok(filters);
        }
        let Err(why) = helper::rings::hand_over() else { return Ok(filters) };
        missing.push(format!("restrictions of its own rings ({why})"));
        rings = Rings::Any;
        let needs = Needs { rings, ..needs.clone() };
        Ok((seccomp::filters(&needs, Refusal::Told)?, seccomp::filters(&needs, Refusal::Silent)?))
    });
    let filters = filters.map_err(|why| missing.push(format!("seccomp ({why})")));
    let (filters, silent) = filters.unwrap_or_default();
    let has_filters = !filters.is_empty();
    let landlock = rules.as_ref().map(|rules| rules.fd.as_raw_fd());
    let (failed, everywhere) = {
        let root = needs.root.as_ref().map(|root| root.as_raw_fd());
        threads::take(Steps { root, kept: kept.bits(), landlock, filters, silent })
    };
    if let Err(e) = everywhere {
        missing.push(format!("all of it, in threads that have started before ({e})"));
    }
    for (step, what) in [
        (Failed::CAPABILITIES, "capabilities (the kernel refuses to take them)"),
        (Failed::ROOT, "a root folder of its own (the kernel refuses it)"),
        (Failed::NO_NEW_PRIVILEGES, "no_new_privs (the kernel does not know it)"),
        (Failed::LANDLOCK, "Landlock (the kernel refuses it)"),
        (Failed::SECCOMP, "seccomp (the kernel refuses it)"),
    ] {
        if failed.has(step) {
            missing.push(what.into());
        }
    }
    let state = State {
        capabilities: capabilities::names(kept),
        bounded: !failed.has(Failed::BOUNDING),
        no_new_privileges: !failed.has(Failed::NO_NEW_PRIVILEGES),
        landlock: rules.map(|rules| rules.version).filter(|_| !failed.has(Failed::LANDLOCK)),
        seccomp: has_filters && !failed.has(Failed::SECCOMP),
        rings: has_filters && !failed.has(Failed::SECCOMP) && rings != Rings::Any,
        any_port: needs.cluster,
        missing,
    };
    if !state.missing.is_empty() {
        log::warn!("the sandbox lacks {}", state.missing.join("; "));
    }
    state
}
