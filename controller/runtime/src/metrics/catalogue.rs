//! The metrics: names, labels, and help texts. docs/metrics.md has the same table.

use prometheus_client::metrics::MetricType;

/// A metric.
#[derive(Debug)]
pub(super) struct Metric {
    /// The name without the suffix that the format adds: `_total` for a counter, and `_info` for an info.
    pub(super) base: &'static str,
    pub(super) kind: MetricType,
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests compare it"))]
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

const NONE: &[&str] = &[];
const CLUSTER: &[&str] = &["namespace", "cluster"];
const LEASE: &[&str] = &["lease"];
const WATCH: &[&str] = &["kind", "namespace", "cluster"];

macro_rules! metrics {
    ($($const:ident = $kind:ident $base:literal $labels:expr, $help:literal;)*) => {
        $(pub(super) const $const: Metric = Metric {
            base: $base,
            kind: MetricType::$kind,
            labels: $labels,
            help: $help,
        };)*

        /// All metrics.
        #[cfg(test)]
        pub(super) const ALL: &[Metric] = &[$($const),*];
    };
}

metrics! {
    BUILD = Info "node_attestation_build" &["version"],
        "The version of the controller";
    CSRS = Counter "node_attestation_csr" &["outcome", "reason", "provider"],
        "Decisions on requests; a pending request counts once";
    CSR_DURATION = Histogram "node_attestation_csr_duration_seconds" &["outcome"],
        "Time from the start of a decision until its answer is written";
    DENIALS = Counter "node_attestation_cluster_denials" &["namespace", "cluster", "reason"],
        "Denied requests of the cluster, grouped into reasons that indicate a copied machine and all other reasons";
    PENDING = Gauge "node_attestation_pending_csrs" CLUSTER,
        "Unanswered requests";
    OLDEST_PENDING = Gauge "node_attestation_oldest_pending_csr_seconds" CLUSTER,
        "Age of the oldest unanswered request";
    CLUSTERS = Gauge "node_attestation_clusters" &["phase"],
        "Clusters served by this replica";
    CONDITION = Gauge "node_attestation_cluster_condition" &["namespace", "cluster", "type", "status"],
        "1 for the current status of the condition";
    RECORDS = Gauge "node_attestation_records" &["namespace", "cluster", "state"],
        "Node identities";
    EARLIEST_EXPIRY = Gauge "node_attestation_earliest_expiry_timestamp_seconds" CLUSTER,
        "The earliest expiry of a live node's certificate that has not expired";
    OVERDUE = Gauge "node_attestation_overdue_nodes" CLUSTER,
        "Ready Nodes, up to 100, whose certificates are overdue for renewal";
    EXEMPT = Gauge "node_attestation_exempt_nodes" CLUSTER,
        "Exempt Nodes without a node identity, which can renew without evidence";
    OVERLAPS = Gauge "node_attestation_exempt_overlaps" CLUSTER,
        "Exempt names with two valid certificates from the built-in signer";
    OTHER_APPROVALS = Gauge "node_attestation_other_serving_approvals" &["namespace", "cluster", "approver"],
        "Requests for serving certificates that another approver approved in the last hour, grouped by the reason \
         that the approver wrote";
    VENDOR_EXPIRY = Gauge "node_attestation_endorsement_certificate_expiry_timestamp_seconds" CLUSTER,
        "The earliest expiry of an endorsement key certificate or of a CA certificate in its chain, reported from 90 \
         days before the expiry";
    UNMEASURED = Gauge "node_attestation_unmeasured_machines" CLUSTER,
        "Machines whose firmware does not extend the registers that the machines quote";
    LEADER = Gauge "node_attestation_leader" LEASE,
        "Whether this replica holds the Lease";
    LEASE_AGE = Gauge "node_attestation_lease_age_seconds" LEASE,
        "Time since this replica renewed the Lease that it holds";
    TERMS = Counter "node_attestation_terms" LEASE,
        "Number of times that this replica acquired the Lease";
    WATCH_UP = Gauge "node_attestation_watch_up" WATCH,
        "Whether the watch works";
    WATCH_AGE = Gauge "node_attestation_watch_age_seconds" WATCH,
        "Time since the last data from the API server on the watch";
    WATCH_FAILURES = Counter "node_attestation_watch_failures" &["kind"],
        "Watch failures";
    RECORD_WRITES = Counter "node_attestation_record_writes" &["operation", "result"],
        "Writes of node identities";
    STATUS_WRITES = Counter "node_attestation_status_writes" &["result"],
        "Status writes of KubeletAuthentications";
    CLOUD = Counter "node_attestation_cloud_requests" &["service", "operation", "result"],
        "Calls to cloud APIs";
    SIGNER = Counter "node_attestation_signer_requests" &["operation", "code"],
        "Calls to the external signer";
    SIGNER_DURATION = Histogram "node_attestation_signer_duration_seconds" &["operation", "code"],
        "Duration of calls to the external signer, including the time in the queue";
    SIGNER_PROBLEMS = Gauge "node_attestation_signer_problems" NONE,
        "CAs that the external signer cannot use, according to its last status";
    CPU = Counter "process_cpu_seconds" NONE,
        "Processor time";
    RESIDENT = Gauge "process_resident_memory_bytes" NONE,
        "Resident memory size";
    VIRTUAL = Gauge "process_virtual_memory_bytes" NONE,
        "Virtual memory size";
    THREADS = Gauge "process_threads" NONE,
        "Threads";
    OPEN_FILES = Gauge "process_open_fds" NONE,
        "Open files, including connections";
    MAX_FILES = Gauge "process_max_fds" NONE,
        "Maximum number of open files";
    STARTED = Gauge "process_start_time_seconds" NONE,
        "Start time of the process";
}
