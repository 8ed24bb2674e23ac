//! Limits on pool members, and on the data that Machines report.

/// A limit that truncates a pool's members, or omits the addresses and names that a Machine reports. The omitted data
/// are unknown, and must not be treated as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::capi) enum MemberLimit {
    /// The pool has more members than its definition allows.
    Pool,
    /// The namespace's pools use all of the memory that one namespace is allowed to use.
    Namespace,
    /// The pools in all namespaces use all of the memory for members.
    Process,
    /// The namespace's Machines use all of the memory for reported addresses and names that one namespace is allowed to
    /// use.
    ReportedOfNamespace,
    /// The Machines in all namespaces use all of the memory for reported addresses and names.
    Reported,
}

impl MemberLimit {
    /// The reason why some members, addresses or names are not known.
    pub(in crate::capi) const fn reason(self) -> &'static str {
        match self {
            Self::Pool => {
                "it has more than 10,000 members; the members beyond this limit are unknown"
            }
            Self::Namespace => {
                "the members of its namespace's MachinePools use 1/16 of the controller's memory limit; the \
                 members beyond this limit are unknown"
            }
            Self::Process => {
                "the members of the MachinePools of all namespaces use 1/8 of the controller's memory limit; the \
                 members beyond this limit are unknown"
            }
            Self::ReportedOfNamespace => {
                "the long lists of addresses and names in the statuses of its namespace's Machines use 1/32 of the \
                 controller's memory limit; the addresses and names of this Machine are unknown"
            }
            Self::Reported => {
                "the long lists of addresses and names in the statuses of all Machines use 1/16 of the controller's \
                 memory limit; the addresses and names of this Machine are unknown"
            }
        }
    }
}
