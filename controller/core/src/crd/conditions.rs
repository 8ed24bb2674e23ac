//! Conditions in the Cluster API style.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kubelet_attestation::errors::shortened;

/// Whether kubelets of the Cluster can get certificates. If not, the reason shows the problem to fix.
pub const READY: &str = "Ready";
/// Whether requests without evidence are rejected: no approver in the cluster accepts them.
pub const AUTO_APPROVE_PATHS_CLOSED: &str = "AutoApprovePathsClosed";
/// Whether the workload cluster's API server responds.
pub const WORKLOAD_CLUSTER_REACHABLE: &str = "WorkloadClusterReachable";
/// Whether the AWS identity in the Cluster's objects exists and can be used.
pub const AWS_IDENTITY_RESOLVED: &str = "AWSIdentityResolved";
/// Whether AWS accepts the credentials of that identity.
pub const AWS_CREDENTIALS_READY: &str = "AWSCredentialsReady";
/// Whether no other Cluster in the same AWS account has the name of this Cluster.
pub const AWS_CLUSTER_NAME_UNIQUE: &str = "AWSClusterNameUnique";
/// Whether the controller read the `ConfigMaps` with endorsement keys, and every entry in them.
pub const ENDORSEMENT_KEY_LISTS_READ: &str = "EndorsementKeyListsRead";
/// Whether the endorsement key certificates and their CA certificates remain valid for the next 90 days.
pub const ENDORSEMENT_CERTIFICATES_VALID: &str = "EndorsementCertificatesValid";
/// Whether the firmware of all machines measures their boot.
pub const BOOT_MEASURED: &str = "BootMeasured";
/// Whether the attestation providers of all live node identities are authorized.
pub const RECORD_ATTESTORS_AUTHORIZED: &str = "RecordAttestorsAuthorized";
/// Whether the controller has a verifier for each authorized attestation provider.
pub const ATTESTORS_AVAILABLE: &str = "AttestorsAvailable";
/// Whether the Service addresses are known, so no serving certificate contains one of them.
pub const SERVICE_RANGES_KNOWN: &str = "ServiceRangesKnown";
/// Whether each node that requires a bootstrap token to rejoin has a valid one.
pub const NODES_CAN_RETURN: &str = "NodesCanReturn";
/// Whether control-plane nodes of the Cluster can get certificates. Only set for a managed control plane.
pub const CONTROL_PLANE_SUPPORTED: &str = "ControlPlaneSupported";
/// Whether only this controller approves requests for serving certificates of kubelets.
pub const NO_OTHER_SERVING_APPROVER: &str = "NoOtherServingApprover";

/// Condition reasons.
pub mod reason {
    /// The Cluster has no problem.
    pub const READY: &str = "Ready";
    /// The state is not known yet.
    pub const PENDING: &str = "Pending";
    /// The Cluster or the `KubeletAuthentication` is paused. The controller does not do anything.
    pub const PAUSED: &str = "Paused";
    /// No Cluster has this name.
    pub const CLUSTER_NOT_FOUND: &str = "ClusterNotFound";
    /// The name of the resource does not match its Cluster.
    pub const MISNAMED: &str = "Misnamed";
    /// Cluster API has not created the Cluster's kubeconfig yet.
    pub const KUBECONFIG_NOT_FOUND: &str = "KubeconfigNotFound";
    /// The kubeconfig has a field that is not accepted.
    pub const KUBECONFIG_REFUSED: &str = "KubeconfigRefused";
    /// The user of the kubeconfig does not have the required permissions.
    pub const KUBECONFIG_WITHOUT_ACCESS: &str = "KubeconfigWithoutAccess";
    /// The API server does not respond.
    pub const UNREACHABLE: &str = "Unreachable";
    /// The Kubernetes version of the API server is too old.
    pub const KUBERNETES_TOO_OLD: &str = "KubernetesTooOld";
    /// The last round of periodic work was incomplete.
    pub const UPKEEP_INCOMPLETE: &str = "UpkeepIncomplete";
    /// The Machines of too many node identities are missing at the same time. None is retired until an operator allows
    /// it.
    pub const MANY_MACHINES_MISSING: &str = "ManyMachinesMissing";
    /// Cluster API has not created the Cluster's CA yet.
    pub const CA_NOT_FOUND: &str = "CANotFound";
    /// The CA Secret does not contain a valid certificate and key.
    pub const CA_INVALID: &str = "CAInvalid";
    /// The CA key does not match its certificate.
    pub const CA_KEY_MISMATCH: &str = "CAKeyMismatch";
    /// The CA certificate has expired.
    pub const CA_EXPIRED: &str = "CAExpired";
    /// Another Cluster has the same CA key, so a certificate for one Cluster is valid in the other.
    pub const SHARED_CA: &str = "SharedCA";
    /// The namespace has more Clusters than the controller serves in one namespace.
    pub const TOO_MANY_CLUSTERS: &str = "TooManyClusters";
    /// The CA Secret has no key, and the controller has no external signer.
    pub const CA_KEY_NOT_FOUND: &str = "CAKeyNotFound";
    /// The controller runs without --allow-insecure.
    pub const INSECURE_NOT_ALLOWED: &str = "InsecureNotAllowed";
    /// This controller has no verifier for an authorized attestation provider.
    pub const ATTESTOR_UNKNOWN: &str = "AttestorUnknown";
    /// An audience is invalid.
    pub const AUDIENCE_INVALID: &str = "AudienceInvalid";
    /// Settings contradict each other, or have no effect in combination.
    pub const SETTINGS_INVALID: &str = "SettingsInvalid";
    /// A range in `servingAddressRanges` is invalid.
    pub const SERVING_ADDRESS_RANGE_INVALID: &str = "ServingAddressRangeInvalid";
    /// The controller has an internal error. It retries.
    pub const INTERNAL_ERROR: &str = "InternalError";
    /// The API server responds.
    pub const REACHABLE: &str = "Reachable";
    /// The API server confirms that no auto-approval path is open.
    pub const CLOSED: &str = "Closed";
    /// kubeadm's bindings approve requests without evidence.
    pub const AUTO_APPROVE_BINDING_FOUND: &str = "AutoApproveBindingFound";
    /// The bindings remain until every Node has a node identity, and every bootstrap template contains the plugin.
    pub const WAITING_FOR_RECORDS: &str = "WaitingForRecords";
    /// A different auto-approval path is open for requests from bootstrap users.
    pub const OPEN_BY_OTHER_MEANS: &str = "OpenByOtherMeans";
    /// The attestation providers of all live node identities are authorized.
    pub const AUTHORIZED: &str = "Authorized";
    /// The controller has a verifier for each authorized attestation provider.
    pub const ALL_AVAILABLE: &str = "AllAvailable";
    /// Nodes with live node identities cannot renew, because their attestation provider is not authorized.
    pub const ATTESTOR_NOT_AUTHORIZED: &str = "AttestorNotAuthorized";
    /// Each node that requires a bootstrap token has a valid one.
    pub const TOKENS_LIVE: &str = "TokensLive";
    /// Nodes that require a bootstrap token to rejoin have no valid one.
    pub const TOKENS_EXPIRED: &str = "TokensExpired";
    /// The Service addresses are known.
    pub const KNOWN: &str = "Known";
    /// The Service addresses are not known.
    pub const SERVICE_RANGES_UNKNOWN: &str = "ServiceRangesUnknown";
    /// A Service CIDR of the Cluster is not a valid address range.
    pub const SERVICE_RANGE_INVALID: &str = "ServiceRangeInvalid";
    /// The condition does not apply to this Cluster.
    pub const NOT_APPLICABLE: &str = "NotApplicable";
    /// The controller's settings exclude an authorized attestation provider.
    pub const ATTESTOR_UNUSABLE: &str = "AttestorUnusable";
    /// The identity in the Cluster's objects exists and can be used.
    pub const RESOLVED: &str = "Resolved";
    /// The identity for AWS calls is not known.
    pub const IDENTITY_NOT_RESOLVED: &str = "IdentityNotResolved";
    /// The controller calls AWS with its own identity.
    pub const CONTROLLER_IDENTITY: &str = "ControllerIdentity";
    /// AWS accepted the credentials.
    pub const CREDENTIALS_ACCEPTED: &str = "CredentialsAccepted";
    /// The credentials are missing, AWS does not accept them, or they do not have the required permissions.
    pub const CREDENTIALS_UNUSABLE: &str = "CredentialsUnusable";
    /// No other Cluster with this name has the same AWS account.
    pub const NAME_UNIQUE: &str = "NameUnique";
    /// Another Cluster with this name has the same AWS account.
    pub const NAME_NOT_UNIQUE: &str = "NameNotUnique";
    /// The provider of the control plane signs certificates itself, and does not expose the CA key.
    pub const MANAGED_CONTROL_PLANE: &str = "ManagedControlPlane";
    /// The controller read all `ConfigMaps` with endorsement keys.
    pub const LISTS_READ: &str = "ListsRead";
    /// A `ConfigMap` is missing or unreadable.
    pub const CONFIG_MAP_UNREADABLE: &str = "ConfigMapUnreadable";
    /// A `ConfigMap` contains malformed entries.
    pub const ENTRIES_MALFORMED: &str = "EntriesMalformed";
    /// No CA certificate or endorsement key certificate expires within 90 days.
    pub const CERTIFICATES_VALID: &str = "CertificatesValid";
    /// A CA certificate or endorsement key certificate expires within 90 days.
    pub const CERTIFICATE_EXPIRES: &str = "CertificateExpires";
    /// A CA certificate or endorsement key certificate has expired.
    pub const CERTIFICATE_EXPIRED: &str = "CertificateExpired";
    /// No other approver was found.
    pub const NONE_FOUND: &str = "NoneFound";
    /// Another approver approved requests for serving certificates.
    pub const APPROVED_BY_OTHERS: &str = "ApprovedByOthers";
    /// Another signer signed requests for serving certificates that the controller signs.
    pub const SIGNED_BY_OTHERS: &str = "SignedByOthers";
    /// Bindings permit others to approve requests for serving certificates.
    pub const OTHERS_CAN_APPROVE: &str = "OthersCanApprove";
    /// The controller is not allowed to list the roles of the workload cluster.
    pub const ROLES_UNREADABLE: &str = "RolesUnreadable";
    /// All quotes cover registers that the firmware extended.
    pub const MEASURED: &str = "Measured";
    /// Machines quoted registers that their firmware did not extend.
    pub const NOT_MEASURED: &str = "NotMeasured";
}

/// The types of the conditions that the controller writes. Conditions of other types belong to other controllers.
const OWN: [&str; 15] = [
    READY,
    AUTO_APPROVE_PATHS_CLOSED,
    WORKLOAD_CLUSTER_REACHABLE,
    AWS_IDENTITY_RESOLVED,
    AWS_CREDENTIALS_READY,
    AWS_CLUSTER_NAME_UNIQUE,
    ENDORSEMENT_KEY_LISTS_READ,
    ENDORSEMENT_CERTIFICATES_VALID,
    BOOT_MEASURED,
    RECORD_ATTESTORS_AUTHORIZED,
    ATTESTORS_AVAILABLE,
    SERVICE_RANGES_KNOWN,
    NODES_CAN_RETURN,
    CONTROL_PLANE_SUPPORTED,
    NO_OTHER_SERVING_APPROVER,
];

/// The maximum size of a condition's message that the controller writes, in bytes. Kubernetes allows 32 KiB, but the
/// controller keeps the conditions of every Cluster in memory.
const MAX_MESSAGE: usize = 4 * 1024;

/// The status of a condition. `Display` writes the value of the condition's field `status`.
#[derive(derive_more::Display, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition is true.
    True,
    /// The condition is false.
    False,
    /// The status is not known.
    Unknown,
}

/// A condition to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionReport {
    /// The condition's type.
    pub of: &'static str,
    /// The status.
    pub holds: ConditionStatus,
    /// The reason, in one word.
    pub reason: &'static str,
    /// The message for operators. The message can be empty, and is truncated at 4 KiB.
    pub message: String,
}

/// Sets a condition, and returns whether this changes the list.
///
/// `observed_generation` is the `metadata.generation` that the report describes. The time of the last transition
/// changes only with the status. `Ready` is the first condition. The others are sorted by type.
pub fn set(
    conditions: &mut Vec<Condition>,
    report: &ConditionReport,
    observed_generation: Option<i64>,
    now: &Time,
) -> bool {
    let status = report.holds.to_string();
    let since = find(conditions, report.of).filter(|one| one.status == status);
    let since = since.map_or(now, |one| &one.last_transition_time);
    let next = Condition {
        type_: report.of.to_owned(),
        status,
        reason: report.reason.to_owned(),
        message: shortened(&report.message, MAX_MESSAGE).to_owned(),
        observed_generation,
        last_transition_time: since.clone(),
    };
    if conditions.contains(&next) {
        return false;
    }
    conditions.retain(|one| one.type_ != report.of);
    conditions.push(next);
    conditions.sort_by(|a, b| rank(a).cmp(&rank(b)));
    true
}

/// Whether the controller writes conditions of this type.
pub fn is_own(of: &str) -> bool {
    OWN.contains(&of)
}

/// Shortens the message to the length that the controller writes. Other clients can write longer messages.
pub fn shorten(condition: &mut Condition) {
    let end = shortened(&condition.message, MAX_MESSAGE).len();
    condition.message.truncate(end);
    condition.message.shrink_to_fit();
}

/// Finds the condition of this type.
pub fn find<'a>(conditions: &'a [Condition], of: &str) -> Option<&'a Condition> {
    conditions.iter().find(|one| one.type_ == of)
}

fn rank(condition: &Condition) -> (bool, &str) {
    (condition.type_ != READY, &condition.type_)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap())
    }

    const READY_NOW: ConditionReport = ConditionReport {
        of: READY,
        holds: ConditionStatus::True,
        reason: reason::READY,
        message: String::new(),
    };

    #[test]
    fn an_unchanged_condition_is_not_updated() {
        let mut conditions = Vec::new();

        assert!(set(&mut conditions, &READY_NOW, Some(1), &at(1)));
        let before = conditions.clone();

        assert!(!set(&mut conditions, &READY_NOW, Some(1), &at(2)));
        assert_eq!(conditions, before);
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let mut conditions = Vec::new();
        set(&mut conditions, &READY_NOW, Some(1), &at(1));
        let with = |change: fn(&mut ConditionReport)| {
            let mut report = READY_NOW;
            change(&mut report);
            report
        };
        for (second, finding, generation, since) in [
            (2, with(|it| it.reason = "Other"), 1, 1),
            (3, with(|it| it.message = "words".to_owned()), 1, 1),
            (4, READY_NOW, 2, 1),
            (5, with(|it| it.holds = ConditionStatus::False), 1, 5),
            (6, with(|it| it.holds = ConditionStatus::Unknown), 1, 6),
            (7, READY_NOW, 1, 7),
        ] {
            let changed = set(&mut conditions, &finding, Some(generation), &at(second));
            assert!(changed, "{finding:?}");

            let condition = find(&conditions, READY).unwrap();
            assert_eq!(condition.last_transition_time, at(since), "{finding:?}");
            assert_eq!(conditions.len(), 1);
        }
    }

    #[test]
    fn the_ready_condition_comes_first_and_the_order_is_stable() {
        let mut conditions = Vec::new();
        for of in [WORKLOAD_CLUSTER_REACHABLE, READY, AUTO_APPROVE_PATHS_CLOSED] {
            let report = ConditionReport { of, ..READY_NOW };
            set(&mut conditions, &report, Some(1), &at(1));
        }

        let types: Vec<_> = conditions.iter().map(|one| one.type_.as_str()).collect();

        assert_eq!(
            types,
            [READY, AUTO_APPROVE_PATHS_CLOSED, WORKLOAD_CLUSTER_REACHABLE]
        );
    }

    #[test]
    fn a_message_is_truncated_between_characters() {
        let message = format!("{}é", "a".repeat(MAX_MESSAGE - 1));
        let mut conditions = Vec::new();

        let report = ConditionReport {
            message,
            ..READY_NOW
        };
        set(&mut conditions, &report, Some(1), &at(1));

        assert_eq!(conditions[0].message, "a".repeat(MAX_MESSAGE - 1));
        let mut long = conditions[0].clone();
        long.message = report.message;
        shorten(&mut long);
        assert_eq!(long, conditions[0]);
    }

    #[test]
    fn the_condition_types_of_the_controller_are_unique() {
        let (types, _) = include_str!("conditions.rs")
            .split_once("pub mod reason")
            .unwrap();
        let types = types
            .lines()
            .filter_map(|line| line.strip_prefix("pub const "));
        let types: Vec<&str> = types.filter_map(|line| line.split('"').nth(1)).collect();

        assert_eq!(types.len(), OWN.len());
        assert!(types.into_iter().all(is_own));
        assert!(!is_own("Paused"));
    }
}
