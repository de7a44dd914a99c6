//! The system calls that can be made: those that the exports need.
//!
//! A call that is not on the list fails with `EPERM`, and its name goes to the log. The call does
//! not end the process: a library may come to an unusual call by itself, of a later version
//! perhaps, and a server that is killed for it takes away its users' disk, with all unflushed data.
//! An attacker in the server gains no more from an error than from the end: the call is not made.
//! Only where a thread blocks SIGSYS, as the C library does for moments, a refused call ends the
//! process; so threads that always block SIGSYS, as those of Ceph's library, get filters that
//! refuse silently.

pub(crate) mod calls;
pub(crate) mod violations;

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule as Rule, TargetArch,
};

use self::calls::Call;
use crate::Needs;

/// The reaction to a refused call besides its failure.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Refusal {
    /// The call's name goes to the log, through SIGSYS.
    Told,
    /// No reaction.
    Silent,
}

/// Returns the filters that a thread installs, in this order.
///
/// Returns the reason on processors without filters.
pub(crate) fn filters(needs: &Needs, refusal: Refusal) -> Result<Vec<BpfProgram>, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| "not for this processor")?;
    // clone3's flags lie in memory, which filters cannot read; the C library falls back to clone(2)
    // when clone3 is missing.
    let absent = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone3, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS.cast_unsigned()),
        arch,
    );
    // The C library forks with all signals blocked, so SIGSYS would end this process.
    let thread = Condition::new(0, Len::Dword, Op::MaskedEq(libc::CLONE_THREAD as u64), 0);
    let process = thread.and_then(|flags| Rule::new(vec![flags])).map_err(|e| e.to_string())?;
    let probe = Condition::new(0, Len::Dword, Op::Eq, calls::PROBE);
    let probe = probe.and_then(|option| Rule::new(vec![option])).map_err(|e| e.to_string())?;
    let processes = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_clone, vec![process]), (libc::SYS_prctl, vec![probe])]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EPERM.cast_unsigned()),
        arch,
    );
    let mut rules = BTreeMap::<i64, Vec<Rule>>::new();
    for call in calls::of(needs) {
        match call {
            // The call is allowed with any arguments: an earlier rule for some arguments is
            // dropped.
            Call::Any(number) => drop(rules.insert(number, Vec::new())),
            Call::When(number, argument, test) => {
                rules.entry(number).or_default().push(rule(&[(argument, test)])?);
            }
            Call::Both(number, one, other) => {
                rules.entry(number).or_default().push(rule(&[one, other])?);
            }
        }
    }
    let refused = match refusal {
        Refusal::Told => SeccompAction::Trap,
        Refusal::Silent => SeccompAction::Errno(libc::EPERM.cast_unsigned()),
    };
    let allowed = SeccompFilter::new(rules, refused, SeccompAction::Allow, arch);
    let program = |filter: Result<SeccompFilter, _>| filter.and_then(BpfProgram::try_from);
    [absent, processes, allowed]
        .map(|filter| program(filter).map_err(|e| e.to_string()))
        .into_iter()
        .collect()
}

/// Returns a rule with a condition for each of these arguments.
fn rule(tests: &[(u8, calls::Test)]) -> Result<Rule, String> {
    let conditions = tests.iter().map(|&(argument, test)| {
        let (len, operator, value) = match test {
            calls::Test::Is(value) => (Len::Dword, Op::Eq, value),
            calls::Test::HasNot(bits) => (Len::Dword, Op::MaskedEq(bits), 0),
            calls::Test::Bits(bits, value) => (Len::Dword, Op::MaskedEq(bits), value),
            calls::Test::Null => (Len::Qword, Op::Eq, 0),
        };
        Condition::new(argument, len, operator, value)
    });
    let conditions = conditions.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    Rule::new(conditions).map_err(|e| e.to_string())
}
