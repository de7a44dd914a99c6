//! The restrictions in force.

/// The restrictions that are in force in a serving process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Capabilities that were kept; none for a user.
    pub capabilities: Vec<&'static str>,
    /// Executed programs cannot get other capabilities: the bounding set holds no others.
    pub bounded: bool,
    /// Executed programs have no more privileges than this process.
    pub no_new_privileges: bool,
    /// The version of Landlock that restricts files.
    pub landlock: Option<u32>,
    /// System calls that are not needed fail.
    pub seccomp: bool,
    /// Rings can be made only with restrictions.
    pub rings: bool,
    /// Connections go to any port: only a cluster knows its machines' ports.
    pub any_port: bool,
    /// The restrictions that failed, and the reasons.
    pub missing: Vec<String>,
}
