//! Tests with more Clusters in a namespace than the controller serves.

use serde_json::json;

use crate::bed::{Authentication, Manager, authorize, management};
use crate::requests::join;

#[test]
fn a_cluster_beyond_the_limit_is_served_after_a_deletion() {
    let management = management();
    let _manager = Manager::insecure(&management, &["--max-clusters-per-namespace=1"]);
    let kubectl = management.kubectl();
    let oldest = Authentication {
        namespace: "crowded".to_owned(),
        name: "prod-1".to_owned(),
    };
    let cluster = management.cluster("prod-2").namespace("crowded").create();
    // Creation times have a precision of one second. If two Clusters have the same creation time, the name determines
    // the order.
    kubectl.apply_object(&json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
        "metadata": {"name": oldest.name, "namespace": oldest.namespace},
        "spec": {"clusterName": oldest.name, "authorizedAttestors": ["insecure"]},
    }));
    oldest.wait_for(kubectl, "Ready", "False", "ClusterNotFound");

    let later = authorize(&management, &cluster, &["insecure"], json!({}));
    later.wait_for(kubectl, "Ready", "False", "TooManyClusters");
    let elsewhere = management.cluster("prod-1").namespace("roomy").create();
    let other = authorize(&management, &elsewhere, &["insecure"], json!({}));
    other.wait_until_ready(kubectl);

    kubectl.ok(["delete", "kubeletauthentication", "prod-1", "-n", "crowded"]);
    later.wait_until_ready(kubectl);
    let machine = cluster.machine("m1").node_name("node-1").create();
    join(&cluster, &machine);
}
