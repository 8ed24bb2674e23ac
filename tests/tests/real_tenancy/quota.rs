//! Tests of the ResourceQuota in docs/tenancy.md.

use std::fs;

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::page::repository;
use serde_json::{Value, json};

use crate::admin::Admin;
use crate::bed::{PATIENCE, SITE, create_namespace};

const NAMESPACE: &str = "with-quota";

/// The ResourceQuota from the page, for this namespace.
fn quota() -> Value {
    let page = fs::read_to_string(repository().join("docs").join("tenancy.md")).unwrap();
    let mut blocks = page.split("```yaml\n").skip(1);
    let block = blocks.find(|block| block.contains("kind: ResourceQuota"));
    let (block, _) = block.unwrap().split_once("```").unwrap();
    let block = block.replace("namespace: tenant-a", &format!("namespace: {NAMESPACE}"));
    serde_saphyr::from_str(&block).unwrap()
}

/// The spec of a NodeIdentity.
fn identity() -> Value {
    json!({
        "clusterName": "a", "nodeName": "a", "uid": "0123456789abcdef0123456789abcdef",
        "providerID": "aws:///eu-west-1a/i-0123456789abcdef0", "attestor": "aws",
        "instance": "i-0123456789abcdef0", "generation": 1, "notAfter": "2026-11-28T12:00:00Z",
        "opened": {
            "keySHA256": "c".repeat(64), "requestName": "a", "requestUID": "a",
            "time": "2026-11-21T12:00:00Z",
        },
    })
}

/// The resources that the quota limits.
fn resources(quota: &Value) -> Vec<String> {
    let hard = quota["spec"]["hard"].as_object().unwrap();
    let names = hard.keys().map(|name| name.strip_prefix("count/").unwrap());
    names.map(str::to_owned).collect()
}

/// A valid object of this resource.
fn object_of(resource: &str) -> Value {
    const CORE: &str = "cluster.x-k8s.io/v1beta2";
    const OWN: &str = "attestation.cluster.x-k8s.io/v1alpha1";
    const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1beta2";
    const CONTROL_PLANES: &str = "controlplane.cluster.x-k8s.io/v1beta2";
    let infrastructure = json!({
        "apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "AWSMachine", "name": "a",
    });
    let machine = json!({
        "clusterName": "a", "bootstrap": {"dataSecretName": "a"}, "infrastructureRef": infrastructure,
    });
    let (version, kind, spec) = match resource {
        "configmaps" => return json!({"apiVersion": "v1", "kind": "ConfigMap"}),
        "secrets" => return json!({"apiVersion": "v1", "kind": "Secret"}),
        "clusters.cluster.x-k8s.io" => {
            let topology = json!({"classRef": {"name": "missing"}, "version": "v1.36.0"});
            (CORE, "Cluster", json!({"topology": topology}))
        }
        "machines.cluster.x-k8s.io" => (CORE, "Machine", machine),
        "machinepools.cluster.x-k8s.io" => {
            let pool = json!({"clusterName": "a", "template": {"spec": machine}});
            (CORE, "MachinePool", pool)
        }
        "awsclusters.infrastructure.cluster.x-k8s.io" => (INFRASTRUCTURE, "AWSCluster", json!({})),
        "awsmanagedcontrolplanes.controlplane.cluster.x-k8s.io" => {
            (CONTROL_PLANES, "AWSManagedControlPlane", json!({}))
        }
        "rosacontrolplanes.controlplane.cluster.x-k8s.io" => {
            let rosa = json!({
                "region": "eu-west-1", "rosaClusterName": "a", "version": "4.18.0",
                "versionGate": "WaitForAcknowledge",
            });
            (CONTROL_PLANES, "ROSAControlPlane", rosa)
        }
        "kubeletauthentications.attestation.cluster.x-k8s.io" => {
            let settings = json!({"clusterName": "a", "authorizedAttestors": ["aws"]});
            (OWN, "KubeletAuthentication", settings)
        }
        "nodeidentities.attestation.cluster.x-k8s.io" => (OWN, "NodeIdentity", identity()),
        "awsserviceaccountidentities.infrastructure.cluster.x-k8s.io" => (
            "infrastructure.cluster.x-k8s.io/v1alpha1",
            "AWSServiceAccountIdentity",
            json!({"roleARN": "arn:aws:iam::200000000001:role/nodes"}),
        ),
        _ => panic!("the quota limits {resource}, which has no object here"),
    };
    json!({"apiVersion": version, "kind": kind, "spec": spec})
}

#[test]
fn a_tenant_with_a_full_quota_cannot_create_another_object() {
    create_namespace(&SITE.management, NAMESPACE, &json!({}));
    let admin = Admin::of(NAMESPACE);
    for verb in ["create", "update", "patch", "delete"] {
        assert!(!admin.may(verb, "resourcequotas", NAMESPACE), "{verb}");
    }
    let kubectl = SITE.management.kubectl();
    let mut quota = quota();
    let resources = resources(&quota);
    let refusal = |object: &Value| {
        let mut object = object.clone();
        // The name of a NodeIdentity contains the Cluster and the node.
        let is_identity = object["kind"] == "NodeIdentity";
        let name = if is_identity { "a.a" } else { "a" };
        object["metadata"] = json!({"name": name, "namespace": NAMESPACE});
        kubectl.dry_run(&object, false).err()
    };
    for resource in &resources {
        assert_eq!(refusal(&object_of(resource)), None, "{resource}");
    }

    kubectl.apply_object(&quota);
    // Write a status in which the namespace has reached all limits, because a test in which kube-controller-manager
    // counts objects would take longer.
    let hard = &quota["spec"]["hard"];
    quota["status"] = json!({"hard": hard, "used": hard});
    kubectl.apply_statuses(&[quota]);

    for resource in &resources {
        let object = object_of(resource);
        let full = format!("requested: count/{resource}=1, ");
        let is_full = |error: &String| {
            error.contains("exceeded quota: node-attestation") && error.contains(&full)
        };
        let refused = poll(PATIENCE, || refusal(&object).filter(is_full));
        assert!(refused.is_some(), "{resource}: {:?}", refusal(&object));
    }
}
