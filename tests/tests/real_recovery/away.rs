//! Tests of API servers that are unavailable while nodes join.

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::management::Management;
use rustix::process::Signal;
use serde_json::json;

use crate::bed::{Manager, authorize, kubelet, management};
use crate::witness::{PATIENCE, issued, lines, none_is_refused, requests, wait_for_certificate};

#[test]
fn requests_are_answered_after_an_outage_of_the_management_cluster() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let plane = cluster.control_plane().clone();
    let machines = ["m1", "m2"].map(|name| cluster.machine(name).create());
    let manager = Manager::insecure(&management, &[]);
    authorize(&management, &cluster, &["insecure"], json!({}))
        .wait_until_ready(management.kubectl());

    let apiserver = management.control_plane().apiserver();
    apiserver.signal(Signal::STOP);
    let kubelets = machines
        .each_ref()
        .map(|machine| kubelet(&cluster, machine, "kubelet-authenticator-insecure").start());
    for machine in &machines {
        let node = machine.node_name();
        let asked = poll(PATIENCE, || {
            (!requests(&plane, node).is_empty()).then_some(())
        });
        assert!(asked.is_some(), "{node}");
    }
    // The test waits until the outage has an effect: a request waits for the node identities, or the controller cannot
    // renew its Lease.
    let noticed = poll(PATIENCE, || {
        let waits = lines(&manager.process, "decided");
        let waits = waits.iter().any(|line| line["outcome"] == "deferred");
        let leads_no_more = !lines(&manager.process, "no longer leading").is_empty();
        (waits || leads_no_more).then_some(())
    });
    assert!(noticed.is_some(), "{}", manager.process.log());
    for machine in &machines {
        assert!(issued(&plane, machine.node_name()).is_empty());
    }
    none_is_refused(&plane);
    apiserver.signal(Signal::CONT);

    for (machine, kubelet) in machines.iter().zip(&kubelets) {
        wait_for_certificate(&plane, machine.node_name(), 0, |_| true);
        kubelet.wait_until_ready();
    }
    none_is_refused(&plane);
    assert_eq!(records(&management), 2);
}

#[test]
fn requests_are_answered_after_the_workload_api_server_hangs() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let plane = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let manager = Manager::insecure(&management, &[]);
    let authentication = authorize(&management, &cluster, &["insecure"], json!({}));
    authentication.wait_until_ready(management.kubectl());

    manager.process.signal(Signal::STOP);
    let kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-insecure").start();
    let asked = poll(PATIENCE, || {
        (!requests(&plane, "m1").is_empty()).then_some(())
    });
    assert!(asked.is_some());
    plane.apiserver().signal(Signal::STOP);
    manager.process.signal(Signal::CONT);
    let waits = poll(PATIENCE, || {
        let decided = lines(&manager.process, "decided");
        decided
            .into_iter()
            .find(|line| line["outcome"] == "deferred")
    });
    assert!(waits.is_some(), "{}", manager.process.log());
    plane.apiserver().signal(Signal::CONT);

    wait_for_certificate(&plane, "m1", 0, |_| true);
    kubelet.wait_until_ready();
    none_is_refused(&plane);
    authentication.wait_until_ready(management.kubectl());
}

fn records(management: &Management) -> usize {
    let list = management.kubectl().json(["get", "nodeidentities", "-A"]);
    list["items"].as_array().unwrap().len()
}
