//! The intervals between inspections of a workload cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use kubelet_attestation::errors::error_chain;
use tokio::time::Instant;

use super::cut;
use crate::management::cluster_status::{ApiReachability, AutoApprove, Health};

/// The interval for a cluster with a problem that an operator can fix.
const WRONG_AGAIN: Duration = Duration::from_mins(1);

/// The interval for a cluster in which requests can be approved without evidence. This state can be intended.
const OPEN_AGAIN: Duration = Duration::from_mins(5);

/// The interval after the request watch failed or recovered. It is short, because `kubeadm upgrade apply` restarts the
/// API server, and creates its bindings again only after the restart.
const AFTER_RESTART: Duration = Duration::from_mins(5);

/// The HTTP status codes for a rejected user: unauthorized and forbidden.
const REFUSED: [u16; 2] = [401, 403];

/// The last inspection.
#[derive(Debug)]
pub(super) struct Inspection {
    pub(super) at: Instant,
    pub(super) found: Health,
    /// The inputs for counting the Nodes without a record. `None` if they were unavailable.
    pub(super) counted: Option<Counted>,
    /// Whether a watch caused the inspection: the request watch failed or recovered, or kubeadm's bindings were
    /// recreated.
    pub(super) watch_changed: bool,
}

/// The inputs for counting the Nodes without a record. When they change, the Nodes are counted again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// The number of live records.
    pub(super) live: usize,
    pub(super) has_tombstones: bool,
    /// The Nodes of Machines.
    pub(super) of_machines: BTreeSet<String>,
}

impl Inspection {
    /// Whether the next inspection is due.
    pub(super) fn is_over(&self, sync_period: Duration) -> bool {
        // The tolerance is necessary because the times of rounds vary by a few seconds.
        let mut period = period(&self.found, sync_period);
        if self.watch_changed {
            period = period.min(AFTER_RESTART);
        }
        self.at.elapsed() >= period.mul_f64(0.95)
    }
}

/// The time until the next inspection.
fn period(found: &Health, sync_period: Duration) -> Duration {
    let is_reachable = matches!(found.answers, ApiReachability::Yes(_));
    let is_wrong = !is_reachable || !found.missing.is_empty() || !found.failed.is_empty();
    let period = match found.paths {
        _ if is_wrong => WRONG_AGAIN,
        None | Some((AutoApprove::NotReviewed | AutoApprove::Waiting, _)) => WRONG_AGAIN,
        Some((AutoApprove::Closed, _)) => sync_period,
        Some((AutoApprove::Bindings | AutoApprove::Open, _)) => OPEN_AGAIN,
    };
    period.min(sync_period)
}

/// Converts a number of records for the status.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The state of an API server that did not respond successfully to the first calls of an inspection.
pub(super) fn refusal(error: &kube::Error) -> ApiReachability {
    let text = if let kube::Error::SerdeError(_) = error {
        // The parser's error contains the invalid value, and the server can be one that only the controller can reach.
        "the response is invalid".to_owned()
    } else {
        cut(error_chain(error))
    };
    if let kube::Error::Api(status) = error
        && REFUSED.contains(&status.code)
    {
        ApiReachability::Refused(text)
    } else {
        ApiReachability::No(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::ServerVersion;

    fn found(paths: Option<AutoApprove>) -> Health {
        let version = ServerVersion {
            name: "v1.36.0".to_owned(),
            number: Some((1, 36)),
        };
        Health {
            answers: ApiReachability::Yes(version),
            paths: paths.map(|found| (found, String::new())),
            ..Health::default()
        }
    }

    #[test]
    fn a_healthy_cluster_is_inspected_least_often() {
        let minutes = |found: &Health| period(found, Duration::from_mins(30)).as_secs() / 60;
        let closed = || found(Some(AutoApprove::Closed));
        let none = || "x".to_owned();

        assert_eq!(minutes(&closed()), 30);
        for wrong in [
            Health {
                answers: ApiReachability::No(none()),
                ..closed()
            },
            Health {
                answers: ApiReachability::Refused(none()),
                ..closed()
            },
            Health {
                answers: ApiReachability::Unknown,
                ..closed()
            },
            Health {
                missing: vec![none()],
                ..closed()
            },
            Health {
                failed: vec![none()],
                ..closed()
            },
            found(None),
            found(Some(AutoApprove::NotReviewed)),
            found(Some(AutoApprove::Waiting)),
        ] {
            assert_eq!(minutes(&wrong), 1, "{wrong:?}");
        }
        for open in [AutoApprove::Bindings, AutoApprove::Open] {
            assert_eq!(minutes(&found(Some(open))), 5);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_api_server_is_inspected_again_after_5_minutes() {
        let sync_period = Duration::from_mins(30);
        for (watch_changed, minutes) in [(false, 30), (true, 5)] {
            let inspection = Inspection {
                at: Instant::now(),
                found: found(Some(AutoApprove::Closed)),
                counted: None,
                watch_changed,
            };
            let period = Duration::from_mins(minutes).mul_f64(0.95);
            tokio::time::advance(period.saturating_sub(Duration::from_secs(1))).await;
            assert!(!inspection.is_over(sync_period), "{watch_changed}");
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(inspection.is_over(sync_period), "{watch_changed}");
        }
    }

    #[test]
    fn every_cluster_is_inspected_at_least_each_sync_period() {
        let second = Duration::from_secs(1);
        let open = found(Some(AutoApprove::Open));

        assert_eq!(period(&open, second), second);
        assert_eq!(period(&Health::default(), second), second);
    }
}
