//! Two controllers that both believe to be the only one.

use std::collections::BTreeMap;
use std::thread;

use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_tests::controller::{Application, Machine};
use kubelet_authenticator_tests::management::Machine as ClusterMachine;
use serde_json::{Value, json};

use crate::bed::{Manager, authorize, management};
use crate::witness::{PATIENCE, lines, mark, none_is_refused, uid_of};

const MACHINES: [&str; 20] = [
    "m00", "m01", "m02", "m03", "m04", "m05", "m06", "m07", "m08", "m09", "m10", "m11", "m12",
    "m13", "m14", "m15", "m16", "m17", "m18", "m19",
];

#[test]
fn two_replicas_without_a_leader_claim_each_name_once_also_when_one_is_killed() {
    let management = management();
    let cluster = management.cluster("prod-1").create();
    let plane = cluster.control_plane().clone();
    let machines = MACHINES.map(|name| {
        let id = format!("test:///{name}");
        cluster.machine(name).provider_id(&id).create()
    });
    let mut one = Manager::null(&management, &["--leader-elect=false"]);
    let other = Manager::null(&management, &["--leader-elect=false"]);
    authorize(&management, &cluster, &["aws"], json!({})).wait_until_ready(management.kubectl());
    let serve = |manager: &Manager| {
        let serves = || (!lines(&manager.process, "watching").is_empty()).then_some(());
        assert!(
            poll(PATIENCE, serves).is_some(),
            "{}",
            manager.process.log()
        );
    };
    serve(&one);
    serve(&other);

    thread::scope(|scope| {
        for (name, machine) in MACHINES.iter().zip(&machines) {
            let plane = &plane;
            scope.spawn(move || file(plane, name, machine));
        }
        let first = poll(PATIENCE, || {
            plane.csrs().iter().any(is_issued).then_some(())
        });
        assert!(first.is_some());
        one.process.kill();
    });

    let all = poll(PATIENCE, || {
        let csrs = plane.csrs();
        (csrs.len() == MACHINES.len() && csrs.iter().all(is_issued)).then_some(csrs)
    });
    let all = all.unwrap_or_else(|| panic!("{:#?}", plane.csrs()));
    none_is_refused(&plane);
    let records = management.kubectl().json(["get", "nodeidentities", "-A"]);
    let records = records["items"].as_array().unwrap();
    let by_name: BTreeMap<&str, &Value> = records
        .iter()
        .map(|record| (record["spec"]["nodeName"].as_str().unwrap(), record))
        .collect();
    assert_eq!(by_name.keys().copied().collect::<Vec<_>>(), MACHINES);
    assert_eq!(records.len(), MACHINES.len());
    for csr in &all {
        let opened =
            |record: &&Value| record["spec"]["opened"]["requestUID"] == csr["metadata"]["uid"];
        let record = records
            .iter()
            .find(opened)
            .expect("a record of the request");
        assert_eq!(record["spec"]["generation"], 1);
        assert_eq!(uid_of(csr), mark(record));
        let conditions = csr["status"]["conditions"].as_array().unwrap();
        assert_eq!(conditions.len(), 1, "{conditions:#?}");
        assert_eq!(conditions[0]["type"], "Approved");
    }
    let worked = |manager: &Manager| {
        let decided = lines(&manager.process, "decided");
        decided
            .iter()
            .filter(|line| line["outcome"] == "issued")
            .count()
    };
    assert!(worked(&other) > 0, "the one that lived had its part");
}

fn file(
    plane: &kubelet_authenticator_test_support::control_plane::ControlPlane,
    name: &'static str,
    machine: &ClusterMachine,
) {
    let applicant = Machine::new(name, "");
    let application = Application::null(applicant, plane.ca().certificate_pem());
    let kubectl = plane.kubectl_with(machine.bootstrap_kubeconfig());
    kubectl.apply_object(&application.to_json());
}

fn is_issued(csr: &Value) -> bool {
    csr["status"]["certificate"].is_string()
}
