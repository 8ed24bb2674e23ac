//! Events about the conditions that verifiers report, on `KubeletAuthentication` objects.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::{Client, Resource as _};
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::crd::conditions::{
    self, AWS_IDENTITY_RESOLVED, ConditionReport, ConditionStatus, reason,
};
use node_attestation_core::rate_limit::Rate;
use tokio::time::{Instant, timeout};

use crate::clock::now;
use crate::events;
use crate::object_key::ObjectKey;
use crate::turns::FairRate;

/// The minimum interval between two Events about one condition, because every write by a tenant can change the
/// condition.
const PAUSE: Duration = Duration::from_mins(1);

/// The maximum wait for a turn. If there is no turn, the Event or the write is due again at the next check of the
/// cluster.
const TURN: Duration = Duration::from_secs(1);

/// The shared rate of Events for all clusters. Thousands of clusters can share one identity.
pub(super) const RATE: Rate = Rate {
    burst: 100,
    every: Duration::from_millis(200),
};

/// Waits for a turn to write an Event or an object of this cluster. Returns `false` if there was no turn in time.
pub(super) async fn in_turn(rate: &FairRate, cluster: &ObjectKey) -> bool {
    timeout(TURN, rate.take(cluster)).await.is_ok()
}

/// The Events about the conditions of one cluster.
#[derive(Debug, Default)]
pub(super) struct ConditionEvents {
    reported: BTreeMap<&'static str, Reported>,
}

/// The state of a condition in the last Event. If there was no Event yet, the state of the condition in the object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reported {
    status: ConditionStatus,
    reason: String,
    message: String,
    not_before: Instant,
}

impl ConditionEvents {
    /// Writes an Event for each condition that has changed. A failed Event is due again at the next call.
    pub(super) async fn write(
        &mut self,
        (management, rate): (&Client, &FairRate),
        authentication: &KubeletAuthentication,
        reports: &[ConditionReport],
    ) {
        for report in self.due(authentication, reports, Instant::now()) {
            let Some(cluster) = ObjectKey::of(&authentication.metadata) else {
                return;
            };
            if !in_turn(rate, &cluster).await {
                return;
            }
            let is_true = report.holds == ConditionStatus::True;
            let kind = if is_true { "Normal" } else { "Warning" };
            let words = (kind, "Report", report.reason, report.message.clone());
            let regarding = authentication.object_ref(&());
            if events::write_one(management.clone(), regarding, words, now()).await {
                self.remember(report, Instant::now() + PAUSE);
            }
        }
    }

    fn remember(&mut self, report: &ConditionReport, not_before: Instant) {
        let reported = Reported {
            status: report.holds,
            reason: report.reason.to_owned(),
            message: report.message.clone(),
            not_before,
        };
        self.reported.insert(report.of, reported);
    }

    /// The reports that need an Event, because the status or the reason has changed. For an identity, a changed message
    /// also needs an Event. A new condition that is `True` needs no Event, except for an identity.
    fn due<'a>(
        &mut self,
        authentication: &KubeletAuthentication,
        reports: &'a [ConditionReport],
        now: Instant,
    ) -> Vec<&'a ConditionReport> {
        let mut due = Vec::new();
        for report in reports {
            let is_identity = report.of == AWS_IDENTITY_RESOLVED;
            let is_known = report.holds != ConditionStatus::Unknown
                || is_identity && report.reason != reason::PENDING;
            if !is_known {
                continue;
            }
            let differs = |status: &str, was: &str, message: &str| {
                (status, was) != (&*report.holds.to_string(), report.reason)
                    || is_identity && message != report.message
            };
            let is_due = match self.reported.get(report.of) {
                Some(reported) => {
                    let status = reported.status.to_string();
                    now >= reported.not_before
                        && differs(&status, &reported.reason, &reported.message)
                }
                // After a restart, old conditions are not reported again.
                None => match written(authentication, report.of) {
                    Some([status, reason, message]) => differs(status, reason, message),
                    None => is_identity || report.holds != ConditionStatus::True,
                },
            };
            if is_due {
                due.push(report);
            } else if !self.reported.contains_key(report.of) {
                self.remember(report, now);
            }
        }
        due
    }
}

/// The status, reason and message of the object's condition.
fn written<'a>(authentication: &'a KubeletAuthentication, of: &str) -> Option<[&'a str; 3]> {
    let status = authentication.status.as_ref()?;
    let found = conditions::find(&status.conditions, of)?;
    let is_known = found.reason != reason::PENDING;
    is_known.then_some([&found.status, &found.reason, &found.message])
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use hyper::body::Bytes;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use node_attestation_core::crd::KubeletAuthenticationSpec;
    use node_attestation_core::crd::conditions::AWS_CREDENTIALS_READY;

    use super::*;
    use crate::management::flood::flooded;

    fn object() -> KubeletAuthentication {
        KubeletAuthentication::new("a", KubeletAuthenticationSpec::new("a", &["aws"]))
    }

    fn report(
        of: &'static str,
        holds: ConditionStatus,
        reason: &'static str,
        message: &str,
    ) -> ConditionReport {
        ConditionReport {
            of,
            holds,
            reason,
            message: message.to_owned(),
        }
    }

    fn refused() -> ConditionReport {
        let holds = ConditionStatus::False;
        report(AWS_IDENTITY_RESOLVED, holds, "UsageUnauthorized", "by a")
    }

    fn resolved(message: &str) -> ConditionReport {
        let holds = ConditionStatus::True;
        report(AWS_IDENTITY_RESOLVED, holds, "Resolved", message)
    }

    /// Returns the reasons and messages of the Events that are written at this time.
    fn written_at(
        events: &mut ConditionEvents,
        object: &KubeletAuthentication,
        report: &ConditionReport,
        now: Instant,
    ) -> Vec<(String, String)> {
        let due = events.due(object, from_ref(report), now);
        let written = due.into_iter().map(|report| {
            events.remember(report, now + PAUSE);
            (report.reason.to_owned(), report.message.clone())
        });
        written.collect()
    }

    fn event(reason: &str, note: &str) -> Vec<(String, String)> {
        vec![(reason.to_owned(), note.to_owned())]
    }

    #[test]
    fn each_refused_or_resolved_identity_causes_one_event() {
        let (mut events, object) = (ConditionEvents::default(), object());
        let mut now = Instant::now();
        let mut reported = |report: &ConditionReport| {
            now += PAUSE;
            written_at(&mut events, &object, report, now)
        };
        assert_eq!(reported(&refused()), event("UsageUnauthorized", "by a"));
        assert_eq!(reported(&refused()), []);
        assert_eq!(reported(&resolved("as x")), event("Resolved", "as x"));
        assert_eq!(reported(&resolved("as x")), []);
        assert_eq!(reported(&resolved("as y")), event("Resolved", "as y"));
        let unknown = ConditionStatus::Unknown;
        let fallback = report(AWS_IDENTITY_RESOLVED, unknown, "ControllerIdentity", "own");
        assert_eq!(reported(&fallback), event("ControllerIdentity", "own"));
        let pending = report(AWS_IDENTITY_RESOLVED, unknown, "Pending", "not read");
        assert_eq!(reported(&pending), []);
    }

    #[test]
    fn an_already_recorded_condition_causes_no_event_after_a_restart() {
        let mut object = object();
        let time = Time(Timestamp::default());
        let status = object.status.get_or_insert_default();
        conditions::set(&mut status.conditions, &refused(), None, &time);
        let mut events = ConditionEvents::default();
        let now = Instant::now();
        assert_eq!(written_at(&mut events, &object, &refused(), now), []);

        let found = written_at(&mut events, &object, &resolved("as x"), now);
        assert_eq!(found, event("Resolved", "as x"));
    }

    #[test]
    fn an_event_that_was_not_written_is_retried() {
        let (mut events, object) = (ConditionEvents::default(), object());
        let now = Instant::now();
        for _ in 0..2 {
            let report = refused();
            assert_eq!(events.due(&object, from_ref(&report), now), [&report]);
        }
    }

    #[test]
    fn a_frequently_changing_condition_causes_one_event_a_minute() {
        let (mut events, object) = (ConditionEvents::default(), object());
        let start = Instant::now();
        let mut reported = 0;
        for second in 0..120 {
            let next = if second % 2 == 0 {
                refused()
            } else {
                resolved("as x")
            };
            let now = start + Duration::from_secs(second);
            reported += written_at(&mut events, &object, &next, now).len();
        }
        assert_eq!(reported, 2);
        // After the pause, an Event reports the latest state.
        let found = written_at(&mut events, &object, &refused(), start + 3 * PAUSE);
        assert_eq!(found, event("UsageUnauthorized", "by a"));
    }

    #[test]
    fn credentials_cause_an_event_when_they_fail_and_when_they_recover() {
        use ConditionStatus::{False, True, Unknown};

        let (mut events, object) = (ConditionEvents::default(), object());
        let of = AWS_CREDENTIALS_READY;
        let mut now = Instant::now();
        let mut reported = |holds, reason, message| {
            now += PAUSE;
            written_at(
                &mut events,
                &object,
                &report(of, holds, reason, message),
                now,
            )
            .len()
        };
        assert_eq!(reported(Unknown, "Pending", ""), 0);
        assert_eq!(reported(True, "CredentialsAccepted", "until ten"), 0);
        assert_eq!(reported(True, "CredentialsAccepted", "until eleven"), 0);
        assert_eq!(reported(False, "AssumeRoleDenied", "role a"), 1);
        assert_eq!(reported(Unknown, "STSUnavailable", ""), 0);
        assert_eq!(reported(False, "AssumeRoleDenied", "role b"), 0);
        assert_eq!(reported(True, "CredentialsAccepted", "until twelve"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_many_clusters_delay_other_namespaces_by_one_event() {
        let rate = FairRate::new(RATE);
        let names = (0..1000).map(|number| ObjectKey::new("tenant-a", number.to_string()));
        let flood = names.map(|cluster| {
            let rate = &rate;
            async move { in_turn(rate, &cluster).await }
        });
        let flood = futures::future::join_all(flood);
        let victim = async {
            tokio::task::yield_now().await;
            let begun = Instant::now();
            rate.take(&ObjectKey::new("tenant-b", "prod-1")).await;
            begun.elapsed()
        };

        let (flood, waited) = futures::join!(flood, victim);

        // The Events are the burst, and five more Events in one second. One of them belongs to the other namespace.
        let written = flood.into_iter().filter(|written| *written).count();
        assert_eq!(written, 100 + 4);
        assert_eq!(waited, 2 * RATE.every);
    }

    #[tokio::test(start_paused = true)]
    async fn condition_events_of_a_flooding_namespace_leave_turns_to_others() {
        let nothing = |_: &str| Bytes::from_static(b"{}");
        let flooded = flooded(RATE, nothing, |client, rate, key| async move {
            let mut object = object();
            object.metadata.namespace = Some(key.namespace);
            object.metadata.name = Some(key.name);
            let mut events = ConditionEvents::default();
            let management = (&client, &*rate);
            events.write(management, &object, &[refused()]).await;
        });
        let [flood, victim] = flooded.await.calls;

        assert!((100..200).contains(&flood), "{flood}");
        assert_eq!(victim, 1);
    }
}
