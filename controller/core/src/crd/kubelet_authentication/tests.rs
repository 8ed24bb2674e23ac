use serde_json::json;

use super::*;

fn with(attestor: &str, seconds: Option<u32>) -> Duration {
    let mut spec = KubeletAuthenticationSpec::new("prod-1", &[attestor]);
    spec.certificate.expiration_seconds = seconds;
    spec.longest_lifetime()
}

const DAY: Duration = Duration::from_hours(24);

#[test]
fn the_default_lifetime_depends_on_the_attestor() {
    assert_eq!(with("aws", None), 7 * DAY);
    assert_eq!(with("tpm", None), 7 * DAY);
    assert_eq!(with("insecure", None), 365 * DAY);
}

#[test]
fn the_lifetime_in_the_spec_is_granted() {
    for attestor in ["aws", "insecure"] {
        assert_eq!(with(attestor, Some(3600)), Duration::from_hours(1));
    }
    assert_eq!(with("aws", Some(604_800)), 7 * DAY);
}

/// Earlier versions stored the default with every object. For `insecure`, it had no effect.
#[test]
fn a_default_lifetime_stored_earlier_is_a_year_for_insecure() {
    assert_eq!(with("insecure", Some(604_800)), 365 * DAY);
    assert_eq!(
        with("insecure", Some(604_801)),
        Duration::from_secs(604_801)
    );
}

/// The object has all fields of commit 7571c2c2, most with the defaults of that commit.
#[test]
fn an_object_with_fields_of_earlier_versions_is_read() {
    let stored = json!({
        "clusterName": "prod-1",
        "authorizedAttestors": ["aws", "tpm"],
        "certificate": {"expirationSeconds": 86400, "insecureExpirationSeconds": 31_536_000},
        "audiences": [],
        "autoApproveBindings": "Report",
        "bootstrapTokens": "Manage",
        "reenrolment": "WhenNodeDown",
        "adoption": "Refuse",
        "nameReuse": "Allow",
        "staleNodes": "Delete",
        "builtInRenewal": "ControlPlane",
        "guestReportedAddresses": "Refuse",
        "servingAddressRanges": [],
        "aws": {
            "accounts": [], "regions": [], "nodeName": "PrivateDNSName", "rootVolumeCheck": true,
            "requiredTags": {}, "serviceAccountIdentity": "prod",
        },
        "tpm": {
            "endorsementKeys": {"platform": "none", "requireCA": [], "allowList": [], "configMaps": []},
            "pcrPolicy": {"mode": "Enforce", "bank": "sha256", "allowed": [{"7": "0f".repeat(32)}]},
            "lateProviderIDs": "Refuse",
        },
    });

    let spec: KubeletAuthenticationSpec = serde_json::from_value(stored).unwrap();

    assert_eq!(spec.longest_lifetime(), DAY);
    assert!(spec.exempt().is_empty());
    let tpm = spec.tpm.as_ref().unwrap();
    assert_eq!(tpm.pcr_policy.allowed.len(), 1);
}
