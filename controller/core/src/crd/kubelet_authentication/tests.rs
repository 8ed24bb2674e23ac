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

/// Earlier versions stored the default of 7 days in every object, although the field had no effect for `insecure`.
#[test]
fn a_default_lifetime_stored_earlier_is_a_year_for_insecure() {
    assert_eq!(with("insecure", Some(604_800)), 365 * DAY);
    assert_eq!(
        with("insecure", Some(604_801)),
        Duration::from_secs(604_801)
    );
}

/// The object contains all fields from commit 7571c2c2, most of them with the defaults in that commit.
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
    // Each of these objects contains values for autoApproveBindings and adoption, so the defaults do not exempt any
    // Node.
    assert_eq!(spec.mode(), AutoApproveBindings::Report);
    assert_eq!(spec.adopts(), Adoption::Refuse);
    assert!(spec.exempt().is_empty());
    let tpm = spec.tpm.as_ref().unwrap();
    assert_eq!(tpm.pcr_policy.allowed.len(), 1);
}

/// Returns the mode, the adoption, and whether control-plane nodes are exempt.
fn resolved(spec: serde_json::Value) -> (AutoApproveBindings, Adoption, bool) {
    let spec: KubeletAuthenticationSpec = serde_json::from_value(spec).unwrap();
    (
        spec.mode(),
        spec.adopts(),
        spec.exempt().has_control_plane(),
    )
}

#[test]
fn unset_settings_lead_to_enforcement_only_with_evidence() {
    use AutoApproveBindings::{Remove, Report};
    for (attestors, expected) in [
        (json!(["aws"]), (Remove, Adoption::Allow, true)),
        (json!(["tpm"]), (Remove, Adoption::Allow, true)),
        (json!(["aws", "tpm"]), (Remove, Adoption::Allow, true)),
        (json!(["other"]), (Remove, Adoption::Allow, true)),
        (json!(["insecure"]), (Report, Adoption::Refuse, false)),
        (json!(["null"]), (Report, Adoption::Refuse, false)),
    ] {
        let spec = json!({"clusterName": "prod-1", "authorizedAttestors": attestors});
        assert_eq!(resolved(spec), expected, "{attestors}");
    }
}

#[test]
fn a_stored_mode_and_adoption_exempt_no_node_by_default() {
    use AutoApproveBindings::{Remove, RemoveNow, Report};
    for mode in [Report, Remove, RemoveNow] {
        for adoption in [Adoption::Refuse, Adoption::Allow] {
            let mut spec = json!({"clusterName": "prod-1", "authorizedAttestors": ["aws"]});
            spec["autoApproveBindings"] = json!(mode);
            spec["adoption"] = json!(adoption);
            assert_eq!(resolved(spec), (mode, adoption, false));
        }
    }
}

#[test]
fn a_set_value_replaces_only_its_own_default() {
    use AutoApproveBindings::{Remove, RemoveNow, Report};
    for (field, value, expected) in [
        (
            "autoApproveBindings",
            json!("Report"),
            (Report, Adoption::Allow, true),
        ),
        (
            "autoApproveBindings",
            json!("Remove"),
            (Remove, Adoption::Allow, true),
        ),
        (
            "autoApproveBindings",
            json!("RemoveNow"),
            (RemoveNow, Adoption::Allow, true),
        ),
        (
            "adoption",
            json!("Refuse"),
            (Remove, Adoption::Refuse, true),
        ),
        (
            "adoption",
            json!("Recover"),
            (Remove, Adoption::Recover, true),
        ),
        ("exemptNodes", json!([]), (Remove, Adoption::Allow, false)),
        (
            "exemptNodes",
            json!(["n1"]),
            (Remove, Adoption::Allow, false),
        ),
    ] {
        let mut spec = json!({"clusterName": "prod-1", "authorizedAttestors": ["aws"]});
        spec[field] = value.clone();
        assert_eq!(resolved(spec), expected, "{field}: {value}");
    }
}

#[test]
fn unset_settings_stay_unset_when_the_object_is_written() {
    let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
    let written = serde_json::to_value(spec).unwrap();
    for field in ["autoApproveBindings", "adoption", "exemptNodes"] {
        assert!(written.get(field).is_none(), "{field}: {written}");
    }
}
