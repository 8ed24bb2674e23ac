//! Events on `KubeletAuthentication` objects: the conditions that attestors report.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::{Client, Resource as _};
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_core::crd::conditions::{
    self, AWS_IDENTITY_RESOLVED, ConditionReport, ConditionStatus,
};
use tokio::time::Instant;

use crate::clock::now;
use crate::events;

/// The time between two Events about one condition, however often it changes: it can change with each write of a
/// tenant.
const PAUSE: Duration = Duration::from_mins(1);

/// The Events about the conditions of one cluster.
#[derive(Debug, Default)]
pub(super) struct ConditionEvents {
    told: BTreeMap<&'static str, Told>,
}

/// The words of the last Event about a condition, or of the condition before there was one.
#[derive(Debug)]
struct Told {
    status: String,
    reason: String,
    message: String,
    not_before: Instant,
}

/// An Event to write.
#[derive(Debug, PartialEq, Eq)]
struct Words {
    kind: &'static str,
    reason: &'static str,
    note: String,
}

impl ConditionEvents {
    /// Writes an Event for each condition that changed.
    pub(super) async fn write(
        &mut self,
        management: &Client,
        authentication: &KubeletAuthentication,
        reports: &[ConditionReport],
    ) {
        for Words { kind, reason, note } in self.due(authentication, reports, Instant::now()) {
            let words = (kind, "Report", reason, note);
            let regarding = authentication.object_ref(&());
            events::write_one(management.clone(), regarding, words, now()).await;
        }
    }

    /// The Events about these reports. A condition that holds is told after it did not; that of an identity whenever
    /// it is another one.
    fn due(
        &mut self,
        authentication: &KubeletAuthentication,
        reports: &[ConditionReport],
        now: Instant,
    ) -> Vec<Words> {
        let mut due = Vec::new();
        for report in reports {
            if report.holds == ConditionStatus::Unknown {
                continue;
            }
            let status = report.holds.to_string();
            let is_true = report.holds == ConditionStatus::True;
            let is_identity = report.of == AWS_IDENTITY_RESOLVED;
            let before = self.told.get(report.of);
            let is_new = match before {
                Some(told) if now < told.not_before => continue,
                Some(told) => {
                    (&*told.status, &*told.reason) != (&*status, report.reason)
                        || is_identity && told.message != report.message
                }
                // A restart tells nothing anew.
                None => match written(authentication, report.of) {
                    Some([was, reason, message]) => {
                        [was, reason] != [&*status, report.reason]
                            || is_identity && message != report.message
                    }
                    None => !is_true || is_identity,
                },
            };
            let not_before = if is_new { now + PAUSE } else { now };
            if is_new || before.is_none() {
                let told = Told {
                    status,
                    reason: report.reason.to_owned(),
                    message: report.message.clone(),
                    not_before,
                };
                self.told.insert(report.of, told);
            }
            if is_new {
                due.push(Words {
                    kind: if is_true { "Normal" } else { "Warning" },
                    reason: report.reason,
                    note: report.message.clone(),
                });
            }
        }
        due
    }
}

/// Status, reason and message of a condition, as the object has it.
fn written<'a>(authentication: &'a KubeletAuthentication, of: &str) -> Option<[&'a str; 3]> {
    let status = authentication.status.as_ref()?;
    let found = conditions::find(&status.conditions, of)?;
    (found.status != "Unknown").then_some([&found.status, &found.reason, &found.message])
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;
    use node_attestation_core::crd::KubeletAuthenticationSpec;
    use node_attestation_core::crd::conditions::AWS_CREDENTIALS_READY;

    use super::*;

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

    fn words(due: &[Words]) -> Vec<(&str, &str, &str)> {
        let words = due.iter();
        words
            .map(|words| (words.kind, words.reason, &*words.note))
            .collect()
    }

    #[test]
    fn a_refused_identity_is_told_once_and_so_is_each_other_identity() {
        let (mut events, object) = (ConditionEvents::default(), object());
        let mut now = Instant::now();
        let mut due = |report: ConditionReport| {
            now += PAUSE;
            let due = events.due(&object, &[report], now);
            let words = words(&due).first().copied();
            words.map(|(kind, reason, note)| (kind.to_owned(), reason.to_owned(), note.to_owned()))
        };
        let told = |kind: &str, reason: &str, note: &str| {
            Some((kind.to_owned(), reason.to_owned(), note.to_owned()))
        };
        assert_eq!(due(refused()), told("Warning", "UsageUnauthorized", "by a"));
        assert_eq!(due(refused()), None);
        assert_eq!(due(resolved("as x")), told("Normal", "Resolved", "as x"));
        assert_eq!(due(resolved("as x")), None);
        assert_eq!(due(resolved("as y")), told("Normal", "Resolved", "as y"));
    }

    #[test]
    fn a_condition_that_is_in_the_object_is_not_told_again_after_a_restart() {
        let mut object = object();
        let time = Time(Timestamp::default());
        let status = object.status.get_or_insert_default();
        conditions::set(&mut status.conditions, &refused(), None, &time);
        let mut events = ConditionEvents::default();
        let now = Instant::now();
        assert_eq!(events.due(&object, &[refused()], now), []);

        let due = events.due(&object, &[resolved("as x")], now);
        assert_eq!(words(&due), [("Normal", "Resolved", "as x")]);
    }

    #[test]
    fn a_condition_that_changes_often_has_an_event_a_minute() {
        let (mut events, object) = (ConditionEvents::default(), object());
        let start = Instant::now();
        let mut told = 0;
        for second in 0..120 {
            let next = if second % 2 == 0 {
                refused()
            } else {
                resolved("as x")
            };
            let now = start + Duration::from_secs(second);
            told += events.due(&object, &[next], now).len();
        }
        assert_eq!(told, 2);
        // The last state is told once the pause is over.
        let due = events.due(&object, &[refused()], start + 3 * PAUSE);
        assert_eq!(words(&due), [("Warning", "UsageUnauthorized", "by a")]);
    }

    #[test]
    fn credentials_are_told_of_when_they_fail_and_when_they_work_again() {
        use ConditionStatus::{False, True, Unknown};

        let (mut events, object) = (ConditionEvents::default(), object());
        let of = AWS_CREDENTIALS_READY;
        let mut now = Instant::now();
        let mut due = |holds, reason, message| {
            now += PAUSE;
            events
                .due(&object, from_ref(&report(of, holds, reason, message)), now)
                .len()
        };
        assert_eq!(due(Unknown, "Pending", ""), 0);
        assert_eq!(due(True, "CredentialsAccepted", "until ten"), 0);
        assert_eq!(due(True, "CredentialsAccepted", "until eleven"), 0);
        assert_eq!(due(False, "AssumeRoleDenied", "role a"), 1);
        assert_eq!(due(Unknown, "STSUnavailable", ""), 0);
        assert_eq!(due(False, "AssumeRoleDenied", "role b"), 0);
        assert_eq!(due(True, "CredentialsAccepted", "until twelve"), 1);
    }
}
