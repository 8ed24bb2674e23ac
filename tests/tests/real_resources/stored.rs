//! Tests of objects that were stored under the previous definition, before the definition was replaced.

use std::time::Duration;

use kubelet_authenticator_test_support::process::poll;

use super::*;

/// The deadline for a changed definition, which an API server on an idle machine serves within a second or two.
const SERVED: Duration = Duration::from_secs(180);

/// All fields of the previous definition.
fn everything() -> Value {
    json!({
        "clusterName": "everything",
        "authorizedAttestors": ["aws", "tpm"],
        "certificate": {"expirationSeconds": 86400, "insecureExpirationSeconds": 2592000},
        "audiences": ["blue"],
        "autoApproveBindings": "Remove",
        "bootstrapTokens": "Ignore",
        "reenrolment": "Never",
        "adoption": "Allow",
        "nameReuse": "Quarantine",
        "staleNodes": "Refuse",
        "builtInRenewal": "ControlPlane",
        "guestReportedAddresses": "Allow",
        "servingAddressRanges": ["10.0.0.0/8"],
        "aws": {
            "accounts": ["111122223333"], "regions": ["eu-west-1"],
            "nodeName": "InstanceID", "rootVolumeCheck": false, "requiredTags": {"team": "a"},
            "serviceAccountIdentity": "prod",
        },
        "tpm": {
            "endorsementKeys": {
                "platform": "aws",
                "requireCA": ["-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"],
                "allowList": [{"machine": "m-1", "ekSha256": "1".repeat(64)}],
                "configMaps": ["rack-1"],
            },
            "lateProviderIDs": "Allow",
            "pcrPolicy": {
                "mode": "Record", "bank": "sha256", "allowed": [{"7": "a".repeat(64)}],
            },
        },
    })
}

/// The same fields, without the removed fields.
fn without_removed(mut spec: Value) -> Value {
    for (pointer, field) in [
        ("", "reenrolment"),
        ("", "nameReuse"),
        ("", "staleNodes"),
        ("", "builtInRenewal"),
        ("/certificate", "insecureExpirationSeconds"),
        ("/tpm/pcrPolicy", "mode"),
        ("/tpm/pcrPolicy", "bank"),
    ] {
        let parent = spec.pointer_mut(pointer).and_then(Value::as_object_mut);
        parent.unwrap().remove(field).unwrap();
    }
    // This value is a default in the new definition.
    spec["tpm"]["pcrPolicy"]["osSeparator"] = json!("Permitted");
    spec
}

#[test]
fn an_object_of_the_previous_schema_is_served_without_removed_fields() {
    let cluster = ControlPlane::start();
    let kubectl = cluster.kubectl();
    let established = [
        "wait",
        "--for=condition=Established",
        "--timeout=180s",
        "crd",
        "--all",
    ];
    kubectl.apply(include_str!("former.yaml"));
    kubectl.ok(established);
    let of = |name: &str, spec: &Value| {
        json!({
            "apiVersion": API_VERSION, "kind": "KubeletAuthentication",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        })
    };
    kubectl.apply_object(&of("everything", &everything()));
    // The previous definition sets default lifetimes.
    let bare = json!({"clusterName": "bare", "authorizedAttestors": ["insecure"]});
    kubectl.apply_object(&of("bare", &bare));
    let evident = json!({"clusterName": "evident", "authorizedAttestors": ["aws"]});
    kubectl.apply_object(&of("evident", &evident));
    let get = |name: &str| kubectl.json(["get", "kubeauth", name]);
    assert_eq!(get("everything")["spec"], everything());
    let lifetimes = json!({"expirationSeconds": 604_800, "insecureExpirationSeconds": 31_536_000});
    assert_eq!(get("bare")["spec"]["certificate"], lifetimes);

    kubectl.apply(&definitions());
    kubectl.ok(established);

    // The API server prunes the object when it is read, because it has not been written since then.
    let expected = without_removed(everything());
    let served = poll(SERVED, || {
        Some(get("everything")).filter(|one| one["spec"] == expected)
    });
    assert!(served.is_some(), "{:#}", get("everything"));
    let lifetime = json!({"expirationSeconds": 604_800});
    assert_eq!(get("bare")["spec"]["certificate"], lifetime);
    // The new defaults do not apply to the object, because the previous definition set these values.
    let stored = &get("evident")["spec"];
    assert_eq!(stored["autoApproveBindings"], "Report", "{stored:#}");
    assert_eq!(stored["adoption"], "Refuse", "{stored:#}");
    // The spec violates a rule of the new definition, but other writes are still accepted.
    let condition = json!({
        "type": "Ready", "status": "False", "reason": "SettingsInvalid", "message": "",
        "lastTransitionTime": "2026-11-21T12:00:00Z",
    });
    let status = ["kubeauth", "everything", "--subresource=status"];
    kubectl.patch(&status, &json!({"status": {"conditions": [condition]}}));
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    kubectl.patch(&["kubeauth", "everything"], &label);
    let limits = json!({"spec": {"aws": {"accounts": null, "requiredTags": null}}});
    kubectl.patch(&["kubeauth", "everything"], &limits);
    // Run the command in the upgrade notes. The stored object has no exemptNodes.
    let entry = r#"[{"op": "add", "path": "/spec/exemptNodes", "value": ["ControlPlane"]}]"#;
    kubectl.ok([
        "patch",
        "kubeauth",
        "everything",
        "--type=json",
        "-p",
        entry,
    ]);
    let exempt = &get("everything")["spec"]["exemptNodes"];
    assert_eq!(*exempt, json!(["ControlPlane"]));
    let adoption = json!({"spec": {"adoption": "AllowWithoutEvidence"}});
    kubectl.patch(&["kubeauth", "bare"], &adoption);
}
