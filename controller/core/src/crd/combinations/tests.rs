use serde_json::json;

use super::*;

/// A spec with one of each settings that a combination is about, all of which go together.
fn valid() -> Value {
    json!({
        "clusterName": "prod-1",
        "authorizedAttestors": ["aws", "tpm"],
        "certificate": {"expirationSeconds": 2_592_000},
        "adoption": "Allow",
        "guestReportedAddresses": "Allow",
        "servingAddressRanges": ["10.0.0.0/8"],
        "aws": {"accounts": ["111122223333"], "requiredTags": {"team": "a"}},
        "tpm": {"endorsementKeys": {"configMaps": ["hosts"]}, "lateProviderIDs": "Allow"},
    })
}

fn checked(spec: Value) -> Result<(), InvalidSettings> {
    let spec: KubeletAuthenticationSpec = serde_json::from_value(spec).unwrap();
    spec.check()
}

/// The valid spec with these fields changed; a null removes one.
fn with(changes: &[(&str, Value)]) -> Value {
    let mut spec = valid();
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = spec.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            parent.remove(key);
        } else {
            parent.insert(key.to_owned(), value.clone());
        }
    }
    spec
}

#[track_caller]
fn is_refused(changes: &[(&str, Value)], field: &str, message: &str) {
    let invalid = checked(with(changes)).unwrap_err();

    assert_eq!(invalid.field, field, "{changes:?}");
    assert!(invalid.message.contains(message), "{}", invalid.message);
}

const PLATFORM: &str = "/tpm/endorsementKeys/platform";
const CONFIG_MAPS: &str = "/tpm/endorsementKeys/configMaps";
const ALLOW_LIST: &str = "/tpm/endorsementKeys/allowList";

#[test]
fn settings_that_go_together_are_accepted() {
    let key = json!([{"machine": "m-1", "ekSha256": "1".repeat(64)}]);
    for changes in [
        &[][..],
        &[("/certificate", json!(null))],
        &[
            ("/guestReportedAddresses", json!("Refuse")),
            ("/servingAddressRanges", json!([])),
        ],
        &[(CONFIG_MAPS, json!([])), (ALLOW_LIST, key)],
        &[
            (CONFIG_MAPS, json!([])),
            ("/tpm/lateProviderIDs", json!("Refuse")),
        ],
        &[
            ("/authorizedAttestors", json!(["tpm"])),
            (PLATFORM, json!("aws")),
            (
                "/aws",
                json!({"regions": ["eu-west-1"], "nodeName": "InstanceID"}),
            ),
        ],
        &[
            ("/authorizedAttestors", json!(["insecure"])),
            ("/certificate/expirationSeconds", json!(31_622_400)),
            ("/adoption", json!("AllowWithoutEvidence")),
            ("/guestReportedAddresses", json!("Refuse")),
            ("/aws", json!(null)),
            ("/tpm", json!(null)),
        ],
    ] {
        assert_eq!(checked(with(changes)), Ok(()), "{changes:?}");
    }
}

#[test]
fn settings_of_an_unauthorized_attestor_are_refused() {
    let of = |attestor: &str| ("/authorizedAttestors", json!([attestor]));
    is_refused(&[of("tpm")], ".aws", "of the attestor aws");
    is_refused(&[of("aws")], ".tpm", "of the attestor tpm");
}

#[test]
fn limits_of_instances_that_tpm_does_not_check_are_refused() {
    let message = "tpm does not check accounts and requiredTags";
    let platform = (PLATFORM, json!("aws"));
    for unlimited in ["/aws/accounts", "/aws/requiredTags"] {
        let changes = [platform.clone(), (unlimited, json!(null))];
        is_refused(&changes, ".aws", message);
    }
    let neither = ["/aws/accounts", "/aws/requiredTags"].map(|limit| (limit, json!(null)));
    assert_eq!(checked(with(&[&neither[..], &[platform]].concat())), Ok(()));
}

#[test]
fn late_provider_ids_without_listed_keys_are_refused() {
    for platform in ["none", "aws"] {
        let changes = [
            ("/aws", json!(null)),
            (PLATFORM, json!(platform)),
            (CONFIG_MAPS, json!([])),
        ];
        is_refused(
            &changes,
            ".tpm.lateProviderIDs",
            "without listed endorsement keys",
        );
    }
}

#[test]
fn adoption_that_does_not_suit_the_attestor_is_refused() {
    let insecure = [
        ("/authorizedAttestors", json!(["insecure"])),
        ("/guestReportedAddresses", json!("Refuse")),
        ("/aws", json!(null)),
        ("/tpm", json!(null)),
    ];
    is_refused(&insecure, ".adoption", "Allow needs evidence");
    let unproved = [("/adoption", json!("AllowWithoutEvidence"))];
    is_refused(
        &unproved,
        ".adoption",
        "AllowWithoutEvidence is for insecure",
    );
}

#[test]
fn reported_addresses_without_ranges_or_evidence_are_refused() {
    let field = ".guestReportedAddresses";
    is_refused(
        &[("/servingAddressRanges", json!([]))],
        field,
        "without ranges",
    );
    let insecure = [
        ("/authorizedAttestors", json!(["insecure"])),
        ("/adoption", json!("Refuse")),
        ("/aws", json!(null)),
        ("/tpm", json!(null)),
    ];
    is_refused(&insecure, field, "insecure gets no serving certificates");
}

#[test]
fn a_lifetime_over_thirty_days_with_evidence_is_refused() {
    let changes = [("/certificate/expirationSeconds", json!(2_592_001))];
    is_refused(
        &changes,
        ".certificate.expirationSeconds",
        "the maximum is 2592000",
    );
}

#[test]
fn the_error_names_the_field_and_the_cure() {
    let invalid = checked(with(&[("/servingAddressRanges", json!([]))])).unwrap_err();

    assert_eq!(
        invalid.to_string(),
        "spec.guestReportedAddresses: without ranges, a node can get a certificate for any address: set \
         servingAddressRanges to the networks of the nodes, or Refuse. Until it is corrected, no request \
         of the Cluster is answered"
    );
}

/// The rules in CEL have numbers where the checks have constants.
#[test]
fn the_rule_of_the_api_server_has_the_maximum_of_the_controller() {
    let rule = COMBINATIONS.last().unwrap().rule;

    assert!(
        rule.ends_with(&format!("<= {MAX_ATTESTED_SECONDS}")),
        "{rule}"
    );
}
