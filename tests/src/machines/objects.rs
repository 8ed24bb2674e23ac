//! Objects in the test clusters, and the tables that kubectl prints for them.

use crate::management::WorkloadCluster;
use kubelet_attestation::names::Provider as Attestor;
use kubelet_authenticator_test_support::control_plane::{ControlPlane, has_condition};
use kubelet_authenticator_test_support::process::poll;
use node_attestation_runtime::machine_conditions::NODE_ATTESTED;
use serde_json::Value;

use super::{PATIENCE, Site};

const GROUP: &str = "attestation.cluster.x-k8s.io";

/// The rows of kubectl's output, split into columns.
pub fn rows(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// Asserts that an operator sees the expected state: the cluster is Ready, and each of these nodes has a running
/// Machine, a record and a Ready Node.
#[track_caller]
pub fn reads_well(site: &Site, cluster: &WorkloadCluster, nodes: &[String]) {
    let kinds = "kubeletauthentications,machines.cluster.x-k8s.io,nodeidentities";
    let management = site.management.kubectl();
    let objects = management.ok(["get", kinds, "-n", cluster.namespace()]);
    let objects = rows(&objects);
    let name = format!("kubeletauthentication.{GROUP}/{}", cluster.name());
    let of_cluster = objects.iter().find(|row| row[0] == name).unwrap();
    assert_eq!(of_cluster[1..3], ["True", "Ready"], "{objects:#?}");
    let all = cluster.control_plane().kubectl().ok(["get", "nodes"]);
    let all = rows(&all);
    for node in nodes {
        let is_machine = |row: &&Vec<&str>| {
            row[0].starts_with("machine.cluster.x-k8s.io/") && row.contains(&&**node)
        };
        let machine = objects.iter().find(is_machine).unwrap();
        assert!(machine.contains(&"Running"), "{objects:#?}");
        is_attested(site, cluster, machine[0]);
        let name = format!("nodeidentity.{GROUP}/{}.{node}", cluster.name());
        let record = objects.iter().find(|row| row[0] == name).unwrap();
        assert_eq!(record[1..3], [cluster.name(), node], "{objects:#?}");
        let node = all.iter().find(|row| row[0] == *node).unwrap();
        assert_eq!(node[1], "Ready", "{all:#?}");
    }
}

/// Waits for the condition that reports this Machine's node as attested, next to the conditions from Cluster API.
#[track_caller]
fn is_attested(site: &Site, cluster: &WorkloadCluster, machine: &str) {
    let words = ["get", machine, "-n", cluster.namespace()];
    let mut last = Value::Null;
    let found = poll(PATIENCE, || {
        last = site.management.kubectl().json(words);
        let known = has_condition(&last, NODE_ATTESTED) && has_condition(&last, "NodeHealthy");
        known.then_some(())
    });
    assert!(found.is_some(), "{last:#}");
}

/// The cluster's requests for client certificates. Asserts that no request was denied.
#[track_caller]
pub fn client_requests(cluster: &WorkloadCluster, attestor: &Attestor) -> Vec<Value> {
    let mut requests = cluster.control_plane().csrs();
    requests.retain(|csr| csr["spec"]["signerName"] == *attestor.client_signer());
    let denied = |csr: &Value| {
        let conditions = csr["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Denied"))
    };
    assert!(!requests.iter().any(denied), "{requests:#?}");
    requests
}

/// The number of client certificates from this signer that the node requested with its own certificate.
pub fn renewals(plane: &ControlPlane, signer: &str, node_name: &str) -> usize {
    let user = format!("system:node:{node_name}");
    let requests = plane.csrs();
    let is_one = |csr: &&Value| {
        csr["spec"]["signerName"] == *signer
            && csr["spec"]["username"] == *user
            && csr["status"]["certificate"].is_string()
    };
    requests.iter().filter(is_one).count()
}

/// The record for this node name.
pub fn record(site: &Site, cluster: &WorkloadCluster, node_name: &str) -> Value {
    let name = format!("{}.{node_name}", cluster.name());
    let words = ["get", "nodeidentities", &name, "-n", cluster.namespace()];
    site.management.kubectl().json(words)
}

pub fn names(machines: &[Value]) -> Vec<&str> {
    let names = machines.iter();
    names
        .map(|machine| machine["metadata"]["name"].as_str().unwrap())
        .collect()
}
