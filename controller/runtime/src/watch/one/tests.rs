//! Tests that read each kind with hostile values in every field.

use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use kube::api::ApiResource;
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::client::{ClusterAccess, NamedBy};
use crate::testing::{hostile_values, long_text, many_values, with_each_value};
use crate::watch::oversized::hides_no_other;
use crate::watch::{Custom, KindTable};
use crate::{capi, management, nodes};

/// A valid object.
fn good(name: &str) -> Value {
    let time = "2026-01-01T00:00:00Z";
    let mut object = match name {
        "CertificateSigningRequest" => {
            let condition = json!({"type": "Approved", "status": "True"});
            json!({
                "spec": {"request": "", "signerName": "s", "username": "u", "groups": ["g"]},
                "status": {"conditions": [condition]},
            })
        }
        "Cluster" => json!({"spec": {"controlPlaneEndpoint": {"host": "a", "port": 6443}}}),
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
        "InfraMachinePool" => json!({"spec": {"providerIDList": ["generic:///rack/m1"]}}),
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
        "Machine" => json!({"spec": {"clusterName": "c", "providerID": "generic:///rack/m1"}}),
        "MachineDeployment" => json!({"spec": {"template": {"spec": {"bootstrap": {
            "configRef": {"kind": "KubeadmConfigTemplate", "name": "a", "apiGroup": "g"},
        }}}}}),
        "MachinePool" => {
            json!({"spec": {"clusterName": "c", "providerIDList": ["generic:///rack/m1"]}})
        }
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
        "annotations": {"a": "b"}, "creationTimestamp": time, "generation": 1,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}],
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
