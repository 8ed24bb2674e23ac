//! Tests of objects from one tenant that parsers cannot read. These objects must not affect the clusters of the other
//! tenants.

use serde_json::{Value, json};

use crate::admin::Admin;
use crate::bed::{SITE, Tenant, create_namespace};

/// The depth at which JSON parsers stop. The API server accepts 10,000 levels.
const DEPTH: usize = 200;

/// Nested lists.
fn nested() -> Value {
    (0..DEPTH).fold(json!([]), |inner, _| json!([inner]))
}

#[test]
fn a_deeply_nested_cluster_does_not_stop_other_aws_clusters() {
    create_namespace(&SITE.management, "nests-deeply", &json!({}));
    let admin = Admin::of("nests-deeply");
    let served = Tenant::with_access_key("beside-nested", "200000000190");
    served.resolved("True", "Resolved");

    // Cluster API does not check the variables of a Cluster whose class does not exist.
    let variables = json!([{"name": "any", "value": nested()}]);
    admin.apply(json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": {"name": "nested"},
        "spec": {"topology": {
            "classRef": {"name": "missing"}, "version": "v1.36.0", "variables": variables,
        }},
    }));

    // Both the list of a starting controller and the watch of a running controller are tested.
    served.joins("m1", &served.launch("200000000190"));
    let later = Tenant::with_access_key("after-nested", "200000000191");
    later.resolved("True", "Resolved");
    later.joins("m1", &later.launch("200000000191"));
}
