//! What is in force.

/// What is in force in a process that serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Capabilities that were kept; for a user there are none anyway.
    pub capabilities: Vec<&'static str>,
    /// Nothing that is executed can bring others back: the bounding set holds no others.
    pub bounded: bool,
    /// Nothing that is executed has more privileges than this.
    pub no_new_privileges: bool,
    /// The version of Landlock that keeps files away.
    pub landlock: Option<u32>,
    /// System calls that are not needed fail.
    pub seccomp: bool,
    /// No ring can be made but with restrictions.
    pub rings: bool,
    /// Connections go to any port: only a cluster knows which machine has the data.
    pub any_port: bool,
    /// What could not be had, and why.
    pub missing: Vec<String>,
}
