//! Tests of responders, who can revoke and reset node identities, but cannot change anything else.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers, Kubectl};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::fleet::grant;
use kubelet_authenticator_tests::management::{Contract, Management};
use kubelet_authenticator_tests::page::repository;
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

use crate::bed::{PATIENCE, SITE, create_namespace};
use crate::floor::{
    AUTHENTICATIONS, CONTROLLER, IDENTITIES, RECORDS, assert_refused, authentication, identity,
    set_floor, user,
};

const RESET: &str = "attestation.cluster.x-k8s.io/reset";
const RELEASED: &str = "attestation.cluster.x-k8s.io/released-machines";
const LOWEST: &str = "attestation.cluster.x-k8s.io/lowest-valid-generation";
const CHANGED_BY: &str = "attestation.cluster.x-k8s.io/changed-by";

const ONLY: &str = "responders can only revoke and reset NodeIdentities";
const DECISIONS_ONLY: &str = "responders can change only the annotations about revocations";
const RAISED: &str = "responders can only raise lowest-valid-generation, to a Unix time in seconds";
const OWN: &str = "a responder must write its user name to the annotation changed-by";

/// The audit policy: the metadata of requests, but not their bodies.
const AUDITED: &str = r#"{
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
    "rules": [{"level": "Metadata"}], "omitStages": ["RequestReceived"]
}"#;

/// A node identity in generation 3, whose previous generation is revoked.
fn third_generation(namespace: &str) -> Value {
    let mut object = identity(namespace);
    let label = json!({"cluster.x-k8s.io/cluster-name": "prod-1"});
    object["metadata"]["labels"] = label;
    object["spec"]["generation"] = json!(3);
    object["spec"]["machineName"] = json!("machine-1");
    object["spec"]["revoked"] = json!({"generation": 2, "at": "2026-11-20T12:00:00Z"});
    object
}

/// kubectl as the controller.
fn controller(management: &Management) -> Kubectl {
    let plane = management.control_plane();
    plane.kubectl_with(plane.client_cert_kubeconfig(CONTROLLER, None))
}

/// Runs an `identities` command with this kubeconfig.
fn identities(kubeconfig: &Path, namespace: &str, words: &[&str]) -> Output {
    Command::new(program("node-attestation-controller"))
        .arg("identities")
        .args(words)
        .args(["--namespace", namespace, "--kubeconfig"])
        .arg(kubeconfig)
        .output()
        .unwrap()
}

#[test]
fn responders_revoke_and_reset_with_the_command_under_their_own_name() {
    const NAME: &str = "responded";
    let files = Scratch::new("audit");
    let policy = files.write("policy.json", AUDITED);
    let log = files.join("audit.log");
    let plane = ControlPlane::builder()
        .controllers(Controllers::Certificates)
        .apiserver_arg(format!("--audit-policy-file={}", policy.display()))
        .apiserver_arg(format!("--audit-log-path={}", log.display()))
        .apiserver_arg("--audit-log-mode=blocking");
    let management = Management::on(plane.start(), Contract::V1Beta2);
    grant(&management);
    create_namespace(&management, NAME, &json!({}));
    set_floor(&management, NAME);
    let kubectl = management.kubectl();
    let role = repository().join("packaging/rbac/responder.yaml");
    kubectl.ok(["apply", "-f", role.to_str().unwrap()]);
    let binding = ["create", "rolebinding", "responders", "--group=on-call"];
    let of = ["--clusterrole=node-attestation-responder", "-n", NAME];
    kubectl.ok([&binding[..], &of].concat());
    kubectl.create_object(&authentication(NAME, "prod-1", &json!({})));
    controller(&management).create_object(&third_generation(NAME));
    let infrastructure = json!({
        "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "GenericMachine", "name": "machine-1",
    });
    kubectl.create_object(&json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {
            "name": "machine-1", "namespace": NAME,
            "labels": {"cluster.x-k8s.io/cluster-name": "prod-1", "rack": "7"},
        },
        "spec": {
            "clusterName": "prod-1", "bootstrap": {"dataSecretName": "machine-1"},
            "infrastructureRef": infrastructure,
        },
    }));
    let plane = management.control_plane();
    let kubeconfig = plane.client_cert_kubeconfig("jane", Some("on-call"));
    let jane = plane.kubectl_with(&kubeconfig);
    let may = |verb: &str, resource: &str| {
        let answer = jane.run(["auth", "can-i", verb, resource, "-n", NAME]);
        String::from_utf8_lossy(&answer.stdout).trim() == "yes"
    };
    // The test waits, because the API server receives the binding with a watch.
    let is_bound = poll(PATIENCE, || may("patch", IDENTITIES).then_some(()));
    assert!(is_bound.is_some());
    // The binding is the same as for viewer.yaml.
    for resource in [
        "awsserviceaccountidentities.infrastructure.cluster.x-k8s.io",
        "clusters.cluster.x-k8s.io",
        "machinepools.cluster.x-k8s.io",
        "events.events.k8s.io",
        "events",
    ] {
        assert!(may("watch", resource), "{resource}");
    }
    for (verb, resource) in [
        ("create", IDENTITIES),
        ("delete", IDENTITIES),
        ("create", AUTHENTICATIONS),
        ("delete", AUTHENTICATIONS),
        ("get", "secrets"),
    ] {
        assert!(!may(verb, resource), "{verb} {resource}");
    }
    let run = |words: &[&str]| {
        let output = identities(&kubeconfig, NAME, words);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}: {output:?}");
        assert!(!printed.contains("warning"), "{words:?}: {printed}");
        printed
    };
    let record = || kubectl.json(["get", IDENTITIES, "prod-1.node-1", "-n", NAME]);
    let annotations = || {
        let object = kubectl.json(["get", AUTHENTICATIONS, "prod-1", "-n", NAME]);
        object["metadata"]["annotations"].clone()
    };

    let before = record();
    run(&["revoke", "--dry-run", "prod-1", "node-1"]);
    assert_eq!(record(), before);

    run(&["revoke", "--yes", "prod-1", "node-1"]);
    let revoked = record();
    assert_eq!(revoked["spec"]["revoked"]["generation"], 3);
    assert_eq!(revoked["metadata"]["annotations"][CHANGED_BY], "jane");

    run(&["reset", "--yes", "--revoked", "prod-1", "node-1"]);
    assert_eq!(record()["metadata"]["annotations"][RESET], "3");
    assert!(annotations()[RELEASED].is_string());
    assert_eq!(annotations()[CHANGED_BY], "jane");

    let selected = ["revoke", "--yes", "prod-1", "--selector", "rack=7"];
    let printed = run(&selected);
    assert!(
        printed.starts_with("Revoked 1 of 1 nodes: node-1."),
        "{printed}"
    );
    let revoked = record();
    assert!(revoked["metadata"]["annotations"][RESET].is_null());
    // The revocation removes the machine from the annotation of released machines.
    assert_eq!(annotations()[RELEASED], "");

    let floor = |how| run(&["floor", how, "prod-1", "--before", "2026-01-01T00:00:00Z"]);
    floor("--dry-run");
    assert!(annotations()[LOWEST].is_null());
    floor("--yes");
    assert!(annotations()[LOWEST].is_string());

    for (reason, start) in [
        (
            "Revoked",
            "the certificates of generation 3 of node node-1 were revoked",
        ),
        ("ResetRequested", "generation 3 of node node-1 was reset"),
        (
            "MachineReleased",
            "machine aws:///eu-west-1a/i-0123456789abcdef0",
        ),
        ("FloorRaised", "all node certificates"),
    ] {
        let field = format!("reason={reason}");
        let events = ["events", "-n", NAME, "--field-selector", &field];
        let event = kubectl.wait_for(&events, reason, PATIENCE, |_| true);
        let message = event["message"].as_str().unwrap();
        assert!(message.starts_with(start), "{message}");
        assert!(message.ends_with(", by jane"), "{message}");
    }
    let log = fs::read_to_string(log).unwrap();
    for (policy, text) in [
        (
            "identities",
            "generation 3 of node node-1 was revoked by jane",
        ),
        (
            "identities",
            "generation 3 of node node-1 was reset by jane",
        ),
        (
            "settings",
            "the decisions about revocations of Cluster prod-1 were changed by jane",
        ),
    ] {
        let key = format!("node-attestation-floor-{policy}/act");
        let is_act = |line: &str| {
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            event["annotations"][&key] == text && event["user"]["username"] == "jane"
        };
        assert!(log.lines().any(is_act), "{text}");
    }
}

/// Patches that the definition accepts, each with a changed field that is not part of a revocation or a reset.
fn other_changes() -> Vec<Value> {
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "a",
        "uid": "00000000-0000-0000-0000-000000000000",
    });
    let later = "2027-11-28T12:00:00Z";
    let tombstone = json!({"since": later, "reason": "MachineGone", "until": later});
    let specs = [
        json!({"generation": 4}),
        json!({"generation": 4, "providerID": "aws:///eu-west-1a/i-0123456789abcdef1"}),
        json!({"generation": 4, "attestor": "tpm"}),
        json!({"instance": "i-0123456789abcdef1"}),
        json!({"machineName": "machine-2"}),
        json!({"endorsementKeySHA256": "c".repeat(64)}),
        json!({"opened": {"requestName": "b"}}),
        json!({"notAfter": later}),
        json!({"formerUntil": later}),
        json!({"renewedUntil": later}),
        json!({"supersededGeneration": 2}),
        json!({"tombstone": tombstone}),
        json!({"revoked": null}),
        json!({"revoked": {"generation": 1}}),
        json!({"revoked": {"at": later}}),
    ];
    let metadata = [
        json!({"labels": {"a": "b"}}),
        json!({"labels": null}),
        json!({"finalizers": ["example.com/a"]}),
        json!({"ownerReferences": [owner]}),
        json!({"annotations": {"a": "b"}}),
        json!({"annotations": {RESET: "2"}}),
    ];
    let specs = specs.into_iter().map(|spec| json!({"spec": spec}));
    let metadata = metadata.into_iter().map(|one| json!({"metadata": one}));
    specs.chain(metadata).collect()
}

#[test]
fn responders_cannot_change_other_fields_or_write_another_name() {
    const NAME: &str = "responders-only";
    create_namespace(&SITE.management, NAME, &json!({}));
    set_floor(&SITE.management, NAME);
    let kubectl = SITE.management.kubectl();
    kubectl.create_object(&authentication(NAME, "prod-1", &json!({})));
    controller(&SITE.management).create_object(&third_generation(NAME));
    // The role `admin` permits every write, so only the policy can reject it.
    let jane = user(&SITE.management, NAME, "jane", "on-call");
    let run = |words: &[&str]| {
        let output = jane.run(words);
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or(error)
    };
    let patch = |resource: &str, name: &str, patch: &Value, more: &[&str]| {
        let patch = patch.to_string();
        let words = [
            "patch",
            resource,
            name,
            "-n",
            NAME,
            "--type=merge",
            "-p",
            &patch,
        ];
        run(&[&words[..], more].concat())
    };
    let record = |change: &Value| patch(IDENTITIES, "prod-1.node-1", change, &[]);
    let settings = |change: &Value| patch(AUTHENTICATIONS, "prod-1", change, &[]);
    let named = |mut change: Value, name: Option<&str>| {
        change["metadata"]["annotations"][CHANGED_BY] = json!(name);
        change
    };

    for change in other_changes() {
        assert_refused(record(&named(change, Some("jane"))), "identities", ONLY);
    }
    let status = json!({"status": {"serial": "1"}});
    let status = patch(
        IDENTITIES,
        "prod-1.node-1",
        &status,
        &["--subresource=status"],
    );
    assert_refused(status, "identities", ONLY);
    let delete = run(&["delete", IDENTITIES, "prod-1.node-1", "-n", NAME]);
    assert_refused(delete, "identities", RECORDS);
    let now = "2026-11-22T12:00:00Z";
    let acts = [
        json!({"spec": {"revoked": {"generation": 3, "at": now}}}),
        json!({"metadata": {"annotations": {RESET: "3"}}}),
    ];
    for act in acts {
        for other in [None, Some("john")] {
            let refused = record(&named(act.clone(), other));
            assert_refused(refused, "identities", OWN);
        }
        assert_eq!(record(&named(act, Some("jane"))), Ok(()));
    }

    for change in [
        json!({"spec": {"adoption": "Allow"}}),
        json!({"spec": {"bootstrapTokens": "Ignore"}}),
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"metadata": {"annotations": {"attestation.cluster.x-k8s.io/aws-account": "1"}}}),
    ] {
        let refused = settings(&named(change, Some("jane")));
        assert_refused(refused, "settings", DECISIONS_ONLY);
    }
    let create = authentication(NAME, "prod-2", &json!({}));
    let output = jane.run_with_input(["create", "-f", "-"], &create.to_string());
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert_refused(Err(error), "settings", DECISIONS_ONLY);
    for key in [RELEASED, LOWEST] {
        let change = json!({"metadata": {"annotations": {key: "1"}}});
        for other in [None, Some("john")] {
            let refused = settings(&named(change.clone(), other));
            assert_refused(refused, "settings", OWN);
        }
        assert_eq!(settings(&named(change, Some("jane"))), Ok(()));
    }
    let lowest = |value: Value| {
        let change = json!({"metadata": {"annotations": {LOWEST: value}}});
        settings(&named(change, Some("jane")))
    };
    for value in [
        json!(null),
        json!("0"),
        json!("a"),
        json!("10000000000"),
        json!("18446744073709551615"),
    ] {
        assert_refused(lowest(value), "settings", RAISED);
    }
    assert_eq!(lowest(json!("2")), Ok(()));
}
