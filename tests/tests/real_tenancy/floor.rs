//! Tests of an operator's floor, and of namespace administrators who try to create settings below it.

use std::process::Command;
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::Kubectl;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::{Manager, grant};
use kubelet_authenticator_tests::management::Management;
use kubelet_authenticator_tests::program;
use kubelet_authenticator_tests::scene::Scene;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::bed::{PATIENCE, SITE, create_namespace};
use crate::moved::{records, site};

pub const AUTHENTICATIONS: &str = "kubeletauthentications.attestation.cluster.x-k8s.io";
const CLUSTERS: &str = "clusters.cluster.x-k8s.io";
pub const IDENTITIES: &str = "nodeidentities.attestation.cluster.x-k8s.io";
const ATTESTORS: &str = "attestation.cluster.x-k8s.io/authorized-attestors";

/// The user of the controller, and the user of clusterctl.
pub const CONTROLLER: &str = "node-attestation-controller";
const CLUSTERCTL: &str = "clusterctl";

const ONLY: &str = "the floor of this namespace permits only these attestors: aws, tpm";
const MODE: &str = "the floor of this namespace requires autoApproveBindings: Remove or RemoveNow";
const NO_EXEMPT: &str = "the floor of this namespace requires exemptNodes: []";
const DECISIONS: &str =
    "only the controller and responders can change the annotations about revocations";
const CLUSTER_FIRST: &str = "delete the Cluster prod-1 before its KubeletAuthentication";
pub const RECORDS: &str = "only the controller and responders can write NodeIdentities";

/// The end of the API server's message when this policy rejects an object.
fn refusal(policy: &str, message: &str) -> String {
    let policy = format!("node-attestation-floor-{policy}");
    format!(
        "ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {message}"
    )
}

#[track_caller]
pub fn assert_refused(attempt: Result<(), String>, policy: &str, message: &str) {
    let error = attempt.expect_err("it is permitted");
    assert!(error.contains("(Forbidden)"), "{error}");
    assert!(error.ends_with(&refusal(policy, message)), "{error}");
}

/// A KubeletAuthentication with these settings, in addition to the valid settings.
pub fn authentication(namespace: &str, name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "clusterName": name, "authorizedAttestors": ["aws"], "autoApproveBindings": "Remove",
            "exemptNodes": [],
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    object
}

/// The record `prod-1.node-1`.
pub fn identity(namespace: &str) -> Value {
    json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "NodeIdentity",
        "metadata": {"name": "prod-1.node-1", "namespace": namespace},
        "spec": {
            "clusterName": "prod-1", "nodeName": "node-1", "uid": "0123456789abcdef0123456789abcdef",
            "providerID": "aws:///eu-west-1a/i-0123456789abcdef0", "attestor": "aws",
            "instance": "i-0123456789abcdef0", "generation": 1, "notAfter": "2026-11-28T12:00:00Z",
            "opened": {
                "keySHA256": "c".repeat(64), "requestName": "a", "requestUID": "a",
                "time": "2026-11-21T12:00:00Z",
            },
        },
    })
}

/// A Cluster whose infrastructure does not exist. Cluster API rejects a Cluster without a reference.
fn cluster(namespace: &str, name: &str, annotations: &Value) -> Value {
    let infrastructure = json!({
        "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "GenericCluster", "name": name,
    });
    json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"infrastructureRef": infrastructure},
    })
}

/// Applies the rendered floor, and labels the existing namespace. Returns when the policies are effective.
#[track_caller]
pub fn set_floor(management: &Management, namespace: &str) {
    // `kubectl apply` fails if another process creates an object between its read and its write.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let controller = format!("user:{CONTROLLER}");
    let rendered = Command::new(program("node-attestation-controller"))
        .args(["render", "floor", "--controller", &controller])
        .args(["--exempt", "user:clusterctl"])
        .args(["--responder", "group:on-call"])
        .output()
        .unwrap();
    assert!(rendered.status.success(), "{rendered:?}");
    let kubectl = management.kubectl();
    let turn = TURN.lock();
    kubectl.apply(&String::from_utf8(rendered.stdout).unwrap());
    drop(turn);
    let label = "attestation.cluster.x-k8s.io/floor=enforced";
    kubectl.ok(["label", "namespace", namespace, label]);
    let report = json!({"autoApproveBindings": "Report"});
    for (object, policy, message) in [
        (
            authentication(namespace, "probe", &report),
            "settings",
            MODE,
        ),
        (identity(namespace), "identities", RECORDS),
    ] {
        let refusal = refusal(policy, message);
        let is_refused = |error: &String| error.contains(&refusal);
        let refused = poll(PATIENCE, || {
            kubectl.dry_run(&object, false).err().filter(is_refused)
        });
        assert!(refused.is_some(), "{policy} is not in force");
    }
    // This policy reads Clusters, so it can become effective later than the other policies.
    kubectl.create_object(&cluster(namespace, "probe", &json!({})));
    kubectl.create_object(&authentication(namespace, "probe", &json!({})));
    let refusal = refusal(
        "deletion",
        "delete the Cluster probe before its KubeletAuthentication",
    );
    let delete = [
        "delete",
        AUTHENTICATIONS,
        "probe",
        "-n",
        namespace,
        "--dry-run=server",
    ];
    let refused = poll(PATIENCE, || {
        let output = kubectl.run(delete);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        error.contains(&refusal).then_some(())
    });
    assert!(refused.is_some(), "deletion is not in force");
    kubectl.ok(["delete", CLUSTERS, "probe", "-n", namespace]);
    let words = ["delete", AUTHENTICATIONS, "probe", "-n", namespace];
    let deleted = poll(PATIENCE, || {
        kubectl.run(words).status.success().then_some(())
    });
    assert!(
        deleted.is_some(),
        "without its Cluster, it cannot be deleted"
    );
}

/// Settings below the floor, each with the refusal.
fn below() -> [(Value, &'static str); 7] {
    [
        (json!({"authorizedAttestors": ["insecure"]}), ONLY),
        (json!({"authorizedAttestors": ["aws", "other"]}), ONLY),
        (json!({"autoApproveBindings": "Report"}), MODE),
        // Null stands for the default value.
        (json!({"autoApproveBindings": null}), MODE),
        (json!({"exemptNodes": ["windows-1"]}), NO_EXEMPT),
        (json!({"exemptNodes": ["ControlPlane"]}), NO_EXEMPT),
        (json!({"exemptNodes": null}), NO_EXEMPT),
    ]
}

/// kubectl as this user, who is an administrator of the namespace.
#[track_caller]
pub fn user(management: &Management, namespace: &str, name: &str, group: &str) -> Kubectl {
    let plane = management.control_plane();
    let binding = format!("admin-{name}");
    let words = [
        "create",
        "rolebinding",
        &binding,
        "--clusterrole=admin",
        "--user",
        name,
        "-n",
    ];
    management
        .kubectl()
        .ok(words.into_iter().chain([namespace]));
    plane.kubectl_with(plane.client_cert_kubeconfig(name, Some(group)))
}

#[test]
fn tenants_can_edit_settings_but_not_go_below_the_floor() {
    const NAME: &str = "floor-settings";
    const FREE: &str = "without-floor";
    create_namespace(&SITE.management, NAME, &json!({}));
    let admin = Admin::of(NAME);
    set_floor(&SITE.management, NAME);
    admin.apply(cluster(NAME, "prod-1", &json!({})));
    let create = |spec: &Value| {
        let object = authentication(NAME, "prod-1", spec).to_string();
        admin.attempt(&["create", "-f", "-"], &object)
    };
    let target = [AUTHENTICATIONS, "prod-1", "-n", NAME];
    let merge = |patch: Value| {
        let patch = patch.to_string();
        let words = [&["patch", "--type=merge", "-p", &patch], &target[..]].concat();
        admin.attempt(&words, "")
    };

    for (spec, message) in below() {
        assert_refused(create(&spec), "settings", message);
    }
    assert_eq!(create(&json!({})), Ok(()));
    for (spec, message) in below() {
        assert_refused(merge(json!({"spec": spec})), "settings", message);
    }
    let report = json!({"autoApproveBindings": "Report"});
    let object = authentication(NAME, "prod-1", &report).to_string();
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    for words in [&apply[..], &["replace", "-f", "-"]] {
        assert_refused(admin.attempt(words, &object), "settings", MODE);
    }
    for key in [
        "released-machines",
        "lowest-valid-generation",
        "changed-by",
        "workload-uid",
    ] {
        let key = format!("attestation.cluster.x-k8s.io/{key}");
        let annotated = merge(json!({"metadata": {"annotations": {key: "1"}}}));
        assert_refused(annotated, "settings", DECISIONS);
    }
    for spec in [
        json!({"autoApproveBindings": "RemoveNow"}),
        json!({"authorizedAttestors": ["tpm", "aws"]}),
        json!({"adoption": "Allow"}),
        json!({"adoption": "Refuse", "bootstrapTokens": "Ignore"}),
        json!({"certificate": {"expirationSeconds": 86_400}}),
        json!({"aws": {"requiredTags": {"a": "b"}}}),
    ] {
        assert_eq!(merge(json!({"spec": spec})), Ok(()), "{spec}");
    }
    let account = "attestation.cluster.x-k8s.io/aws-account";
    let metadata = json!({"labels": {"a": "b"}, "annotations": {account: null, "a": "b"}});
    assert_eq!(merge(json!({"metadata": metadata})), Ok(()));

    // In namespaces without the label, the floor has no effect.
    create_namespace(&SITE.management, FREE, &json!({}));
    Admin::of(FREE).apply(authentication(FREE, "prod-1", &report));
}

#[test]
fn tenants_cannot_delete_a_kubelet_authentication_before_its_cluster() {
    const NAME: &str = "floor-deletion";
    create_namespace(&SITE.management, NAME, &json!({}));
    let admin = Admin::of(NAME);
    set_floor(&SITE.management, NAME);
    for name in ["prod-1", "prod-2"] {
        admin.apply(authentication(NAME, name, &json!({})));
    }
    admin.apply(cluster(NAME, "prod-1", &json!({})));
    let target = [AUTHENTICATIONS, "prod-1", "-n", NAME];
    // clusterctl marks the objects that it deletes during a move.
    let mark = "clusterctl.cluster.x-k8s.io/delete-for-move";
    let marked = json!({"metadata": {"annotations": {mark: ""}}});
    admin.patch("kubeletauthentications", "prod-1", &marked);
    let delete = [&["delete", "--dry-run=server"], &target[..]].concat();
    // The API server receives the Cluster with a delay.
    let refused = poll(PATIENCE, || admin.attempt(&delete, "").err());
    assert!(refused.is_some(), "the policy has not read the Cluster");

    let raw = format!(
        "--raw=/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAME}/kubeletauthentications"
    );
    for words in [
        [&["delete"], &target[..]].concat(),
        [&["delete", "--grace-period=0", "--force"], &target[..]].concat(),
        vec!["delete", &raw],
    ] {
        let attempt = admin.attempt(&words, "");
        assert_refused(attempt, "deletion", CLUSTER_FIRST);
    }
    // The KubeletAuthentication does not belong to a Cluster.
    let words = [
        "delete",
        AUTHENTICATIONS,
        "prod-2",
        "-n",
        NAME,
        "--ignore-not-found",
    ];
    assert_eq!(admin.attempt(&words, ""), Ok(()));
    let words = ["delete", CLUSTERS, "prod-1", "-n", NAME];
    admin.ok(&words);
    let words = [&["delete"], &target[..]].concat();
    let deleted = poll(PATIENCE, || admin.attempt(&words, "").ok());
    assert!(deleted.is_some(), "{:?}", admin.attempt(&words, ""));
}

#[test]
fn tenants_cannot_write_node_identities_that_responders_can_change() {
    const NAME: &str = "floor-identities";
    create_namespace(&SITE.management, NAME, &json!({}));
    let admin = Admin::of(NAME);
    set_floor(&SITE.management, NAME);
    let target = [IDENTITIES, "prod-1.node-1", "-n", NAME];
    let reset = json!({"metadata": {"annotations": {
        "attestation.cluster.x-k8s.io/reset": "1",
        "attestation.cluster.x-k8s.io/changed-by": "responder",
    }}});
    let reset = reset.to_string();
    let patch = [&["patch", "--type=merge", "-p", &reset], &target[..]].concat();
    let status = [
        &[
            "patch",
            "--type=merge",
            "-p",
            "{\"status\": {\"serial\": \"1\"}}",
            "--subresource=status",
        ],
        &target[..],
    ]
    .concat();
    let delete = [&["delete"], &target[..]].concat();
    let create = ["create", "-f", "-"];
    let object = identity(NAME).to_string();
    let run = |kubectl: &Kubectl, words: &[&str], input: &str| {
        let output = kubectl.run_with_input(words, input);
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or(error)
    };
    let plane = SITE.management.control_plane();
    let controller = plane.kubectl_with(plane.client_cert_kubeconfig(CONTROLLER, None));
    let responder = user(&SITE.management, NAME, "responder", "on-call");
    // Members of the responder group are exempt, but a user with the group's name is not.
    let impostor = user(&SITE.management, NAME, "on-call", "tenants");

    assert_refused(run(&responder, &create, &object), "identities", RECORDS);
    assert_refused(admin.attempt(&create, &object), "identities", RECORDS);
    assert_eq!(run(&controller, &create, &object), Ok(()));
    // A storage migration writes each object again, without a change.
    let unchanged = [&["patch", "--type=merge", "-p", "{}"], &target[..]].concat();
    assert_eq!(admin.attempt(&unchanged, ""), Ok(()));
    for words in [&patch, &status, &delete] {
        assert_refused(admin.attempt(words, ""), "identities", RECORDS);
        assert_refused(run(&impostor, words, ""), "identities", RECORDS);
    }
    assert_eq!(run(&responder, &patch, ""), Ok(()));
    assert_refused(run(&responder, &delete, ""), "identities", RECORDS);
    assert_eq!(run(&controller, &delete, ""), Ok(()));
}

/// The only KubeletAuthentication with this name, if any.
fn found(kubectl: &Kubectl, namespace: &str, name: &str) -> Option<Value> {
    let field = format!("metadata.name={name}");
    let words = [
        "get",
        AUTHENTICATIONS,
        "-n",
        namespace,
        "--field-selector",
        &field,
    ];
    let list = kubectl.json(words);
    list["items"].as_array().unwrap().first().cloned()
}

#[test]
fn an_annotation_or_variable_does_not_go_below_the_floor() {
    const NAME: &str = "floor-annotated";
    create_namespace(&SITE.management, NAME, &json!({}));
    let admin = Admin::of(NAME);
    set_floor(&SITE.management, NAME);
    let kubectl = SITE.management.kubectl();
    let assert_event = |name: &str| {
        let field = format!("involvedObject.name={name},reason=AttestorsRefused");
        let events = ["events", "-n", NAME, "--field-selector", &field];
        let event = kubectl.wait_for(&events, "the refusal", PATIENCE, |_| true);
        let message = event["message"].as_str().unwrap();
        assert!(message.ends_with(&refusal("settings", ONLY)), "{message}");
        assert_eq!(event["involvedObject"]["kind"], "Cluster");
    };

    admin.apply(cluster(NAME, "prod-1", &json!({ATTESTORS: "aws"})));
    let made = poll(PATIENCE, || found(kubectl, NAME, "prod-1")).unwrap();
    assert_eq!(made["spec"]["autoApproveBindings"], "Remove", "{made:#}");
    assert_eq!(made["spec"]["exemptNodes"], json!([]), "{made:#}");
    admin.apply(cluster(NAME, "prod-2", &json!({ATTESTORS: "insecure"})));
    let mut variable = cluster(NAME, "prod-3", &json!({}));
    let value = json!({"enabled": true, "authorizedAttestors": ["insecure"]});
    variable["spec"]["topology"] = json!({
        "classRef": {"name": "any"}, "version": "v1.36.0",
        "variables": [{"name": "kubeletAuthentication", "value": value}],
    });
    admin.apply(variable);
    for name in ["prod-2", "prod-3"] {
        assert_event(name);
        assert_eq!(found(kubectl, NAME, name), None);
    }

    let weaker = json!({"metadata": {"annotations": {ATTESTORS: "insecure"}}});
    admin.patch(CLUSTERS, "prod-1", &weaker);
    assert_event("prod-1");
    let stays = found(kubectl, NAME, "prod-1").unwrap();
    assert_eq!(stays["spec"], made["spec"]);
}

/// This test uses Cluster API's managers and Kubernetes' garbage collector.
#[test]
fn cluster_api_deletes_a_cluster_in_a_namespace_with_a_floor() {
    const NAME: &str = "floor-cluster-api";
    let management = Management::managed(Duration::from_mins(15));
    grant(&management);
    let _manager = Manager::null(&management, &[]);
    let kubectl = management.kubectl();
    create_namespace(&management, NAME, &json!({}));
    let admin = Admin::on(&management, NAME);
    set_floor(&management, NAME);
    let _cluster = management.cluster("prod-1").namespace(NAME).create();
    let annotated = json!({"metadata": {"annotations": {ATTESTORS: "aws"}}});
    admin.patch(CLUSTERS, "prod-1", &annotated);
    let made = poll(PATIENCE, || found(kubectl, NAME, "prod-1")).unwrap();
    assert_eq!(made["metadata"]["ownerReferences"][0]["kind"], "Cluster");

    // The tenant makes the garbage collector delete the objects of this owner. The Cluster protects one of these
    // objects.
    admin.apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}));
    let owner = kubectl.json(["get", "configmap", "owner", "-n", NAME]);
    let owners = json!({"metadata": {"ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"],
    }]}});
    admin.apply(authentication(NAME, "prod-2", &json!({})));
    for name in ["prod-1", "prod-2"] {
        admin.patch("kubeletauthentications", name, &owners);
    }
    let words = ["delete", "configmap", "owner", "-n", NAME];
    admin.ok(&words);
    let is_gone = |name: &str| found(kubectl, NAME, name).is_none().then_some(());
    assert!(poll(PATIENCE, || is_gone("prod-2")).is_some());
    let collector = "--as=system:serviceaccount:kube-system:generic-garbage-collector";
    let refused = kubectl.run(["delete", AUTHENTICATIONS, "prod-1", "-n", NAME, collector]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains(CLUSTER_FIRST), "{told}");
    assert_eq!(is_gone("prod-1"), None);

    let words = ["delete", CLUSTERS, "prod-1", "-n", NAME];
    admin.ok(&words);

    assert!(poll(PATIENCE, || is_gone("prod-1")).is_some());
}

#[test]
fn clusterctl_moves_a_cluster_with_a_floor_as_its_exempt_user() {
    const NAME: &str = "floor-moved";
    let (here, there) = (site(), site());
    // The Cluster's settings are older than the floor.
    let scene = Scene::start(&here, NAME, json!({"autoApproveBindings": "Report"}));
    let machine = scene.cluster.machine("joined").create();
    scene.join(&machine);
    // clusterctl only moves Machines that have Nodes.
    let node = json!({"status": {"nodeRef": {"name": "joined"}}});
    let target = ["machines.cluster.x-k8s.io", "joined", "-n", NAME];
    let words = [&target[..], &["--subresource=status"]].concat();
    scene.management().patch(&words, &node);
    create_namespace(&there.management, NAME, &json!({}));
    let kubeconfigs = [&here, &there].map(|site| {
        let management = &site.management;
        set_floor(management, NAME);
        let words = [
            "create",
            "clusterrolebinding",
            CLUSTERCTL,
            "--clusterrole=cluster-admin",
        ];
        management
            .kubectl()
            .ok(words.into_iter().chain(["--user", CLUSTERCTL]));
        management
            .control_plane()
            .client_cert_kubeconfig(CLUSTERCTL, None)
    });
    let before = records(scene.management(), NAME);
    assert_eq!(before.len(), 1, "{before:?}");

    let Scene { cluster, .. } = scene;
    let _cluster = cluster.clusterctl_move_with(&there.management, &kubeconfigs);

    assert_eq!(records(there.management.kubectl(), NAME), before);
    let moved = found(there.management.kubectl(), NAME, "prod-1").unwrap();
    assert_eq!(moved["spec"]["autoApproveBindings"], "Report");
    assert_eq!(found(here.management.kubectl(), NAME, "prod-1"), None);
    assert!(records(here.management.kubectl(), NAME).is_empty());
}
