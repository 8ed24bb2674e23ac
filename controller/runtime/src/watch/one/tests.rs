//! Tests that read each kind with hostile values in every field.

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use node_attestation_core::crd::BOOTSTRAP_TOKEN_ANNOTATION;
use serde_json::{Map, Value, json};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::capi::NODE_ATTESTED;
use crate::client::{ClusterAccess, NamedBy};
use crate::testing::{
    hostile_values, long_text, many_values, with_each_text_long, with_each_value,
};
use crate::watch::oversized::hides_no_other;
use crate::watch::{Custom, KindTable};
use crate::{capi, management, nodes};

/// A valid object.
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn good(name: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    let bootstrap =
        |kind: &str| json!({"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": kind, "name": "a"});
    let mut object = match name {
        "CertificateSigningRequest" => {
            let condition = json!({"type": "Approved", "status": "True"});
            json!({
                "spec": {"request": "", "signerName": "s", "username": "u", "groups": ["g"]},
                "status": {"conditions": [condition]},
            })
        }
        "Cluster" => json!({"spec": {
            "controlPlaneEndpoint": {"host": "a", "port": 6443},
            "clusterNetwork": {"services": {"cidrBlocks": ["10.96.0.0/12"]}},
            "infrastructureRef": {"apiGroup": "g", "kind": "K", "name": "n"},
            "controlPlaneRef": {"apiGroup": "g", "kind": "K", "name": "n"},
            "topology": {"variables": [{
                "name": "kubeletAuthentication",
                "value": {"enabled": true, "authorizedAttestors": ["aws"]},
            }]},
        }}),
        "Cluster with its control plane" => json!({"spec": {"controlPlaneRef": {
            "apiGroup": "g", "kind": "K", "name": "n", "namespace": "a",
        }}}),
        "ClusterRole" => json!({"rules": [{"verbs": ["get"], "resources": ["nodes"]}]}),
        "ClusterRoleBinding" => json!({
            "roleRef": {"apiGroup": "g", "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}],
        }),
        "ConfigMap" => json!({"data": {"a": "b"}}),
        "control plane of any kind" => json!({"spec": {"files": [{"content": "a"}]}}),
        "CustomResourceDefinition" | "CustomResourceDefinition of an InfraCluster" => {
            let status =
                json!({"properties": {"kubeletClientCertificateSigner": {"type": "string"}}});
            let schema = json!({"type": "object", "properties": {"status": status}});
            json!({"spec": {
                "group": "g", "scope": "Namespaced", "names": {"kind": "K", "plural": "ks"},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }],
            }})
        }
        "Event" => json!({"eventTime": null, "regarding": {"name": "a"}, "note": "text"}),
        "InfraMachine" => json!({"spec": {"providerID": "generic:///rack/m1"}}),
        "InfraMachinePool" => json!({
            "spec": {"providerIDList": ["generic:///rack/m1"]},
            "status": {"infrastructureMachineKind": "K"},
        }),
        "KubeadmConfig" => json!({"spec": {
            "initConfiguration": {"nodeRegistration": {"name": "first"}},
            "joinConfiguration": {
                "nodeRegistration": {"name": "m1"}, "controlPlane": {},
                "discovery": {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}},
            },
        }}),
        "KubeadmConfig of a pool" => json!({"spec": {
            "files": [{"path": "/a", "content": "b"}], "preKubeadmCommands": ["c"],
        }}),
        "KubeadmConfigTemplate" => json!({"spec": {"template": {"spec": {
            "files": [{"path": "/a", "content": "b"}], "preKubeadmCommands": ["c"],
        }}}}),
        "KubeadmControlPlane" => json!({"spec": {"kubeadmConfigSpec": {
            "files": [{"path": "/a", "content": "b"}], "preKubeadmCommands": ["c"],
        }}}),
        "KubeletAuthentication" => {
            json!({"spec": {"clusterName": "good", "authorizedAttestors": ["aws"]}})
        }
        "Lease" => json!({"spec": {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00.0Z"}}),
        "Lease of a node" => json!({"spec": {"renewTime": "2026-01-01T00:00:00.0Z"}}),
        "Machine" => {
            let condition = json!([{
                "type": NODE_ATTESTED, "status": "True", "reason": "r", "message": "m",
                "lastTransitionTime": time,
            }]);
            json!({
                "spec": {
                    "clusterName": "c", "providerID": "generic:///rack/m1",
                    "bootstrap": {"configRef": bootstrap("KubeadmConfig"), "dataSecretName": "d"},
                    "infrastructureRef": {"apiGroup": "g", "kind": "K", "name": "n"},
                },
                "status": {
                    "addresses": [{"type": "InternalDNS", "address": "m1.example.com"}],
                    "nodeRef": {"name": "m1"}, "conditions": condition,
                    "v1beta2": {"conditions": condition},
                },
            })
        }
        "MachineDeployment" => json!({"spec": {"template": {"spec": {"bootstrap": {
            "configRef": bootstrap("KubeadmConfigTemplate"),
        }}}}}),
        "MachinePool" => json!({"spec": {
            "clusterName": "c", "providerIDList": ["generic:///rack/m1"],
            "template": {"spec": {
                "bootstrap": {"configRef": bootstrap("KubeadmConfig")},
                "infrastructureRef": {"apiGroup": "g", "kind": "K", "name": "n"},
            }},
        }}),
        "metadata" => json!({}),
        "Namespace" => json!({"spec": {"finalizers": ["kubernetes"]}}),
        "Node" => json!({
            "spec": {"providerID": "a"},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "Hostname", "address": "a"}],
            },
        }),
        "NodeIdentity" => json!({"spec": {
            "clusterName": "c", "nodeName": "n", "uid": "0".repeat(32), "providerID": "aws:///z/i",
            "attestor": "aws", "generation": 1, "notAfter": time,
            "opened": {
                "time": time, "requestName": "r", "requestUID": "u", "keySHA256": "0".repeat(64),
            },
        }}),
        "RevokedNodeCredentials" => json!({"spec": {"revoked": {}}}),
        "Secret" | "Secret of a Cluster" => json!({"type": "Opaque", "data": {"value": "YQ=="}}),
        "Service" => json!({"spec": {"clusterIPs": ["10.0.0.1"]}}),
        "ServiceCIDR" => json!({"spec": {"cidrs": ["10.0.0.0/16"]}}),
        "ValidatingAdmissionPolicy" => {
            json!({"spec": {"failurePolicy": "Fail", "validations": [{"expression": "true"}]}})
        }
        "ValidatingAdmissionPolicyBinding" => {
            json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}})
        }
        other => panic!("the table has no valid object for {other}"),
    };
    object["metadata"] = json!({
        "name": "n", "namespace": "a", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"},
        "annotations": {
            "a": "b", BOOTSTRAP_TOKEN_ANNOTATION: "abcdef",
            "attestation.cluster.x-k8s.io/authorized-attestors": "aws",
        },
        "creationTimestamp": time, "generation": 1,
        "ownerReferences": [{
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "n", "uid": "u",
        }],
        "finalizers": ["a/b"],
    });
    object
}

/// The names of the rows that the test has tried.
#[derive(Default)]
struct Tried(Vec<&'static str>);

impl KindTable for Tried {
    fn row<K: ReadAlone>(&mut self, name: &'static str) {
        let decoded = |object: &Value| {
            let read: Lenient<K> = serde_json::from_str(&object.to_string()).unwrap();
            (read.metadata, read.object)
        };
        let good = good(name);
        assert!(decoded(&good).1.is_ok(), "{name}: {:?}", decoded(&good).1);

        for (place, hostile) in with_each_value(&good, &hostile_values()) {
            let (metadata, object) = decoded(&hostile);
            if !place.starts_with("/metadata") && !place.is_empty() {
                assert_eq!(metadata.uid.as_deref(), Some("u"), "{name}: {place}");
            } else if place.starts_with("/metadata") {
                assert!(object.is_ok(), "{name}: {place}: {object:?}");
            }
            let error = object.err().map(|error| error.to_string());
            let error = error.unwrap_or_default();
            assert!(error.len() < 300, "{name}: {place}: {error}");
        }
        for value in hostile_values() {
            for place in ["", "/spec", "/status", "/metadata"] {
                let mut hostile = good.clone();
                if place == "/status" && hostile["status"].is_null() {
                    hostile["status"] = json!({});
                }
                if let Some(Value::Object(fields)) = hostile.pointer_mut(place) {
                    fields.insert("unread".to_owned(), value.clone());
                }
                let (_, object) = decoded(&hostile);
                assert!(object.is_ok(), "{name}: unread in {place}: {object:?}");
            }
        }
        // A single object is read completely. The limit on its length is so high that no stored object can reach it.
        let mut oversized = good.clone();
        oversized["metadata"]["unread"] = long_text();
        oversized["status"]["unread"] = many_values();
        let (_, object) = decoded(&oversized);
        assert!(object.is_ok(), "{name}: oversized: {object:?}");
        self.0.push(name);
    }
}

/// The length of a long text: longer than [`MAX_KEPT`].
const LONG: usize = 16 * 1024;

/// The maximum length of the kept fields of an object with one long text. Cluster API's definitions do not limit each
/// text, unlike the definitions of this project.
const MAX_KEPT: usize = 4096;

/// The metadata that the management cluster's API server creates, or whose length it limits.
const VALIDATED: [&str; 5] = [
    "/metadata/labels",
    "/metadata/name",
    "/metadata/namespace",
    "/metadata/resourceVersion",
    "/metadata/uid",
];

/// The same object with references as in the contract v1beta1.
fn in_v1beta1(object: &Value) -> Value {
    match object {
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| (name.clone(), in_v1beta1(value)));
            let mut fields: Map<String, Value> = fields.collect();
            if let Some(group) = fields.remove("apiGroup") {
                let version = format!("{}/v1beta1", group.as_str().unwrap());
                fields.insert("apiVersion".to_owned(), json!(version));
            }
            Value::Object(fields)
        }
        Value::Array(items) => items.iter().map(in_v1beta1).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => object.clone(),
    }
}

/// The same object, before it has a provider ID.
fn without_provider_id(mut object: Value) -> Value {
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        spec.remove("providerID");
    }
    object
}

/// The names of the rows.
#[derive(Default)]
struct Names(Vec<&'static str>);

impl KindTable for Names {
    fn row<K: ReadAlone>(&mut self, name: &'static str) {
        self.0.push(name);
    }
}

/// Puts a long text into each place of an object that is kept as long as it exists.
#[derive(Default)]
struct LongTexts {
    /// The names of the rows whose kept fields were measured.
    measured: Vec<&'static str>,
}

impl KindTable for LongTexts {
    fn row<K: ReadAlone>(&mut self, name: &'static str) {
        let good = good(name);
        if capi::kept_len(name, &good).is_none() {
            // This project defines the kind, a limit counts its memory, or the call that reads it also drops it.
            return;
        }
        let long = "a".repeat(LONG);
        let mut forms = vec![in_v1beta1(&good), good];
        forms.extend(forms.clone().into_iter().map(without_provider_id));
        forms.dedup();
        for object in forms {
            for (place, hostile) in with_each_text_long(&object, &long) {
                let is_validated = VALIDATED.iter().any(|one| place.starts_with(one));
                let len = capi::kept_len(name, &hostile).unwrap();
                assert!(is_validated || len < MAX_KEPT, "{name}: {place}: {len}");
            }
        }
        self.measured.push(name);
    }
}

/// Tests each kind in a list and in a watch.
struct Listed(Runtime);

impl KindTable for Listed {
    fn row<K: ReadAlone>(&mut self, name: &'static str) {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("g", "v1", "K"));
        let all = |client| -> Api<Custom<K>> { Api::all_with(client, &resource) };
        let good = good(name);
        let others = hides_no_other(NamedBy::Operator, &good, all);
        self.0.block_on(others);
    }
}

/// Calls `table` with each type that objects are decoded as.
fn each(table: &mut impl KindTable) {
    each_read_alone(table);
    nodes::each_read_alone(table);
    management::each_read_alone(table);
    capi::each_read_alone(table);
    capi::each_secret_read_alone(table);
}

#[test]
fn an_oversized_object_of_any_kind_hides_no_other_in_lists_or_watches() {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();

    each(&mut Listed(runtime.unwrap()));
}

#[test]
fn a_hostile_value_makes_only_its_object_unreadable() {
    let mut tried = Tried::default();

    each(&mut tried);

    let Tried(mut names) = tried;
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "a name has two rows");
}

#[test]
fn a_long_text_in_any_place_is_not_kept() {
    let mut long = LongTexts::default();
    let mut of_cluster_api = Names::default();

    each(&mut long);

    capi::each_read_alone(&mut of_cluster_api);
    assert_eq!(long.measured, of_cluster_api.0);
}

fn api(object: &Value) -> Api<Secret> {
    let text = object.to_string();
    let access = ClusterAccess::in_memory(move |_| {
        let answer = Response::new(Full::new(Bytes::from(text.clone())));
        async move { answer }
    });
    Api::namespaced(access.client().clone(), "a")
}

#[tokio::test]
async fn an_unreadable_secret_keeps_its_metadata_and_is_not_in_the_error() {
    let mut secret = good("Secret");
    secret["data"] = json!({"value": ["swordfish"]});
    let api = api(&secret);

    let error = readable_one_of(&api, "n").await.unwrap_err();
    assert!(matches!(error, Error::SerdeError(_)), "{error}");
    let error = kubelet_attestation::errors::error_chain(&error);
    assert!(error.contains("invalid type"), "{error}");
    assert!(!error.contains("swordfish"), "{error}");

    let metadata = metadata_of_one(&api, "n").await.unwrap().unwrap().metadata;
    assert_eq!(metadata.resource_version.as_deref(), Some("7"));
    secret["metadata"]["creationTimestamp"] = json!("9999-12-31T23:59:59Z");
    secret["data"] = json!({"value": "YQ=="});
    let read = readable_one_of(&self::api(&secret), "n").await.unwrap();
    assert_eq!(read.unwrap().metadata.uid.as_deref(), Some("u"));
}
