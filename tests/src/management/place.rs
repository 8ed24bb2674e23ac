use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, Kubectl};
use serde_json::{Map, Value, json};

use super::Contract;
use super::contract::Kind;

pub(super) const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// The namespace and the management cluster of a Cluster's objects.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) control_plane: Arc<ControlPlane>,
    pub(super) contract: Contract,
    pub(super) namespace: String,
    pub(super) cluster: String,
    /// The Kubernetes version of new Machines.
    pub(super) version: String,
}

/// The parts of a new object.
#[derive(Debug, Clone)]
pub(super) struct New<'a> {
    pub(super) kind: Kind,
    pub(super) name: &'a str,
    /// The stored object that owns the new object.
    pub(super) owner: Option<&'a Value>,
    /// The labels, annotations and finalizers that the object has in addition to those that every object has.
    pub(super) metadata: Metadata,
    pub(super) spec: Value,
    pub(super) status: Value,
}

/// A test's additions to an object's metadata.
#[derive(Debug, Clone, Default)]
pub(super) struct Metadata {
    pub(super) labels: Map<String, Value>,
    pub(super) annotations: Map<String, Value>,
    pub(super) finalizer: Option<&'static str>,
}

impl Place {
    pub(super) fn kubectl(&self) -> &Kubectl {
        self.control_plane.kubectl()
    }

    /// Creates the object with its status. Returns the object as it was before its status was written.
    #[track_caller]
    pub(super) fn create(&self, new: &New<'_>) -> Value {
        let stored = self.create_without_statuses(&[new]).remove(0);
        self.write_statuses(&[new]);
        stored
    }

    #[track_caller]
    pub(super) fn create_without_statuses(&self, new: &[&New<'_>]) -> Vec<Value> {
        let objects: Vec<_> = new.iter().map(|new| self.object(new)).collect();
        self.kubectl().create_objects(&objects)
    }

    #[track_caller]
    pub(super) fn write_statuses(&self, new: &[&New<'_>]) {
        let with_status = |new: &&New<'_>| {
            json!({
                "apiVersion": self.contract.api_version(new.kind),
                "kind": new.kind.kind,
                "metadata": { "name": new.name, "namespace": self.namespace },
                "status": new.status,
            })
        };
        let objects: Vec<_> = new.iter().map(with_status).collect();
        self.kubectl().apply_statuses(&objects);
    }

    pub(super) fn object(&self, new: &New<'_>) -> Value {
        let mut labels = new.metadata.labels.clone();
        labels.insert(CLUSTER_NAME.to_owned(), json!(self.cluster));
        let finalizers: Vec<_> = new.metadata.finalizer.into_iter().collect();
        let mut metadata = json!({
            "name": new.name, "namespace": self.namespace, "labels": labels,
            "annotations": new.metadata.annotations, "finalizers": finalizers,
        });
        if let Some(owner) = new.owner {
            metadata["ownerReferences"] = json!([owner_reference(owner)]);
        }
        json!({
            "apiVersion": self.contract.api_version(new.kind),
            "kind": new.kind.kind,
            "metadata": metadata,
            "spec": new.spec,
        })
    }

    #[track_caller]
    pub(super) fn get(&self, kind: Kind, name: &str) -> Value {
        let resource = kind.resource();
        self.kubectl()
            .json(["get", &resource, name, "-n", &self.namespace])
    }

    /// The bootstrap data for a Machine, from this Secret.
    #[track_caller]
    pub(super) fn bootstrap_data(&self, secret: &str) -> String {
        let words = ["get", "secret", secret, "-n", &self.namespace];
        let secret = self.kubectl().json(words);
        let data = BASE64_STANDARD.decode(secret["data"]["value"].as_str().unwrap());
        String::from_utf8(data.unwrap()).unwrap()
    }

    #[track_caller]
    pub(super) fn patch(&self, kind: Kind, name: &str, patch: &Value) {
        let target = [&kind.resource(), name, "-n", &self.namespace];
        self.kubectl().patch(&target, patch);
    }

    #[track_caller]
    pub(super) fn patch_status(&self, kind: Kind, name: &str, status: &Value) {
        let resource = kind.resource();
        let target = [
            resource.as_str(),
            name,
            "-n",
            &self.namespace,
            "--subresource=status",
        ];
        self.kubectl().patch(&target, &json!({ "status": status }));
    }

    /// Deletes the object. If the object has finalizers, it remains.
    #[track_caller]
    pub(super) fn delete(&self, kind: Kind, name: &str) {
        let resource = kind.resource();
        let words = ["delete", &resource, name, "-n", &self.namespace];
        self.kubectl().ok(words
            .into_iter()
            .chain(["--wait=false", "--ignore-not-found"]));
    }

    /// Deletes the object, regardless of its finalizers.
    #[track_caller]
    pub(super) fn remove(&self, kind: Kind, name: &str) {
        self.patch(kind, name, &json!({ "metadata": { "finalizers": null } }));
        self.delete(kind, name);
    }
}

/// The owner reference to this object, for the objects that it owns.
pub(super) fn owner_reference(owner: &Value) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"],
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    })
}
