//! Tests of the `KubeletAuthentication`: its attestors, and its status, which the controller ignores.

use node_attestation_core::crd::conditions::ConditionStatus;

use super::*;

#[test]
fn a_cluster_is_served_with_the_attestors_that_are_available() {
    let mut world = world();
    world.unavailable = vec![
        VerifierUnavailable::Unknown("contoso".to_owned()),
        VerifierUnavailable::Unusable {
            attestor: "tpm",
            why: "no keys".to_owned(),
        },
    ];

    let service = world.plan().unwrap().unwrap();

    let report = service.configuration.verifiers.reports().next().unwrap();
    assert_eq!(
        (report.of, report.holds, report.reason),
        (
            "AttestorsAvailable",
            ConditionStatus::False,
            "AttestorUnknown"
        )
    );
    for word in ["\"contoso\"", "attestor tpm", "no keys"] {
        assert!(report.message.contains(word), "{}", report.message);
    }
    world.has_insecure = false;
    assert_eq!(world.why().reason(), "AttestorUnknown");
}

/// A tenant can write the status.
#[test]
fn a_forged_status_does_not_change_the_service() {
    let mut world = world();
    let before = world.fingerprint();
    let forged = json!({
        "caKey": {"digest": "00", "proved": true},
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "SharedCA", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
        "kubeletClientCertificateSigner": "example.com/forged",
        "identities": {"live": 1000, "tombstones": 1000},
    });

    world.authentication.status = Some(serde_json::from_value(forged).unwrap());

    assert_eq!(world.fingerprint(), before);
}

#[test]
fn a_forged_status_does_not_change_the_service_in_another_namespace() {
    let mut world = world();
    let before = world.fingerprint();
    let mut other = self::world();
    other.holder = world.keys.holder(ObjectKey::new("tenant-b", "prod-1"));
    let time = "2026-01-01T00:00:00Z";
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Ready", "message": "",
        "lastTransitionTime": time,
    });
    for forged in [
        json!({"observedGeneration": 9}),
        json!({"kubeletClientCertificateSigner": "example.com/forged"}),
        json!({"kubeletServingCertificateSigner": "example.com/forged"}),
        json!({"earliestExpiry": time}),
        json!({"identities": {"live": 1000, "tombstones": 1000}}),
        json!({"conditions": [condition]}),
        json!({"caKey": {"digest": "00", "proved": true}}),
    ] {
        other.authentication.status = Some(serde_json::from_value(forged.clone()).unwrap());
        // The Secret contains the CA certificate of the other namespace, but not the key.
        other.sources.ca = world.shown();
        assert_eq!(other.why().reason(), "SharedCA", "{forged}");

        assert_eq!(world.fingerprint(), before, "{forged}");
    }
}
