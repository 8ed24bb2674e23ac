//! Nodes that join.

use serde_json::json;

use crate::bed::{Manager, authorize, kubelet, management};

#[test]
fn a_node_that_proves_nothing_joins_by_its_machines_token() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let machine = cluster.machine("m1").node_name("node-1").create();
    let _manager = Manager::insecure(&management, &[]);
    let authentication = authorize(&management, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(management.kubectl());

    let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-insecure").start();
    kubelet.wait_until_ready();
}
