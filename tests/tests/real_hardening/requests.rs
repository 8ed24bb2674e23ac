//! Tests of the permitted requests from tokens and nodes.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use kubelet_attestation::names::{NodeName, Provider};
use kubelet_authenticator_test_support::control_plane::{Controllers, DEADLINE, KubeadmBinding};
use kubelet_authenticator_test_support::process::poll;
use node_attestation_runtime::hardening::admission::{self, AdmissionSettings, POLICY_NAME};
use serde_json::{Value, json};

use crate::bed::{BUILT_IN, Bed, OURS, Request, SECRET, STOCK, assert_done, assert_refused};

const BINDING: &str = "validatingadmissionpolicybinding";
const POLICY: &str = "validatingadmissionpolicy";

/// A cluster of AWS machines, in which one exempt control-plane node renews as in kubeadm's clusters.
static CONFINED: LazyLock<Bed> = LazyLock::new(|| {
    let settings = AdmissionSettings {
        exempt: BTreeSet::from([NodeName::parse("control-plane-1").unwrap()]),
        enforced: true,
        ..settings()
    };
    confined(&settings)
});

fn settings() -> AdmissionSettings {
    AdmissionSettings {
        attestors: BTreeSet::from([Provider::AWS]),
        exempt: BTreeSet::new(),
        enforced: true,
    }
}

/// Starts a cluster with the policy for these settings. The policy is effective when this function returns.
fn confined(settings: &AdmissionSettings) -> Bed {
    let bed = Bed::start(Controllers::None, &[KubeadmBinding::KubeletBootstrap]);
    let put = bed.run(admission::apply(bed.client(), settings)).unwrap();
    assert!(put);
    bed.wait_until_confined(true);
    bed
}

#[test]
fn oversized_requests_from_a_bootstrap_token_are_refused() {
    let token = STOCK.token_holder("flood1");
    let request = Request::ours("kubelet-authenticator-flood", "flood");
    assert_done(&request.file_of(&token, Some(1_400_000)));

    let token = CONFINED.token_holder("flood1");
    assert_refused(
        &request.file_of(&token, Some(1_400_000)),
        "the request is 1400000 bytes long, and at most 65536 are allowed",
    );
    for excess in 1..4 {
        let refused = request.file_of(&token, Some(65_536 + excess));
        let words = format!("the request is {} bytes long", 65_536 + excess);
        assert_refused(&refused, &words);
    }
    assert_done(&request.file_of(&token, Some(65_536)));
}

#[test]
fn oversized_requests_from_a_node_are_refused() {
    let request = Request::ours("node-flood", "flood");
    assert_done(&request.file_of(&STOCK.node("flood"), Some(1_400_000)));

    assert_refused(
        &request.file_of(&CONFINED.node("flood"), Some(65_537)),
        "the request is 65537 bytes long",
    );
}

/// Metadata that would make a small request large, each with the message of the policy.
fn large_metadata() -> Vec<(&'static str, Value, &'static str)> {
    let long = "x".repeat(1_000_000);
    let bare = "must not have labels";
    let owner = |number: usize| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": format!("n{number}"),
            "uid": number.to_string(),
        })
    };
    let owners: Vec<_> = (0..1_000).map(owner).collect();
    let finalizers: Vec<_> = (0..1_000)
        .map(|number| format!("example.com/f{number}"))
        .collect();
    vec![
        ("labels", json!({"a": "b"}), bare),
        ("finalizers", json!(finalizers), bare),
        ("ownerReferences", json!(owners), bare),
        (
            "annotations",
            json!({"a": "x".repeat(200_000)}),
            "can have only the annotation",
        ),
        (
            "annotations",
            json!({"cluster.x-k8s.io/tpm-endorsement-key": "x".repeat(129)}),
            "with at most 128 characters",
        ),
        (
            "generateName",
            json!(long),
            "the name of the request is too long",
        ),
    ]
}

#[test]
fn a_request_with_megabytes_of_metadata_is_refused() {
    let stock = STOCK.token_holder("bulky1");
    let confined = [CONFINED.token_holder("bulky1"), CONFINED.node("bulky")];
    let all = large_metadata();
    for (number, (field, value, words)) in all.into_iter().enumerate() {
        let name = format!("kubelet-authenticator-bulky-{number}");
        let request = Request::ours(&name, "bulky");
        assert_done(&request.file_with(&stock, field, value.clone()));

        for requester in &confined {
            assert_refused(&request.file_with(requester, field, value.clone()), words);
        }
    }
    let long = format!("kubelet-authenticator-{}", "x".repeat(240));
    for requester in &confined {
        let request = Request::ours(&long, "bulky");
        assert_refused(
            &request.file(requester),
            "the name of the request is too long",
        );
    }
}

/// By default, nodes cannot change requests. An operator can grant this permission to them.
#[test]
fn an_update_that_adds_one_disallowed_part_of_the_metadata_is_refused() {
    const ROLE: &str = "request-patcher";
    const NAME: &str = "kubelet-authenticator-updates";
    const KEY: &str = "cluster.x-k8s.io/tpm-endorsement-key";
    CONFINED.cluster.kubectl().apply_object(&json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": ROLE},
        "rules": [{
            "apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests"],
            "verbs": ["get", "patch"],
        }],
    }));
    CONFINED.bind(ROLE, ROLE, "User", "system:node:updates");
    let node = CONFINED.node("updates");
    assert_done(&Request::ours(NAME, "updates").file(&node));
    let update = |field: &str, value: &Value| {
        let patch = json!({"metadata": {field: value}}).to_string();
        node.run(["patch", "csr", NAME, "--type=merge", "-p", patch.as_str()])
    };
    // The API server receives the new permission with a watch.
    let allowed = || {
        let updated = update("annotations", &json!({KEY: "0".repeat(64)}));
        updated.status.success().then_some(())
    };
    assert!(poll(DEADLINE, allowed).is_some(), "no update is allowed");

    let bare = "must not have labels";
    let annotation = "can have only the annotation";
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"});
    for (field, value, words) in [
        ("labels", json!({"a": "b"}), bare),
        ("finalizers", json!(["example.com/a"]), bare),
        ("ownerReferences", json!([owner]), bare),
        ("annotations", json!({"a": "b"}), annotation),
        ("annotations", json!({KEY: "0".repeat(129)}), annotation),
    ] {
        assert_refused(&update(field, &value), words);
    }

    assert_done(&update("annotations", &json!({KEY: "1".repeat(64)})));
    let metadata = &CONFINED.request(NAME)["metadata"];
    assert_eq!(metadata["annotations"], json!({KEY: "1".repeat(64)}));
    for field in ["labels", "finalizers", "ownerReferences"] {
        assert!(metadata[field].is_null(), "{field}: {metadata}");
    }
}

/// The API server stores the managed fields that a requester sends, even for fields that the object does not have.
#[test]
fn managed_fields_of_a_requester_do_not_make_a_request_large() {
    let many: serde_json::Map<String, Value> = (0..50_000)
        .map(|number| (format!("f:l{number}"), json!({})))
        .collect();
    let managed = json!([{
        "manager": "kubectl", "operation": "Update", "apiVersion": "certificates.k8s.io/v1",
        "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:metadata": {"f:labels": many}},
    }]);
    let name = "kubelet-authenticator-managed";
    let request = Request::ours(name, "managed");

    let filed = request.file_with(&CONFINED.token_holder("manage"), "managedFields", managed);

    if filed.status.success() {
        let kubectl = CONFINED.cluster.kubectl();
        let stored = kubectl.ok([
            "get",
            "certificatesigningrequests",
            name,
            "-o",
            "json",
            "--show-managed-fields",
        ]);
        assert!(stored.len() < 16 * 1024, "{} bytes", stored.len());
    } else {
        assert_refused(&filed, "too many managed fields");
    }
    let again = Request::ours("kubelet-authenticator-unmanaged", "managed");
    let few = json!([{
        "manager": "kubectl", "operation": "Update", "apiVersion": "certificates.k8s.io/v1",
        "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {"f:spec": {"f:request": {}}},
    }]);
    assert_done(&again.file_with(&CONFINED.node("managed"), "managedFields", few));
}

/// The requests have the same formats as the requests from kubelets and from the plugin: with a generated name, without
/// annotations, or with the endorsement key annotation.
#[test]
fn a_request_with_the_metadata_of_a_kubelet_or_the_plugin_is_admitted() {
    let node = CONFINED.node("plain");
    let key = json!({"cluster.x-k8s.io/tpm-endorsement-key": "0".repeat(64)});
    let own = Request::ours("kubelet-authenticator-plain-1", "plain");
    assert_done(&own.file_with(&node, "annotations", key));
    let serving = Request {
        signer: "kubernetes.io/kubelet-serving",
        ..Request::ours("csr-plain-2", "plain")
    };
    assert_done(&serving.file_with(&node, "generateName", json!("csr-")));
}

#[test]
fn a_bootstrap_token_cannot_use_another_signer() {
    let token = CONFINED.token_holder("signer");
    for signer in [
        BUILT_IN,
        "kubernetes.io/kube-apiserver-client",
        "kubernetes.io/kubelet-serving",
        "cluster.x-k8s.io/kubelet-serving-aws",
        "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
        "cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure",
        "cluster.x-k8s.io/kube-apiserver-client-kubelet-aws-too",
    ] {
        let request = Request {
            signer,
            ..Request::ours("kubelet-authenticator-signer", "signer")
        };
        assert_refused(
            &request.file(&token),
            &format!(
                "denied request: bootstrap tokens are not allowed to use signer {signer}: nodes of this \
                 cluster join through kubelet-authenticator"
            ),
        );
    }
    assert_done(&Request::ours("kubelet-authenticator-signer", "signer").file(&token));
}

#[test]
fn a_bootstrap_token_cannot_use_another_request_name() {
    let token = CONFINED.token_holder("naming");
    for name in ["node-csr-abc", "kubelet-authenticatorx", "csr-1"] {
        assert_refused(
            &Request::ours(name, "naming").file(&token),
            "bootstrap tokens can create only requests with names from kubelet-authenticator",
        );
    }
}

#[test]
fn a_node_cannot_use_another_signer() {
    let node = CONFINED.node("greedy");
    for signer in [
        BUILT_IN,
        "kubernetes.io/kube-apiserver-client",
        "example.com/any",
    ] {
        let request = Request {
            signer,
            ..Request::ours("kubelet-authenticator-greedy", "greedy")
        };
        assert_refused(
            &request.file(&node),
            &format!(
                "denied request: nodes are not allowed to use signer {signer}: nodes of this cluster renew \
                 through kubelet-authenticator"
            ),
        );
    }
    for (name, signer) in [
        ("kubelet-authenticator-greedy-1", OURS),
        ("csr-greedy-2", "kubernetes.io/kubelet-serving"),
        ("csr-greedy-3", "cluster.x-k8s.io/kubelet-serving-aws"),
    ] {
        let request = Request {
            signer,
            ..Request::ours(name, "greedy")
        };
        assert_done(&request.file(&node));
    }
}

#[test]
fn only_the_exempt_control_plane_node_can_use_the_built_in_signer() {
    let request = Request::built_in("csr-renewal", "control-plane-1");
    assert_refused(
        &Request::built_in("csr-worker", "worker").file(&CONFINED.node("worker")),
        "nodes are not allowed to use signer",
    );
    assert_done(&request.file(&CONFINED.node("control-plane-1")));
}

#[test]
fn a_kubelet_without_the_plugin_is_refused_with_instructions() {
    let token = CONFINED.cluster.add_bootstrap_token("stockk", SECRET);
    let bootstrap = CONFINED.cluster.bootstrap_kubeconfig(&token);
    let kubelet = CONFINED.cluster.kubelet("stock-kubelet");
    let mut kubelet = kubelet.bootstrap_kubeconfig(bootstrap).start();

    let told = kubelet.wait_for_log("denied request");

    assert!(
        told.contains(
            "bootstrap tokens are not allowed to use signer kubernetes.io/kube-apiserver-client-kubelet: \
             nodes of this cluster join through kubelet-authenticator"
        ),
        "{told}"
    );
    assert!(kubelet.process().exit_status().is_none());
}

#[test]
fn an_administrator_can_request_any_certificate() {
    let request = Request {
        signer: "kubernetes.io/kube-apiserver-client",
        ..Request::ours("admin", "admin")
    };
    assert_done(&request.file(CONFINED.cluster.kubectl()));
}

#[test]
fn an_unchanged_policy_is_not_written() {
    let bed = Bed::start(Controllers::None, &[]);
    let settings = settings();
    let apply = || bed.run(admission::apply(bed.client(), &settings)).unwrap();
    let versions = || {
        [POLICY, BINDING].map(|kind| {
            let object = bed.cluster.kubectl().json(["get", kind, POLICY_NAME]);
            object["metadata"]["resourceVersion"].clone()
        })
    };
    assert!(apply());
    let made = versions();

    assert!(!apply());

    assert_eq!(versions(), made);
}

#[test]
fn a_weakened_admission_policy_is_restored() {
    let bed = Bed::start(Controllers::None, &[]);
    let settings = settings();
    let apply = || bed.run(admission::apply(bed.client(), &settings)).unwrap();
    apply();
    let kubectl = bed.cluster.kubectl();
    let never = r#"[{"op":"add","path":"/spec/matchConditions/-",
        "value":{"name":"never","expression":"false"}}]"#;
    kubectl.ok(["patch", POLICY, POLICY_NAME, "--type=json", "-p", never]);

    assert!(apply());

    let policy = kubectl.json(["get", POLICY, POLICY_NAME]);
    assert_eq!(
        policy["spec"]["matchConditions"].as_array().unwrap().len(),
        1
    );
    kubectl.ok(["delete", BINDING, POLICY_NAME]);
    assert!(apply());
}

#[test]
fn a_policy_that_is_no_longer_needed_is_removed() {
    let bed = confined(&settings());
    for _ in 0..2 {
        bed.run(admission::remove(bed.client())).unwrap();
    }
    bed.wait_until_confined(false);
    let left = bed.cluster.kubectl().ok(["get", POLICY, "-o", "name"]);
    assert_eq!(left, "");
}
