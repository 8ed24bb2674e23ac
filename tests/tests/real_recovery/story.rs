//! Tests of the complete sequence, on two API servers and with both Cluster API contract versions: nodes join, renew,
//! lose their disks and recover. kubectl shows each step.

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Exec, User};
use kubelet_authenticator_test_support::kubelet::Kubelet;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::fleet::assert_first_generation;
use kubelet_authenticator_tests::management::{Contract, Management, Pool};
use kubelet_authenticator_tests::program;
use serde_json::{Value, json};

use crate::bed::{Manager, allow_short_certificates, authorize, grant, kubelet};
use crate::witness::{
    PATIENCE, issued, lose_disk, mark, none_is_refused, record, uid_of, wait_for_certificate,
    wait_until_ready, workload,
};

const PLUGIN: &str = "kubelet-authenticator-null";

/// A short lifetime, so that the test can observe renewals.
const SECONDS: u32 = 60;

#[test]
fn nodes_join_renew_and_recover_from_disk_loss_with_v1beta1() {
    story(Contract::V1Beta1);
}

#[test]
fn nodes_join_renew_and_recover_from_disk_loss_with_v1beta2() {
    story(Contract::V1Beta2);
}

fn story(contract: Contract) {
    let management = Management::start_with(contract);
    grant(&management);
    allow_short_certificates(&management);
    let kubectl = management.kubectl();
    let cluster = management
        .cluster("prod-1")
        .workload(workload().into())
        .create();
    let plane = cluster.control_plane().clone();
    let _manager = Manager::null(&management, &[]);
    let spec = json!({"certificate": {"expirationSeconds": SECONDS}});
    let authentication = authorize(&management, &cluster, &["aws"], spec);
    authentication.wait_until_ready(kubectl);

    let own = cluster.machine("own").create();
    let listed = cluster
        .pool("listed")
        .provider_ids(&["test:///listed-1"])
        .create();
    let pool = cluster
        .pool("pool")
        .provider_ids(&["test:///pool-1"])
        .with_machines()
        .create();
    let of_pool = pool
        .machine("pool-1")
        .provider_id("test:///pool-1")
        .create();
    let mut kubelets = [
        kubelet(&cluster, &own, PLUGIN).start(),
        member(&plane, &listed, "listed-1", "test:///listed-1"),
        kubelet(&cluster, &of_pool, PLUGIN).start(),
    ];
    let nodes = ["own", "listed-1", "pool-1"];
    for kubelet in &kubelets {
        kubelet.wait_until_ready();
    }

    let first = nodes.map(|node| record(kubectl, "default", "prod-1", node));
    for (node, record) in nodes.into_iter().zip(&first) {
        assert_first_generation(record);
        let renewed = wait_for_certificate(&plane, node, 0, |csr| {
            csr["spec"]["username"] == format!("system:node:{node}")
        });
        assert_eq!(uid_of(&renewed), mark(record));
    }

    for (kubelet, node) in kubelets.iter_mut().zip(nodes).take(2) {
        let before = record(kubectl, "default", "prod-1", node);
        let known = issued(&plane, node).len();
        lose_disk(kubelet);
        let (uid, mark) = (before["spec"]["uid"].as_str().unwrap(), mark(&before));
        wait_for_certificate(&plane, node, known, |csr| {
            let presented = uid_of(csr);
            presented.starts_with(uid) && presented != mark
        });
        wait_until_ready(&plane, node);
    }
    none_is_refused(&plane);

    let table = poll(PATIENCE, || {
        let words = ["get", "kubeletauthentications,nodeidentities"];
        let table = kubectl.ok(words);
        // The next check of the node identities reports the first expiry time. Later expiry times are reported within
        // an hour.
        table.contains("Z ").then_some(table)
    });
    let table = table.unwrap_or_else(|| {
        panic!(
            "{}",
            kubectl.ok(["get", "kubeletauthentications,nodeidentities"])
        )
    });
    println!("{table}");
    reads_well(&table, &first);
}

/// Asserts that an operator sees the expected table. `first` contains the node identities before the nodes lost their
/// disks.
fn reads_well(table: &str, first: &[Value; 3]) {
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let row = |name: &str| rows.iter().find(|row| row.first() == Some(&name));
    let of_cluster = "kubeletauthentication.attestation.cluster.x-k8s.io/prod-1";
    let of_cluster = row(of_cluster).expect("the cluster's row");
    assert_eq!(of_cluster[1..3], ["True", "Ready"]);
    assert!(of_cluster.contains(&"3"), "{of_cluster:?}");
    let nodes = [
        ("own", "generic:///prod-1/own"),
        ("listed-1", "test:///listed-1"),
        ("pool-1", "test:///pool-1"),
    ];
    for ((node, provider_id), first) in nodes.into_iter().zip(first) {
        let name = format!("nodeidentity.attestation.cluster.x-k8s.io/prod-1.{node}");
        let columns = row(&name).expect("a row of the node");
        assert_eq!(columns[1..5], ["prod-1", node, provider_id, "null"]);
        // This node still has its disk.
        let is_same = first["spec"]["generation"].as_u64() == columns[5].parse().ok();
        assert_eq!(is_same, node == "pool-1", "{columns:?}");
    }
}

/// A kubelet on an instance that has no Machine.
fn member(plane: &ControlPlane, pool: &Pool, node: &str, provider_id: &str) -> Kubelet {
    let exec = Exec::new(program(PLUGIN))
        .provide_cluster_info()
        .setting(
            "bootstrapKubeconfig",
            pool.bootstrap_kubeconfig().display().to_string(),
        )
        .setting("providerID", provider_id);
    let kubeconfig = plane.kubeconfig(User::Exec(exec));
    plane.kubelet(node).kubeconfig(kubeconfig).start()
}
