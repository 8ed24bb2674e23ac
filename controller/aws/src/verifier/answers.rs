//! The last EC2 responses to calls with the controller's credentials.

use std::time::Duration;

use node_attestation_core::crd::conditions::{self, ConditionReport, ConditionStatus, reason};
use node_attestation_core::refusal::Unavailable;
use node_attestation_runtime::shared::{Lock, Shared, Swept, visited};
use tokio::time::Instant;

use crate::ec2::Outage;

/// The error of the credentials, keyed by cluster and region. `None` after a successful response.
///
/// A cluster has an entry for each region in which it has instances. Therefore a condition does not contain the regions
/// and errors of other tenants.
#[derive(Debug)]
pub(super) struct Answers(Shared<Swept<(String, String), Answer>>);

impl Default for Answers {
    fn default() -> Self {
        Self(Shared::new(Lock::Ec2Answers, Swept::default()))
    }
}

/// EC2's last response, with the error of the credentials, if any.
#[derive(Debug)]
struct Answer {
    wrong: Option<String>,
    at: Instant,
}

/// The time after which the last response is obsolete. A node renews at least every 28 hours, so after 36 hours without
/// a call, the region has no active instance.
const EXPIRES: Duration = Duration::from_hours(36);

impl Answers {
    /// Records the outcome of an EC2 call about an instance of `cluster`. Ignores a failure that the credentials did
    /// not cause: a timeout, throttling, or another EC2 error.
    pub(super) fn heard(&self, cluster: &str, region: &str, failure: Option<&Unavailable>) {
        let outage = failure.and_then(Unavailable::cause::<Outage>);
        if outage.is_some_and(|outage| !outage.kind.is_of_credentials()) {
            return;
        }
        let wrong = failure.map(Unavailable::to_string);
        let at = Instant::now();
        let key = (cluster.to_owned(), region.to_owned());
        self.0.write(|answers| {
            let is_over = |_: &_, known: &mut Answer| at - known.at >= EXPIRES;
            answers.insert(key, Answer { wrong, at }, is_over);
        });
    }

    /// The conditions of `cluster` about these regions. If `regions` is empty, the conditions are about all regions in
    /// which the cluster has instances.
    pub(super) fn reports(&self, cluster: &str, regions: &[String]) -> Vec<ConditionReport> {
        let resolved = ConditionReport {
            of: conditions::AWS_IDENTITY_RESOLVED,
            // No identity was resolved.
            holds: ConditionStatus::Unknown,
            reason: reason::CONTROLLER_IDENTITY,
            message: "EC2 is called with the controller's own credentials".to_owned(),
        };
        vec![resolved, self.credentials(cluster, regions, false)]
    }

    /// Whether EC2 accepts the credentials of `cluster` in these regions. Before the first EC2 call, whether STS has
    /// accepted them.
    pub(super) fn credentials(
        &self,
        cluster: &str,
        regions: &[String],
        sts_accepts: bool,
    ) -> ConditionReport {
        let now = Instant::now();
        let (mut well, mut ill) = (Vec::new(), Vec::new());
        self.0.read(|answers| {
            let first = (cluster.to_owned(), String::new());
            let own = answers.entries().range(first..);
            let own = visited(own.take_while(|((asking, _), _)| asking == cluster));
            for ((_, region), answer) in own {
                let is_asked = regions.is_empty() || regions.contains(region);
                if is_asked && now - answer.at < EXPIRES {
                    match &answer.wrong {
                        None => well.push(region.clone()),
                        Some(wrong) => ill.push(wrong.clone()),
                    }
                }
            }
        });
        let (holds, reason, message) = if !ill.is_empty() {
            let wrong = ill.join("; ");
            (ConditionStatus::False, reason::CREDENTIALS_UNUSABLE, wrong)
        } else if well.is_empty() && sts_accepts {
            let message = "STS accepted the credentials; EC2 has not been called yet".to_owned();
            (ConditionStatus::True, reason::CREDENTIALS_ACCEPTED, message)
        } else if well.is_empty() {
            let message = "EC2 has not been called yet: no instance has sent a request".to_owned();
            (ConditionStatus::Unknown, reason::PENDING, message)
        } else {
            let message = format!("EC2 responded in {}", well.join(", "));
            (ConditionStatus::True, reason::CREDENTIALS_ACCEPTED, message)
        };
        ConditionReport {
            of: conditions::AWS_CREDENTIALS_READY,
            holds,
            reason,
            message,
        }
    }
}

#[cfg(test)]
mod tests {
    use node_attestation_runtime::shared::testing::most_visited;

    use super::*;
    use crate::ec2::OutageKind;

    const CLUSTER: &str = "9a1b";

    fn credentials(answers: &Answers, regions: &[&str]) -> (ConditionStatus, &'static str) {
        let regions: Vec<_> = regions.iter().map(|&region| region.to_owned()).collect();
        let reports = answers.reports(CLUSTER, &regions);
        let [resolved, ready] = <[ConditionReport; 2]>::try_from(reports).unwrap();
        assert_eq!(
            (resolved.holds, resolved.reason),
            (ConditionStatus::Unknown, "ControllerIdentity")
        );
        (ready.holds, ready.reason)
    }

    fn refused(region: &str) -> Unavailable {
        Unavailable::new(Outage {
            region: region.to_owned(),
            kind: OutageKind::Credentials("AuthFailure".to_owned()),
        })
    }

    fn late(region: &str) -> Unavailable {
        Unavailable::new(Outage {
            region: region.to_owned(),
            kind: OutageKind::TimedOut,
        })
    }

    #[test]
    fn credentials_are_ready_after_a_response_but_not_after_a_refusal() {
        let answers = Answers::default();
        assert_eq!(
            credentials(&answers, &[]),
            (ConditionStatus::Unknown, "Pending")
        );

        answers.heard(CLUSTER, "eu-west-1", None);
        let accepted = (ConditionStatus::True, "CredentialsAccepted");
        assert_eq!(credentials(&answers, &[]), accepted);

        answers.heard(CLUSTER, "us-east-1", Some(&refused("us-east-1")));
        let unusable = (ConditionStatus::False, "CredentialsUnusable");
        assert_eq!(credentials(&answers, &[]), unusable);
        assert_eq!(credentials(&answers, &["us-east-1"]), unusable);
        assert_eq!(credentials(&answers, &["eu-west-1"]), accepted);
        let pending = (ConditionStatus::Unknown, "Pending");
        assert_eq!(credentials(&answers, &["eu-west-2"]), pending);

        answers.heard(CLUSTER, "us-east-1", None);
        assert_eq!(credentials(&answers, &[]), accepted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_in_an_unused_region_is_dropped_after_a_while() {
        let answers = Answers::default();
        answers.heard(CLUSTER, "us-east-1", Some(&refused("us-east-1")));
        tokio::time::advance(EXPIRES / 2).await;
        answers.heard(CLUSTER, "eu-west-1", None);
        let unusable = (ConditionStatus::False, "CredentialsUnusable");
        assert_eq!(credentials(&answers, &[]), unusable);

        tokio::time::advance(EXPIRES / 2).await;

        let accepted = (ConditionStatus::True, "CredentialsAccepted");
        assert_eq!(credentials(&answers, &[]), accepted);
    }

    #[test]
    fn a_cluster_report_excludes_regions_and_errors_of_other_clusters() {
        let answers = Answers::default();
        answers.heard("another", "us-east-1", Some(&refused("us-east-1")));
        answers.heard("another", "eu-west-1", None);

        let pending = (ConditionStatus::Unknown, "Pending");
        assert_eq!(credentials(&answers, &[]), pending);
        assert_eq!(credentials(&answers, &["us-east-1"]), pending);

        answers.heard(CLUSTER, "eu-north-1", None);
        let report = answers.credentials(CLUSTER, &[], false);
        assert_eq!(report.message, "EC2 responded in eu-north-1");
    }

    #[test]
    fn recording_a_result_visits_no_other_clusters() {
        let answers = Answers::default();
        for number in 0..1000 {
            answers.heard(&format!("other-{number}"), "eu-west-1", None);
        }

        let visited = most_visited(|| {
            answers.heard(CLUSTER, "eu-west-1", None);
            let report = answers.credentials(CLUSTER, &[], false);
            assert_eq!(report.message, "EC2 responded in eu-west-1");
        });

        assert!(visited[&Lock::Ec2Answers] < 10, "{visited:?}");
    }

    #[test]
    fn an_outage_does_not_change_the_credentials_condition() {
        let answers = Answers::default();
        answers.heard(CLUSTER, "eu-west-1", None);

        answers.heard(CLUSTER, "eu-west-1", Some(&late("eu-west-1")));

        let accepted = (ConditionStatus::True, "CredentialsAccepted");
        assert_eq!(credentials(&answers, &[]), accepted);
    }

    #[test]
    fn unavailable_credentials_are_reported_in_the_condition() {
        let answers = Answers::default();

        answers.heard(
            CLUSTER,
            "eu-west-1",
            Some(&Unavailable::new("nothing was found")),
        );

        let unusable = (ConditionStatus::False, "CredentialsUnusable");
        assert_eq!(credentials(&answers, &[]), unusable);
    }
}
