//! Assertions that an event did not happen.
//!
//! Elapsed time does not prove an absence. Each assertion therefore requires a later event from the component that
//! could have acted. `tests/tests/layering` finds assertions without such an event.

use kubelet_authenticator_test_support::kubelet::Kubelet;
use serde_json::Value;

use crate::controller::{is_answered, is_issued, reason_of};
use crate::fleet::condition_of;

/// Evidence that the controller acted after the time at which it could have answered the request.
#[derive(Debug, Clone, Copy)]
pub struct Later(());

impl Later {
    /// The answer to a request that was created after the unanswered request.
    #[track_caller]
    pub fn answer(csr: &Value) -> Self {
        assert!(is_answered(csr), "a sentinel without an answer: {csr:#}");
        Self(())
    }

    /// A later decision on a request, from the controller's log.
    #[track_caller]
    pub fn decision(line: &Value) -> Self {
        assert!(line["outcome"].is_string(), "not a decision: {line:#}");
        Self(())
    }

    /// A later Event from the controller about a request or its machine.
    #[track_caller]
    pub fn event(event: &Value) -> Self {
        assert!(event["reason"].is_string(), "not an Event: {event:#}");
        Self(())
    }

    /// Waits for the next renewal of a node's Lease.
    #[track_caller]
    pub fn renewal(kubelet: &Kubelet) -> Self {
        kubelet.wait_for_lease_renewal();
        Self(())
    }

    /// A condition that the object's controller wrote after the request, for the current generation of the object.
    #[track_caller]
    pub fn condition(object: &Value, condition: &str) -> Self {
        let found = condition_of(object, condition);
        let is_written = found["lastTransitionTime"].is_string();
        assert!(is_written, "no condition {condition}: {object:#}");
        let generation = &object["metadata"]["generation"];
        assert_eq!(found["observedGeneration"], *generation, "{object:#}");
        Self(())
    }
}

/// Asserts that the request has no answer. Reads the request after the caller has observed the event `later`.
#[track_caller]
pub fn assert_unanswered(_later: Later, read: impl FnOnce() -> Value) {
    let csr = read();
    // Check that the object was read, because a missing object has no answer either.
    assert!(csr["spec"].is_object(), "not a request: {csr:#}");
    assert!(!is_answered(&csr), "{csr:#}");
}

/// Asserts that no request from a machine has an answer. There must be at least one request.
#[track_caller]
pub fn assert_all_unanswered(later: Later, read: impl FnOnce() -> Vec<Value>) {
    let requests = read();
    assert!(!requests.is_empty(), "there is no request");
    for csr in requests {
        assert_unanswered(later, || csr);
    }
}

/// Asserts that the request was refused with this condition and reason, and has no certificate. A later event is not
/// necessary, because no controller signs a request with this condition.
#[track_caller]
pub fn assert_refused(csr: &Value, (condition, reason): (&str, &str)) {
    assert_eq!(reason_of(csr, condition), Some(reason), "{csr:#}");
    assert!(!is_issued(csr), "{csr:#}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn csr(condition: &str) -> Value {
        json!({"spec": {}, "status": {"conditions": [{"type": condition, "reason": "R"}]}})
    }

    fn issued() -> Value {
        json!({"spec": {}, "status": {"certificate": ""}})
    }

    fn is_refuted(assertion: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(assertion).is_err()
    }

    #[test]
    fn an_answered_or_deleted_request_fails_the_absence_assertion() {
        let later = || Later::answer(&csr("Denied"));
        assert_unanswered(later(), || csr("Approved"));
        assert_all_unanswered(later(), || vec![csr("Approved")]);

        for found in [issued(), csr("Denied"), csr("Failed"), Value::Null] {
            assert!(is_refuted(|| assert_unanswered(later(), || found)));
        }
        assert!(is_refuted(|| assert_all_unanswered(later(), Vec::new)));
    }

    #[test]
    fn an_absence_requires_an_observed_later_event() {
        let with = |observed: u64| {
            json!({"metadata": {"generation": 2}, "status": {"conditions": [{
                "type": "Ready", "lastTransitionTime": "", "observedGeneration": observed,
            }]}})
        };
        let _: Later = Later::condition(&with(2), "Ready");
        let seen: [&(dyn Fn() -> Later + std::panic::RefUnwindSafe); 5] = [
            &|| Later::answer(&csr("Approved")),
            &|| Later::event(&Value::Null),
            &|| Later::decision(&Value::Null),
            &|| Later::condition(&with(2), "Other"),
            &|| Later::condition(&with(1), "Ready"),
        ];
        for later in seen {
            assert!(std::panic::catch_unwind(later).is_err());
        }
    }

    #[test]
    fn a_refused_request_must_have_the_reason_and_no_certificate() {
        assert_refused(&csr("Denied"), ("Denied", "R"));

        assert!(is_refuted(|| assert_refused(
            &csr("Denied"),
            ("Denied", "S")
        )));
        let mut signed = csr("Denied");
        signed["status"]["certificate"] = json!("");
        assert!(is_refuted(|| assert_refused(&signed, ("Denied", "R"))));
    }
}
