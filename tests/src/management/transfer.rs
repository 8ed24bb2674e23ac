//! `clusterctl move`, as far as it matters to who reads the objects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::cluster::make_namespace;
use super::contract::CLUSTER;
use super::{Management, WorkloadCluster};

/// The label of the definitions that `clusterctl` knows, and the stem of those by which objects
/// come along that no Cluster owns.
const CLUSTERCTL: &str = "clusterctl.cluster.x-k8s.io";
const MOVE: &str = "clusterctl.cluster.x-k8s.io/move";
const MOVE_HIERARCHY: &str = "clusterctl.cluster.x-k8s.io/move-hierarchy";

/// Fields of the API server, not copied.
const OF_THE_SERVER: [&str; 7] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
];

impl WorkloadCluster {
    /// Moves its objects to another management cluster as `clusterctl move` does: the Cluster
    /// paused meanwhile, owners first, without status, with new UIDs; then they are gone here.
    ///
    /// Moved are the Cluster, its dependents, its Secrets, and objects with a label for it, their own or
    /// their definition's.
    #[track_caller]
    pub fn move_to(self, target: &Management) -> Self {
        self.set_paused(true);
        let objects = self.exported();
        let mut moved = self.place.clone();
        moved.control_plane = target.control_plane.clone();
        make_namespace(&moved);

        let mut uids = BTreeMap::new();
        let mut cluster = Value::Null;
        for (_, object) in &objects {
            let stored = moved.kubectl().create_object(&copy_of(object, &uids));
            uids.insert(uid(object), stored["metadata"]["uid"].clone());
            if object["kind"] == CLUSTER.kind {
                cluster = stored;
            }
        }
        for (resource, object) in objects.iter().rev() {
            let name = object["metadata"]["name"].as_str().unwrap();
            let target = [resource.as_str(), name, "-n", &self.place.namespace];
            let patch = json!({ "metadata": { "finalizers": null } });
            self.place.kubectl().patch(&target, &patch);
            let words = ["delete", "--wait=false", "--ignore-not-found"];
            self.place.kubectl().ok(words.iter().chain(&target));
        }
        let moved = Self {
            place: moved,
            object: cluster,
            statuses: objects.into_iter().map(|(_, object)| object).collect(),
            ..self
        };
        moved.set_paused(false);
        moved
    }

    /// Does after [`WorkloadCluster::move_to`] what Cluster API's controllers do: the status of
    /// their objects is as it was. Ours are left to us.
    #[track_caller]
    pub fn restore_statuses(&self) {
        let theirs = |object: &&Value| {
            let version = object["apiVersion"].as_str().unwrap();
            version.contains("cluster.x-k8s.io/") && !version.starts_with("attestation.")
        };
        for object in self.statuses.iter().filter(theirs) {
            let status = &object["status"];
            if !status.is_null() {
                let group = object["apiVersion"].as_str().unwrap();
                let (group, version) = group.split_once('/').unwrap();
                let kind = object["kind"].as_str().unwrap();
                let resource = format!("{kind}.{version}.{group}");
                let name = object["metadata"]["name"].as_str().unwrap();
                let target = [
                    &resource,
                    name,
                    "-n",
                    self.namespace(),
                    "--subresource=status",
                ];
                let patch = json!({ "status": status });
                self.place.kubectl().patch(&target, &patch);
            }
        }
    }

    /// The moved objects, owners before their dependents; with the resource of each.
    #[track_caller]
    fn exported(&self) -> Vec<(String, Value)> {
        let mut waiting = Vec::new();
        let mut sorted = Vec::new();
        let mut forced = Vec::new();
        for (resource, all) in self.movable() {
            let words = ["get", &resource, "-n", self.namespace()];
            let mut list = self.place.kubectl().json(words);
            for object in list["items"].as_array_mut().unwrap() {
                let object = object.take();
                let is_forced =
                    all || has_label(&object, MOVE) || has_label(&object, MOVE_HIERARCHY);
                let of_another = object["spec"]["clusterName"]
                    .as_str()
                    .is_some_and(|cluster| cluster != self.name());
                let target = if object["metadata"]["uid"] == self.object["metadata"]["uid"] {
                    &mut sorted
                } else if is_forced && !of_another {
                    &mut forced
                } else {
                    &mut waiting
                };
                target.push((resource.clone(), object));
            }
        }
        // Every round takes those whose owner was taken before, until no more are.
        let mut known = BTreeSet::new();
        loop {
            known.extend(sorted.iter().map(|(_, object)| uid(object)));
            let is_next = |(_, object): &mut (String, Value)| {
                owners(object)
                    .iter()
                    .any(|owner| owner["uid"].as_str().is_some_and(|uid| known.contains(uid)))
            };
            let next: Vec<(String, Value)> = waiting.extract_if(.., is_next).collect();
            if next.is_empty() {
                sorted.extend(forced);
                return sorted;
            }
            sorted.extend(next);
        }
    }

    /// The resources that `clusterctl` looks at, and whether all of their objects are moved.
    #[track_caller]
    fn movable(&self) -> Vec<(String, bool)> {
        let words = ["get", "customresourcedefinitions", "-l", CLUSTERCTL];
        let definitions = self.place.kubectl().json(words);
        let definitions = definitions["items"].as_array().unwrap();
        definitions
            .iter()
            .filter(|definition| definition["spec"]["scope"] == "Namespaced")
            .map(|definition| {
                let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
                let forced = has_label(definition, MOVE) || has_label(definition, MOVE_HIERARCHY);
                (name, forced)
            })
            .chain([("secrets".to_owned(), false)])
            .collect()
    }
}

/// The object as it is created elsewhere, its owners being known by these UIDs there.
fn copy_of(object: &Value, uids: &BTreeMap<String, Value>) -> Value {
    let mut copy = object.clone();
    copy.as_object_mut().unwrap().remove("status");
    let metadata = copy["metadata"].as_object_mut().unwrap();
    for field in OF_THE_SERVER {
        metadata.remove(field);
    }
    if let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") {
        owners.retain_mut(|owner| {
            let known = owner["uid"].as_str().and_then(|uid| uids.get(uid));
            known.map(|uid| owner["uid"] = uid.clone()).is_some()
        });
    }
    copy
}

fn owners(object: &Value) -> &[Value] {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.map_or(&[], Vec::as_slice)
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

fn has_label(object: &Value, label: &str) -> bool {
    !object["metadata"]["labels"][label].is_null()
}
