//! Tests of a management cluster that is restored from a backup that is older than the current certificates.

use std::process::Command;
use std::time::Duration;

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::Management;
use kubelet_authenticator_tests::{page, program};
use serde_json::{Value, json};

use crate::bed::{Manager, allow_short_certificates, authorize, kubelet, management};
use crate::witness::{
    PATIENCE, as_node, issued, label, lose_disk, mark, record, requests, uid_of,
    wait_for_certificate, wait_until_not_ready, wait_until_ready, workload,
};

/// A lifetime for which the renewal is after 45 to 63 seconds.
const SECONDS: u32 = 90;

const PLUGIN: &str = "kubelet-authenticator-null";

/// Runs an `identities` command for the Cluster. Returns its output.
#[track_caller]
pub fn identities(management: &Management, words: &[&str]) -> Vec<u8> {
    let output = Command::new(program("node-attestation-controller"))
        .arg("identities")
        .args(words)
        .args(["--namespace", "default", "--kubeconfig"])
        .arg(management.admin_kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Resets the records of nodes that have later generations, and returns these nodes.
fn restored(management: &Management) -> Vec<Value> {
    let printed = identities(management, &["restored", "prod-1", "--output", "json"]);
    let reset: Value = serde_json::from_slice(&printed).unwrap();
    reset.as_array().unwrap().clone()
}

fn now(management: &Management) -> Value {
    record(management.kubectl(), "default", "prod-1", "m1")
}

#[test]
fn after_a_restore_a_node_with_a_later_generation_is_reset_and_rejoins() {
    let management = management();
    allow_short_certificates(&management);
    let kubectl = management.kubectl();
    let cluster = management
        .cluster("prod-1")
        .workload(workload().into())
        .create();
    let plane = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let manager = Manager::null(&management, &[]);
    let spec = json!({"certificate": {"expirationSeconds": SECONDS}});
    authorize(&management, &cluster, &["aws"], spec).wait_until_ready(kubectl);
    let mut kubelet = kubelet(&cluster, &machine, PLUGIN).start();
    kubelet.wait_until_ready();
    let backup = now(&management);
    identities(&management, &["reset", "--yes", "prod-1", "m1"]);
    kubelet.kill();
    std::fs::remove_dir_all(kubelet.var_lib().join("kubelet-authenticator")).unwrap();
    kubelet.start();
    let second = wait_for_certificate(&plane, "m1", 0, |csr| uid_of(csr) != mark(&backup));
    wait_until_ready(&plane, "m1");

    drop(manager);
    kubectl.ok(["delete", "nodeidentity", "prod-1.m1"]);
    let mut former = backup.clone();
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
    ] {
        former["metadata"][field] = Value::Null;
    }
    kubectl.apply_object(&former);
    assert_eq!(mark(&now(&management)), mark(&backup));
    let known = issued(&plane, "m1").len();
    let _manager = Manager::null(&management, &[]);
    let found = poll(4 * Duration::from_secs(SECONDS.into()), || {
        let reset = restored(&management);
        (!reset.is_empty()).then_some(reset)
    });
    let reset = found.expect("no node presented a later generation");
    assert_eq!(reset[0]["spec"]["nodeName"], "m1");

    // The node itself is not changed.
    let third = wait_for_certificate(&plane, "m1", known, |_| true);
    assert!(
        third["spec"]["username"]
            .as_str()
            .unwrap()
            .starts_with("system:bootstrap:"),
        "{third:#}"
    );
    assert_ne!(third["metadata"]["name"], second["metadata"]["name"]);
    assert_ne!(uid_of(&third), uid_of(&second));
    assert_eq!(uid_of(&third), mark(&now(&management)));
    kubelet.wait_for_lease_renewal();
    wait_until_ready(&plane, "m1");
}

#[test]
fn nodes_below_the_generation_floor_are_refused_and_rejoin_above_it() {
    let management = management();
    allow_short_certificates(&management);
    let builder = management.cluster("prod-1").workload(workload().into());
    let cluster = builder.create();
    let plane = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let _manager = Manager::null(&management, &[]);
    // The lifetime is so long that no renewal is due before the node is NotReady, even on a busy machine.
    let seconds = 2 * SECONDS;
    let spec = json!({"certificate": {"expirationSeconds": seconds}});
    authorize(&management, &cluster, &["aws"], spec).wait_until_ready(management.kubectl());
    let kubelet = kubelet(&cluster, &machine, PLUGIN).start();
    kubelet.wait_until_ready();
    let first = mark(&now(&management));
    let is_first = |csr: &Value| uid_of(csr) == first;
    assert!(issued(&plane, "m1").iter().all(is_first));

    let command = page::command(
        "manage-identities.md",
        "node-attestation-controller identities floor ",
    );
    let words: Vec<&str> = command.split(' ').skip(2).take(3).collect();
    assert_eq!(words, ["floor", "--yes", "prod-1"]);
    identities(&management, &words);

    wait_until_not_ready(&plane, "m1");
    let back = wait_for_certificate(&plane, "m1", 1, |csr| !is_first(csr));
    let user = back["spec"]["username"].as_str().unwrap();
    assert!(user.starts_with("system:bootstrap:"), "{back:#}");
    let record = now(&management);
    assert_eq!(uid_of(&back), mark(&record));
    let floor = "attestation.cluster.x-k8s.io/lowest-valid-generation";
    let words = ["get", "kubeletauthentication", "prod-1"];
    let object = management.kubectl().json(words);
    let floor = object["metadata"]["annotations"][floor].as_str().unwrap();
    assert!(
        record["spec"]["generation"].as_u64() >= floor.parse().ok(),
        "{record:#}"
    );
    wait_until_ready(&plane, "m1");
}

#[test]
fn a_revoked_certificate_stays_refused_after_an_etcd_restore() {
    let management = management();
    let builder = management.cluster("prod-1").workload(workload().into());
    let cluster = builder.create();
    let plane = cluster.control_plane().clone();
    let [revoked, later] = ["m1", "m2"].map(|name| cluster.machine(name).create());
    let _manager = Manager::null(&management, &[]);
    authorize(&management, &cluster, &["aws"], json!({})).wait_until_ready(management.kubectl());
    let mut kubelet = kubelet(&cluster, &revoked, PLUGIN).start();
    kubelet.wait_until_ready();
    let node = as_node(&plane, &kubelet);
    assert!(label(&node, "m1", 0).status.success());
    let backup = management.control_plane().backup();
    let before = now(&management);
    identities(&management, &["revoke", "--yes", "prod-1", "m1"]);
    let mut tries = 0;
    let mut refused = || {
        tries += 1;
        let tried = label(&node, "m1", tries);
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        said.contains("is revoked").then_some(())
    };
    assert!(poll(PATIENCE, &mut refused).is_some());
    // The `resourceVersion` of each watch advances far beyond the `resourceVersion` in the backup.
    let objects: Vec<_> = (0..500)
        .map(|number| {
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("filler-{number}"), "namespace": "default"},
            })
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    management.kubectl().apply_object(&list);

    management.control_plane().restore(&backup);

    // The same controller answers requests that are created afterwards.
    assert_eq!(mark(&now(&management)), mark(&before));
    let other = self::kubelet(&cluster, &later, PLUGIN).start();
    other.wait_until_ready();
    assert_eq!(refused(), Some(()));
    // The machine does not get a new certificate with its token either.
    let known = requests(&plane, "m1").len();
    lose_disk(&mut kubelet);
    let denied = poll(PATIENCE, || {
        let filed = requests(&plane, "m1").into_iter().skip(known);
        let mut conditions =
            filed.filter_map(|csr| csr["status"]["conditions"][0].as_object().cloned());
        conditions.next()
    });
    let denied = denied.expect("the request was not answered");
    assert_eq!(denied["type"], "Denied", "{denied:#?}");
    assert_eq!(denied["reason"], "IdentityRevoked", "{denied:#?}");
    assert_eq!(refused(), Some(()));

    // The machine gets a certificate after an operator permits it.
    identities(
        &management,
        &["reset", "--revoked", "--yes", "prod-1", "m1"],
    );
    // The recorded failure is removed, because otherwise the plugin would wait for minutes after the denial.
    lose_disk(&mut kubelet);
    wait_for_certificate(&plane, "m1", 1, |_| true);
    wait_until_ready(&plane, "m1");
    assert_eq!(refused(), Some(()));
}
