//! Conditions in the Cluster API style.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Whether kubelets of the Cluster can get certificates; false has a reason that a person can act
/// on.
pub const READY: &str = "Ready";
/// Whether no request without evidence is approved by anybody.
pub const AUTO_APPROVE_PATHS_CLOSED: &str = "AutoApprovePathsClosed";
/// Whether the workload cluster's API server answers.
pub const WORKLOAD_CLUSTER_REACHABLE: &str = "WorkloadClusterReachable";
/// Whether the identity that the Cluster names for AWS is there, and may be used.
pub const AWS_IDENTITY_RESOLVED: &str = "AWSIdentityResolved";
/// Whether AWS accepts the credentials of that identity.
pub const AWS_CREDENTIALS_READY: &str = "AWSCredentialsReady";
/// Whether the `ConfigMaps` that list endorsement keys were read, and every entry in them.
pub const ENDORSEMENT_KEY_LISTS_READ: &str = "EndorsementKeyListsRead";
/// Whether the certificates that vouch for endorsement keys stay valid for the next 90 days.
pub const ENDORSEMENT_CERTIFICATES_VALID: &str = "EndorsementCertificatesValid";
/// Whether the firmware of all machines measures their boot.
pub const BOOT_MEASURED: &str = "BootMeasured";
/// Whether the attestors of all live records are authorized.
pub const RECORD_ATTESTORS_AUTHORIZED: &str = "RecordAttestorsAuthorized";
/// Whether the controller has a verifier for each authorized attestor.
pub const ATTESTORS_AVAILABLE: &str = "AttestorsAvailable";
/// Whether the addresses of Services are known, so that no serving certificate is for one of them.
pub const SERVICE_RANGES_KNOWN: &str = "ServiceRangesKnown";
/// Whether each node that needs a bootstrap token to come back has a live one.
pub const NODES_CAN_RETURN: &str = "NodesCanReturn";
/// Whether nodes of the Cluster's control plane can get certificates at all; set where it is a managed one.
pub const CONTROL_PLANE_SUPPORTED: &str = "ControlPlaneSupported";

/// Reasons of conditions.
pub mod reason {
    /// All is well.
    pub const READY: &str = "Ready";
    /// Nothing is known yet.
    pub const PENDING: &str = "Pending";
    /// The Cluster, or this resource, is paused: the controller does nothing.
    pub const PAUSED: &str = "Paused";
    /// There is no Cluster of this name.
    pub const CLUSTER_NOT_FOUND: &str = "ClusterNotFound";
    /// The resource has another name than its Cluster.
    pub const MISNAMED: &str = "Misnamed";
    /// Cluster API has not made the Cluster's kubeconfig yet.
    pub const KUBECONFIG_NOT_FOUND: &str = "KubeconfigNotFound";
    /// The kubeconfig has a field that is not accepted.
    pub const KUBECONFIG_REFUSED: &str = "KubeconfigRefused";
    /// The kubeconfig's user may not do what is needed.
    pub const KUBECONFIG_WITHOUT_ACCESS: &str = "KubeconfigWithoutAccess";
    /// The API server does not answer.
    pub const UNREACHABLE: &str = "Unreachable";
    /// The API server is older than what is needed.
    pub const KUBERNETES_TOO_OLD: &str = "KubernetesTooOld";
    /// The last round of periodic work was incomplete.
    pub const UPKEEP_INCOMPLETE: &str = "UpkeepIncomplete";
    /// The Machines of too many records are missing at once; none is retired until a person allows it.
    pub const MANY_MACHINES_MISSING: &str = "ManyMachinesMissing";
    /// Cluster API has not made the Cluster's CA yet.
    pub const CA_NOT_FOUND: &str = "CANotFound";
    /// The CA Secret cannot be read as a certificate and its key.
    pub const CA_INVALID: &str = "CAInvalid";
    /// The CA's key is not that of its certificate.
    pub const CA_KEY_MISMATCH: &str = "CAKeyMismatch";
    /// The CA's certificate has expired.
    pub const CA_EXPIRED: &str = "CAExpired";
    /// Another Cluster has the same CA key: a certificate of one works in the other.
    pub const SHARED_CA: &str = "SharedCA";
    /// The namespace has more Clusters than the controller serves of one.
    pub const TOO_MANY_CLUSTERS: &str = "TooManyClusters";
    /// The CA Secret has no key, and the controller has no external signer.
    pub const CA_KEY_NOT_FOUND: &str = "CAKeyNotFound";
    /// The controller does not run with --allow-insecure.
    pub const INSECURE_NOT_ALLOWED: &str = "InsecureNotAllowed";
    /// This controller has no verifier of an authorized attestor.
    pub const ATTESTOR_UNKNOWN: &str = "AttestorUnknown";
    /// An audience is invalid.
    pub const AUDIENCE_INVALID: &str = "AudienceInvalid";
    /// Settings contradict each other, or have no effect together.
    pub const SETTINGS_INVALID: &str = "SettingsInvalid";
    /// A range that the addresses of serving certificates are limited to is invalid.
    pub const SERVING_ADDRESS_RANGE_INVALID: &str = "ServingAddressRangeInvalid";
    /// The controller failed in a way that it should not; it tries again.
    pub const INTERNAL_ERROR: &str = "InternalError";
    /// The API server answers.
    pub const REACHABLE: &str = "Reachable";
    /// The API server confirms that the paths are closed.
    pub const CLOSED: &str = "Closed";
    /// kubeadm's bindings let unattested requests be approved.
    pub const AUTO_APPROVE_BINDING_FOUND: &str = "AutoApproveBindingFound";
    /// They stay until every Node has a record.
    pub const WAITING_FOR_RECORDS: &str = "WaitingForRecords";
    /// Something else lets a bootstrap user's requests be approved.
    pub const OPEN_BY_OTHER_MEANS: &str = "OpenByOtherMeans";
    /// The attestors of all live records are authorized.
    pub const AUTHORIZED: &str = "Authorized";
    /// The controller has a verifier for each authorized attestor.
    pub const ALL_AVAILABLE: &str = "AllAvailable";
    /// Nodes with live records cannot renew: their attestor is not authorized.
    pub const ATTESTOR_NOT_AUTHORIZED: &str = "AttestorNotAuthorized";
    /// Each node that needs a bootstrap token has a live one.
    pub const TOKENS_LIVE: &str = "TokensLive";
    /// Nodes need a bootstrap token to rejoin, and have no live one.
    pub const TOKENS_EXPIRED: &str = "TokensExpired";
    /// The addresses of Services are known.
    pub const KNOWN: &str = "Known";
    /// The addresses of Services are not known.
    pub const SERVICE_RANGES_UNKNOWN: &str = "ServiceRangesUnknown";
    /// An entry of the Cluster is no range of addresses.
    pub const SERVICE_RANGE_INVALID: &str = "ServiceRangeInvalid";
    /// Not needed here.
    pub const NOT_APPLICABLE: &str = "NotApplicable";
    /// The settings of the controller exclude an authorized attestor.
    pub const ATTESTOR_UNUSABLE: &str = "AttestorUnusable";
    /// The identity that the Cluster names is there, and may be used.
    pub const RESOLVED: &str = "Resolved";
    /// The identity for calls of AWS is not known.
    pub const IDENTITY_NOT_RESOLVED: &str = "IdentityNotResolved";
    /// The controller calls AWS with its own identity.
    pub const CONTROLLER_IDENTITY: &str = "ControllerIdentity";
    /// AWS answered.
    pub const CREDENTIALS_ACCEPTED: &str = "CredentialsAccepted";
    /// There are no credentials, or AWS does not accept them, or they may not do what is needed.
    pub const CREDENTIALS_UNUSABLE: &str = "CredentialsUnusable";
    /// The provider of the control plane signs certificates by itself, and gives nobody the CA's key.
    pub const MANAGED_CONTROL_PLANE: &str = "ManagedControlPlane";
    /// All lists were read.
    pub const LISTS_READ: &str = "ListsRead";
    /// A `ConfigMap` is missing, or cannot be read.
    pub const CONFIG_MAP_UNREADABLE: &str = "ConfigMapUnreadable";
    /// Entries of a `ConfigMap` are malformed.
    pub const ENTRIES_MALFORMED: &str = "EntriesMalformed";
    /// No certificate of an authority or an endorsement key expires within 90 days.
    pub const CERTIFICATES_VALID: &str = "CertificatesValid";
    /// A certificate of an authority or an endorsement key expires within 90 days.
    pub const CERTIFICATE_EXPIRES: &str = "CertificateExpires";
    /// A certificate of an authority or an endorsement key has expired.
    pub const CERTIFICATE_EXPIRED: &str = "CertificateExpired";
    /// Each quote is over registers that the firmware extended.
    pub const MEASURED: &str = "Measured";
    /// Machines quoted registers that their firmware did not extend.
    pub const NOT_MEASURED: &str = "NotMeasured";
}

/// Kubernetes' limit of a condition's message, in bytes.
const MAX_MESSAGE: usize = 32 * 1024;

/// Whether something holds; `Display` is as a condition has it.
#[derive(derive_more::Display, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known.
    Unknown,
}

/// A condition to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionReport {
    /// The condition's type.
    pub of: &'static str,
    /// Whether it holds.
    pub holds: ConditionStatus,
    /// Why, in one word.
    pub reason: &'static str,
    /// Why, for a person; may be empty. Cut at 32 KiB.
    pub message: String,
}

/// Sets a condition, and returns whether that changes anything.
///
/// `observed_generation` is the `metadata.generation` that the report is about. The time of the last
/// transition changes only with the status. `Ready` comes first, the others in order of their types.
pub fn set(
    conditions: &mut Vec<Condition>,
    report: &ConditionReport,
    observed_generation: Option<i64>,
    now: &Time,
) -> bool {
    let status = report.holds.to_string();
    let since = find(conditions, report.of).filter(|one| one.status == status);
    let since = since.map_or(now, |one| &one.last_transition_time);
    let end = report.message.floor_char_boundary(MAX_MESSAGE);
    let next = Condition {
        type_: report.of.to_owned(),
        status,
        reason: report.reason.to_owned(),
        message: report.message.get(..end).unwrap_or_default().to_owned(),
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

/// The condition of this type.
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
    fn the_time_changes_with_the_status_only() {
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
    fn ready_comes_first_and_the_others_in_order() {
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
    fn a_message_is_cut_between_characters() {
        let message = format!("{}é", "a".repeat(MAX_MESSAGE - 1));
        let mut conditions = Vec::new();

        let report = ConditionReport {
            message,
            ..READY_NOW
        };
        set(&mut conditions, &report, Some(1), &at(1));

        assert_eq!(conditions[0].message, "a".repeat(MAX_MESSAGE - 1));
    }
}
