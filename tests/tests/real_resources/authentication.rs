//! Tests of values that KubeletAuthentication rejects: the valid object with one change.

use serde_json::{Value, json};

use super::{Subject, authentication, kubectl};

pub(super) mod files;
mod providers;

fn valid() -> Subject {
    authentication("prod-1")
}

#[track_caller]
fn each_is_refused(cases: &[(&str, Value, &str)]) {
    valid().refuses_each(cases);
}

#[test]
fn an_authentication_with_all_fields_is_stored_unchanged() {
    let valid = authentication("prod-1");

    let stored = valid.accepts("/metadata/name", &json!("prod-1"));

    assert_eq!(stored["spec"], valid.object["spec"]);
}

#[test]
fn an_authentication_without_options_gets_the_defaults() {
    let spec = json!({"clusterName": "prod-1", "authorizedAttestors": ["aws", "tpm"]});
    let stored = authentication("prod-1").accepts("/spec", &spec);

    assert_eq!(
        stored["spec"],
        json!({
            "clusterName": "prod-1",
            "authorizedAttestors": ["aws", "tpm"],
            "certificate": {},
            "audiences": [],
            "bootstrapTokens": "Manage",
            "guestReportedAddresses": "Refuse",
            "servingAddressRanges": [],
        })
    );
}

#[test]
fn empty_provider_settings_get_the_defaults() {
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
            "pcrPolicy": {"allowed": [], "osSeparator": "Permitted"},
            "lateProviderIDs": "Refuse",
        })
    );
}

#[test]
fn a_null_field_gets_its_default() {
    let valid = authentication("prod-1");
    for (pointer, default) in [
        ("/spec/adoption", json!(null)),
        ("/spec/bootstrapTokens", json!("Manage")),
        ("/spec/certificate", json!({})),
        ("/spec/certificate/expirationSeconds", json!(null)),
        ("/spec/aws", json!(null)),
        (
            "/spec/tpm/pcrPolicy",
            json!({"allowed": [], "osSeparator": "Permitted"}),
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
fn an_authentication_must_have_the_name_of_its_cluster() {
    each_is_refused(&[
        (
            "clusterName",
            json!("prod-2"),
            "must match metadata.name: a Cluster can have only one KubeletAuthentication",
        ),
        ("clusterName", json!(null), "Required value"),
    ]);
    valid().refuses(
        "/metadata/name",
        &json!("second"),
        "spec.clusterName",
        "must match metadata.name: a Cluster can have only one KubeletAuthentication",
    );
}

/// An object that only authorizes attestors.
fn bare(attestors: Value) -> Subject {
    let spec = json!({"clusterName": "prod-1", "authorizedAttestors": attestors});
    let object = valid().with("/spec", &spec);
    Subject { object }
}

#[test]
fn contradictory_attestors_are_refused() {
    let many: Vec<_> = (0..9).map(|n| format!("own-{n}")).collect();
    let attestors = "authorizedAttestors";
    let first = "authorizedAttestors[0]";
    let bare = bare(json!(["aws"]));
    bare.refuses_each(&[
        (
            attestors,
            json!(["aws", "insecure"]),
            "insecure cannot be combined with other attestors, because machines could join without their evidence",
        ),
        (
            attestors,
            json!(["null"]),
            "null approves every request: it is only for tests",
        ),
        (attestors, json!([]), "should have at least 1 items"),
        (attestors, json!(null), "Required value"),
        (attestors, json!(many), "must have at most 8 items"),
        (
            "authorizedAttestors[1]",
            json!(["aws", "aws"]),
            "Duplicate value: \"aws\"",
        ),
        (first, json!(["contosoCloud"]), "should match"),
        (first, json!(["a".repeat(33)]), "may not be more than 32"),
    ]);
    for attestors in [json!(["insecure"]), json!(["contoso-cloud", "tpm"])] {
        bare.accepts("/spec/authorizedAttestors", &attestors);
    }
}

#[test]
fn settings_for_an_unauthorized_attestor_are_refused() {
    let of_tpm = json!({
        "clusterName": "prod-1", "authorizedAttestors": ["tpm"],
        "aws": {}, "tpm": {},
    });
    for (pointer, value, field, message) in [
        (
            "/spec/authorizedAttestors",
            json!(["aws"]),
            "spec.tpm",
            "these settings are for the attestor tpm, which is not authorized",
        ),
        (
            "/spec",
            of_tpm,
            "spec.aws",
            "these settings are for the attestor aws, which is not authorized",
        ),
    ] {
        valid().refuses(pointer, &value, field, message);
    }
    // EC2 provides the endorsement keys in these regions.
    let of_ec2 = json!({
        "clusterName": "prod-1", "authorizedAttestors": ["tpm"],
        "aws": {"regions": ["eu-west-1"]}, "tpm": {"endorsementKeys": {"platform": "aws"}},
    });
    valid().accepts("/spec", &of_ec2);
}

#[test]
fn insecure_rejects_options_that_need_evidence() {
    bare(json!(["insecure"])).refuses_each(&[
        (
            "adoption",
            json!("Allow"),
            "Allow requires evidence: for insecure, use AllowWithoutEvidence",
        ),
        (
            "adoption",
            json!("Recover"),
            "Recover requires evidence: for insecure, use Refuse or AllowWithoutEvidence",
        ),
        (
            "guestReportedAddresses",
            json!("Allow"),
            "nodes that use insecure cannot get serving certificates: use Refuse",
        ),
    ]);
}

#[test]
fn adoption_without_evidence_is_accepted_only_for_insecure() {
    let adoption = json!("AllowWithoutEvidence");
    bare(json!(["insecure"])).accepts("/spec/adoption", &adoption);
    bare(json!(["tpm"])).refuses_each(&[(
        "adoption",
        adoption,
        "AllowWithoutEvidence is only for insecure: for other attestors, use Allow",
    )]);
}

#[test]
fn the_maximum_lifetime_depends_on_the_attestor() {
    let field = "certificate.expirationSeconds";
    let least = "should be greater than or equal to 600";
    each_is_refused(&[
        (field, json!(599), least),
        (field, json!(0), least),
        (field, json!(-1), least),
        (field, json!(2_592_001), "the maximum is 2592000 (30 days)"),
        (
            field,
            json!(31_622_401),
            "should be less than or equal to 31622400",
        ),
        (field, json!("1h"), "must be of type integer"),
    ]);
    let insecure = bare(json!(["insecure"]));
    let of = |seconds: u32| json!({"expirationSeconds": seconds});
    insecure.refuses(
        "/spec/certificate",
        &of(31_622_401),
        "spec.certificate.expirationSeconds",
        "should be less than or equal to 31622400",
    );
    valid().accepts("/spec/certificate", &of(2_592_000));
    insecure.accepts("/spec/certificate", &of(31_622_400));
}

#[test]
fn settings_without_effect_are_refused() {
    let of_ec2 = json!({"endorsementKeys": {"platform": "aws"}});
    let spec = |change: (&str, Value)| {
        let mut spec = json!({"clusterName": "prod-1", "authorizedAttestors": ["aws", "tpm"]});
        spec["tpm"] = of_ec2.clone();
        spec[change.0] = change.1;
        spec
    };
    let no_list = "Allow has no effect without listed endorsement keys";
    let late = |platform: &str| json!({"endorsementKeys": {"platform": platform}, "lateProviderIDs": "Allow"});
    for (change, field, message) in [
        (("tpm", late("aws")), "spec.tpm.lateProviderIDs", no_list),
        (("tpm", late("none")), "spec.tpm.lateProviderIDs", no_list),
        (
            ("guestReportedAddresses", json!("Allow")),
            "spec.guestReportedAddresses",
            "without ranges, a node can get a certificate for any address",
        ),
    ] {
        valid().refuses("/spec", &spec(change), field, message);
    }
    let mut listed = late("aws");
    listed["endorsementKeys"]["configMaps"] = json!(["hosts"]);
    for change in [
        (
            "aws",
            json!({"regions": ["eu-west-1"], "nodeName": "InstanceID"}),
        ),
        ("aws", json!({"accounts": ["111122223333"]})),
        ("aws", json!({"requiredTags": {"a": "b"}})),
        ("tpm", listed),
    ] {
        valid().accepts("/spec", &spec(change));
    }
}

#[test]
fn an_unknown_enum_value_is_refused() {
    for field in [
        "autoApproveBindings",
        "bootstrapTokens",
        "adoption",
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
            "aws.nodeName",
            json!("Tag"),
            "\"PrivateDNSName\", \"InstanceID\"",
        ),
        (
            "tpm.endorsementKeys.platform",
            json!("gcp"),
            "\"none\", \"aws\"",
        ),
        (
            "tpm.lateProviderIDs",
            json!("allow"),
            "\"Refuse\", \"Allow\"",
        ),
    ]);
}

#[test]
fn too_many_and_duplicate_audiences_are_refused() {
    let many: Vec<_> = (0..17).map(|n| n.to_string()).collect();
    each_is_refused(&[
        ("audiences", json!(many), "must have at most 16 items"),
        ("audiences[1]", json!(["a", "a"]), "Duplicate value"),
        ("audiences[0]", json!(["a b"]), "should match"),
        ("audiences[0]", json!([""]), "should be at least 1 chars"),
        (
            "audiences[0]",
            json!(["a".repeat(257)]),
            "may not be more than 256",
        ),
    ]);
}

#[test]
fn an_exempt_entry_is_a_node_name_or_control_plane() {
    let many: Vec<_> = (0..65).map(|n| format!("n{n}")).collect();
    let twice = json!(["ControlPlane", "ControlPlane"]);
    each_is_refused(&[
        ("exemptNodes", json!(many), "must have at most 64 items"),
        ("exemptNodes[1]", twice, "Duplicate value"),
        ("exemptNodes[0]", json!(["Controlplane"]), "should match"),
        ("exemptNodes[0]", json!(["control_plane"]), "should match"),
        ("exemptNodes[0]", json!(["Windows-1"]), "should match"),
        ("exemptNodes[0]", json!([""]), "should be at least 1 chars"),
    ]);
    for accepted in [json!(["ControlPlane"]), json!(["n1.example", "cp-1"])] {
        valid().accepts("/spec/exemptNodes", &accepted);
    }
}

#[test]
fn invalid_lists_of_address_ranges_are_refused() {
    const MALFORMED: &str = "an address range must have the form <network>/<prefix length>";
    let many: Vec<_> = (0..33).map(|n| format!("10.{n}.0.0/16")).collect();
    let ranges = "servingAddressRanges";
    let (first, second) = ("servingAddressRanges[0]", "servingAddressRanges[1]");
    each_is_refused(&[
        (ranges, json!(many), "must have at most 32 items"),
        (
            second,
            json!(["10.0.0.0/8", "10.0.0.0/8"]),
            "Duplicate value",
        ),
        (first, json!(["1".repeat(44)]), "may not be more than 43"),
        (first, json!([8]), "must be of type string"),
    ]);
    for malformed in [
        "",
        "10.0.0.0",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "010.0.0.0/8",
        "10.0.0.0/08",
        "2001:db8::1/32",
        "2001:db8::/129",
        "::ffff:10.0.0.0/104",
        "fe80::%eth0/64",
        "10.0.0.0-10.0.0.9",
        "example.com",
    ] {
        each_is_refused(&[
            (first, json!([malformed, "10.0.0.0/8"]), MALFORMED),
            (second, json!(["10.0.0.0/8", malformed]), MALFORMED),
        ]);
    }
    for accepted in [
        json!(["0.0.0.0/0", "::/0"]),
        json!(["192.0.2.1/32", "2001:db8::1/128"]),
        json!(["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"]),
        json!(many[..32]),
    ] {
        valid().accepts("/spec/servingAddressRanges", &accepted);
    }
    bare(json!(["aws"])).accepts("/spec/servingAddressRanges", &json!([]));
}

#[test]
fn only_the_cluster_of_an_authentication_is_immutable() {
    let stored = authentication("changed");
    stored.store();

    stored.stays(
        "/spec/clusterName",
        &json!("other"),
        "spec.clusterName",
        "cannot be changed",
    );
    stored.may_become(&[
        ("/spec/authorizedAttestors", json!(["tpm", "aws"])),
        ("/spec/adoption", json!("Refuse")),
    ]);
}

#[test]
fn a_status_written_with_an_authentication_spec_is_ignored() {
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
