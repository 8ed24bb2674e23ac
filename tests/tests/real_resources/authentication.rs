//! What KubeletAuthentication refuses: the valid object with one thing changed.

use serde_json::{Value, json};

use super::{authentication, kubectl};

mod providers;

#[track_caller]
fn each_is_refused(cases: &[(&str, Value, &str, &str)]) {
    let valid = authentication("prod-1");
    for (pointer, value, field, message) in cases {
        valid.refuses(pointer, value, field, message);
    }
}

#[test]
fn an_object_in_which_everything_is_said_is_stored_as_it_is() {
    let valid = authentication("prod-1");

    let stored = valid.accepts("/metadata/name", &json!("prod-1"));

    assert_eq!(stored["spec"], valid.object["spec"]);
}

#[test]
fn what_is_not_said_has_the_defaults() {
    let spec = json!({"clusterName": "prod-1", "authorizedAttestors": ["aws", "tpm"]});
    let stored = authentication("prod-1").accepts("/spec", &spec);

    assert_eq!(
        stored["spec"],
        json!({
            "clusterName": "prod-1",
            "authorizedAttestors": ["aws", "tpm"],
            "certificate": {"expirationSeconds": 604_800, "insecureExpirationSeconds": 31_536_000},
            "audiences": [],
            "autoApproveBindings": "Report",
            "bootstrapTokens": "Manage",
            "reenrolment": "WhenNodeDown",
            "adoption": "Refuse",
            "nameReuse": "Allow",
            "staleNodes": "Delete",
            "builtInRenewal": "Refuse",
            "guestReportedAddresses": "Refuse",
        })
    );
}

#[test]
fn settings_of_which_nothing_is_said_have_the_defaults() {
    let valid = authentication("prod-1");

    let aws = &valid.accepts("/spec/aws", &json!({}))["spec"]["aws"];
    assert_eq!(
        aws,
        &json!({
            "accounts": [], "regions": [], "nodeName": "PrivateDNSName",
            "rootVolumeCheck": true, "requiredTags": {},
        })
    );
    let tpm = &valid.accepts("/spec/tpm", &json!({}))["spec"]["tpm"];
    assert_eq!(
        tpm,
        &json!({
            "endorsementKeys": {"platform": "none", "requireCA": [], "allowList": [], "configMaps": []},
            "pcrPolicy": {"mode": "Record", "bank": "sha256", "allowed": []},
            "lateProviderIDs": "Refuse",
        })
    );
}

#[test]
fn a_null_is_as_if_nothing_was_said() {
    let valid = authentication("prod-1");
    for (pointer, default) in [
        ("/spec/adoption", json!("Refuse")),
        ("/spec/certificate/expirationSeconds", json!(604_800)),
        ("/spec/aws", json!(null)),
        (
            "/spec/tpm/pcrPolicy",
            json!({"mode": "Record", "bank": "sha256", "allowed": []}),
        ),
    ] {
        let stored = valid.accepts(pointer, &json!(null));

        assert_eq!(
            stored.pointer(pointer).unwrap_or(&json!(null)),
            &default,
            "{pointer}"
        );
    }
}

#[test]
fn there_is_one_a_cluster() {
    each_is_refused(&[
        (
            "/metadata/name",
            json!("second"),
            "spec.clusterName",
            "must be the object's name: there is one a Cluster",
        ),
        (
            "/spec/clusterName",
            json!("prod-2"),
            "spec.clusterName",
            "must be the object's name: there is one a Cluster",
        ),
        (
            "/spec/clusterName",
            json!(null),
            "spec.clusterName",
            "Required value",
        ),
    ]);
}

#[test]
fn attestors_do_not_contradict_each_other() {
    let attestors = "spec.authorizedAttestors";
    let many: Vec<_> = (0..9).map(|n| format!("own-{n}")).collect();
    let bare =
        |attestors: Value| json!({"clusterName": "prod-1", "authorizedAttestors": attestors});
    each_is_refused(&[
        (
            "/spec",
            bare(json!(["aws", "insecure"])),
            attestors,
            "insecure is authorized only alone: beside it, evidence proves nothing",
        ),
        (
            "/spec",
            bare(json!(["null"])),
            attestors,
            "null approves everybody: it is for tests",
        ),
        (
            "/spec",
            bare(json!([])),
            attestors,
            "should have at least 1 items",
        ),
        ("/spec", bare(json!(null)), attestors, "Required value"),
        (
            "/spec",
            bare(json!(many)),
            attestors,
            "must have at most 8 items",
        ),
        (
            "/spec",
            bare(json!(["aws", "aws"])),
            "spec.authorizedAttestors[1]",
            "Duplicate value: \"aws\"",
        ),
        (
            "/spec",
            bare(json!(["contosoCloud"])),
            "spec.authorizedAttestors[0]",
            "should match",
        ),
        (
            "/spec",
            bare(json!(["a".repeat(33)])),
            "spec.authorizedAttestors[0]",
            "may not be more than 32",
        ),
    ]);
    for attestors in [json!(["insecure"]), json!(["contoso-cloud", "tpm"])] {
        authentication("prod-1").accepts("/spec", &bare(attestors));
    }
}

#[test]
fn settings_are_of_an_attestor_that_is_authorized() {
    let of_tpm = json!({
        "clusterName": "prod-1", "authorizedAttestors": ["tpm"],
        "aws": {}, "tpm": {"endorsementKeys": {"platform": "none"}},
    });
    each_is_refused(&[
        (
            "/spec/authorizedAttestors",
            json!(["aws"]),
            "spec.tpm",
            "these settings are of the attestor tpm, which is not authorized",
        ),
        (
            "/spec",
            of_tpm,
            "spec.aws",
            "these settings are of the attestor aws, which is not authorized",
        ),
    ]);
    // EC2 is asked for the endorsement keys, in those accounts and regions.
    authentication("prod-1").accepts("/spec/authorizedAttestors", &json!(["tpm"]));
}

#[test]
fn insecure_is_not_promised_what_it_cannot_have() {
    let insecure = |field: &str| {
        let mut spec = json!({"clusterName": "prod-1", "authorizedAttestors": ["insecure"]});
        spec[field] = json!("Allow");
        spec
    };
    each_is_refused(&[
        (
            "/spec",
            insecure("adoption"),
            "spec.adoption",
            "Allow needs evidence, and insecure has none: the value for it is AllowWithoutEvidence",
        ),
        (
            "/spec",
            insecure("guestReportedAddresses"),
            "spec.guestReportedAddresses",
            "insecure gets no serving certificates, for any address",
        ),
    ]);
}

#[test]
fn nodes_are_taken_over_without_evidence_where_there_is_none_and_nowhere_else() {
    let of = |attestor: &str| {
        let adoption = "AllowWithoutEvidence";
        json!({"clusterName": "prod-1", "authorizedAttestors": [attestor], "adoption": adoption})
    };
    each_is_refused(&[(
        "/spec",
        of("tpm"),
        "spec.adoption",
        "AllowWithoutEvidence is for insecure: the other attestors have evidence, and Allow",
    )]);
    authentication("prod-1").accepts("/spec", &of("insecure"));
}

#[test]
fn lifetimes_are_bounded() {
    let (attested, insecure) = (
        "spec.certificate.expirationSeconds",
        "spec.certificate.insecureExpirationSeconds",
    );
    let least = "should be greater than or equal to 600";
    each_is_refused(&[
        (
            "/spec/certificate/expirationSeconds",
            json!(599),
            attested,
            least,
        ),
        (
            "/spec/certificate/expirationSeconds",
            json!(0),
            attested,
            least,
        ),
        (
            "/spec/certificate/expirationSeconds",
            json!(-1),
            attested,
            least,
        ),
        (
            "/spec/certificate/expirationSeconds",
            json!(2_592_001),
            attested,
            "should be less than or equal to 2592000",
        ),
        (
            "/spec/certificate/insecureExpirationSeconds",
            json!(599),
            insecure,
            least,
        ),
        (
            "/spec/certificate/insecureExpirationSeconds",
            json!(31_622_401),
            insecure,
            "should be less than or equal to 31622400",
        ),
        (
            "/spec/certificate/expirationSeconds",
            json!("1h"),
            attested,
            "must be of type integer",
        ),
    ]);
    for (field, value) in [
        ("expirationSeconds", 2_592_000),
        ("insecureExpirationSeconds", 31_622_400),
    ] {
        authentication("prod-1").accepts(&format!("/spec/certificate/{field}"), &json!(value));
    }
}

#[test]
fn a_choice_is_one_of_its_words() {
    for field in [
        "autoApproveBindings",
        "bootstrapTokens",
        "reenrolment",
        "adoption",
        "nameReuse",
        "staleNodes",
        "builtInRenewal",
        "guestReportedAddresses",
    ] {
        authentication("prod-1").refuses(
            &format!("/spec/{field}"),
            &json!("Perhaps"),
            &format!("spec.{field}"),
            "Unsupported value: \"Perhaps\"",
        );
    }
    each_is_refused(&[
        (
            "/spec/aws/nodeName",
            json!("Tag"),
            "spec.aws.nodeName",
            "\"PrivateDNSName\", \"InstanceID\"",
        ),
        (
            "/spec/tpm/endorsementKeys/platform",
            json!("gcp"),
            "spec.tpm.endorsementKeys.platform",
            "\"none\", \"aws\"",
        ),
        (
            "/spec/tpm/pcrPolicy/mode",
            json!("Guess"),
            "spec.tpm.pcrPolicy.mode",
            "\"Record\", \"Enforce\"",
        ),
        (
            "/spec/tpm/pcrPolicy/bank",
            json!("sha1"),
            "spec.tpm.pcrPolicy.bank",
            "supported values: \"sha256\"",
        ),
        (
            "/spec/tpm/lateProviderIDs",
            json!("allow"),
            "spec.tpm.lateProviderIDs",
            "\"Refuse\", \"Allow\"",
        ),
    ]);
}

#[test]
fn audiences_are_few_and_different() {
    let many: Vec<_> = (0..17).map(|n| n.to_string()).collect();
    each_is_refused(&[
        (
            "/spec/audiences",
            json!(many),
            "spec.audiences",
            "must have at most 16 items",
        ),
        (
            "/spec/audiences",
            json!(["a", "a"]),
            "spec.audiences[1]",
            "Duplicate value",
        ),
        (
            "/spec/audiences",
            json!(["a b"]),
            "spec.audiences[0]",
            "should match",
        ),
        (
            "/spec/audiences",
            json!([""]),
            "spec.audiences[0]",
            "should be at least 1 chars",
        ),
        (
            "/spec/audiences",
            json!(["a".repeat(257)]),
            "spec.audiences[0]",
            "may not be more than 256",
        ),
    ]);
}

#[test]
fn the_cluster_stays_and_the_rest_can_be_changed() {
    let stored = authentication("changed");
    stored.store();

    stored.stays(
        "/spec/clusterName",
        &json!("other"),
        "spec.clusterName",
        "cannot be changed",
    );
    stored.may_become(&[
        ("/spec/authorizedAttestors", json!(["tpm"])),
        ("/spec/adoption", json!("Refuse")),
    ]);
}

#[test]
fn a_status_is_not_set_with_the_spec() {
    let mut both = authentication("both");
    both.object["status"] = json!({"earliestExpiry": "2026-11-21T12:00:00Z"});
    both.store();
    let get = ["get", "kubeletauthentication", "both"];
    assert_eq!(kubectl().json(get)["status"], Value::Null);

    let patch =
        r#"{"status":{"earliestExpiry":"2026-11-21T12:00:00Z"},"spec":{"adoption":"Refuse"}}"#;
    kubectl().ok([
        "patch",
        "kubeauth",
        "both",
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ]);
    let after = kubectl().json(get);

    assert_eq!(after["status"]["earliestExpiry"], "2026-11-21T12:00:00Z");
    assert_eq!(after["spec"]["adoption"], "Allow");
}
