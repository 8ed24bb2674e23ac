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

/// Reasons that several places report.
pub mod reason {
    /// Nothing is known yet.
    pub const PENDING: &str = "Pending";
    /// The kubeconfig's user may not do what is needed.
    pub const KUBECONFIG_WITHOUT_ACCESS: &str = "KubeconfigWithoutAccess";
    /// The API server does not answer.
    pub const UNREACHABLE: &str = "Unreachable";
    /// A `ConfigMap` is missing, or cannot be read.
    pub const CONFIG_MAP_UNREADABLE: &str = "ConfigMapUnreadable";
}

/// Kubernetes' limit of a condition's message, in bytes.
const MAX_MESSAGE: usize = 32 * 1024;

/// Whether something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It is not known.
    Unknown,
}

impl ConditionStatus {
    /// As a condition has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
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
    let status = report.holds.as_str();
    let since = find(conditions, report.of).filter(|one| one.status == status);
    let since = since.map_or(now, |one| &one.last_transition_time);
    let end = report.message.floor_char_boundary(MAX_MESSAGE);
    let next = Condition {
        type_: report.of.to_owned(),
        status: status.to_owned(),
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
        reason: "Ready",
        message: String::new(),
    };

    #[test]
    fn what_is_said_again_changes_nothing() {
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
