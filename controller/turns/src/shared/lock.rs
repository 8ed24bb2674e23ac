//! The names of the locks that tenants share.

use std::fmt;

/// Declares the locks, with the names that a benchmark reports.
macro_rules! locks {
    ($($lock:ident = $name:literal,)*) => {
        /// A lock that tenants share.
        ///
        /// The benchmark reports every lock. For every lock, a test limits the number of visited entries.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "each has a name below")]
        pub enum Lock {
            $($lock,)*
        }

        impl Lock {
            /// All locks.
            pub const ALL: &[Self] = &[$(Self::$lock,)*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$lock => $name,)*
                }
            }
        }
    };
}

locks! {
    CaKeys = "CA keys",
    ClusterMetrics = "metrics of clusters",
    ClusterObjects = "objects of a Cluster",
    ClusterRecords = "records of a cluster",
    ClusterWaiters = "waiters for Clusters",
    Clusters = "Cluster API objects",
    ConfigMapReaders = "readers of ConfigMaps",
    Connections = "connections to an API server",
    Departures = "deleted Machines",
    Ec2Answers = "answers of EC2",
    Ec2Calls = "EC2 calls of an identity",
    Ec2Clients = "clients of EC2",
    Ec2Queues = "queues of EC2 calls",
    Identities = "objects that name identities",
    Kinds = "Cluster API kinds",
    LogBudgets = "budgets of log lines",
    Lookups = "lookups of kinds",
    Memory = "memory of namespaces",
    Observations = "observations of clusters",
    Panics = "panics",
    Places = "places of clusters",
    Processor = "processor time of connections",
    Rate = "rate of calls",
    RecordCaches = "caches of records",
    RecordLimits = "namespaces with too many records",
    RoleSessions = "sessions of roles",
    ServedNamespaces = "served namespaces",
    ServerTime = "time of an API server",
    Session = "credentials of an identity",
    SignerLogLines = "log lines of a signer",
    SlowLookups = "slow lookups",
    StsRates = "rates of STS calls",
    StsRefusals = "refusals of STS",
    StsSignatures = "signatures of STS calls",
    StsTurns = "turns of STS calls",
    TenantAccounts = "accounts of Clusters",
    TenantSessions = "sessions of Clusters",
    Traffic = "traffic of API servers",
    TrafficNamespaces = "namespaces of API servers",
    Turns = "turns of calls",
    Watches = "metrics of a watch",
}

impl fmt::Display for Lock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
