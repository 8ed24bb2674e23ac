//! A cluster that is moved to another management cluster, as by `clusterctl move`.

use kubelet_authenticator_tests::management::Management;
use serde_json::json;

use crate::bed::{Manager, allow_short_certificates, authorize, grant, kubelet, management};
use crate::witness::{
    issued, lines, lose_disk, mark, none_is_refused, record, uid_of, wait_for_certificate,
    wait_until_ready, workload,
};

/// Short, so that there is a renewal to be seen.
const SECONDS: u32 = 60;

#[test]
fn a_moved_cluster_is_looked_after_where_it_is_now() {
    let (here, there) = (management(), Management::start());
    grant(&there);
    for management in [&here, &there] {
        allow_short_certificates(management);
    }
    let cluster = here.cluster("prod-1").workload(workload().into()).create();
    let plane = cluster.control_plane().clone();
    let machine = cluster.machine("m1").create();
    let old = Manager::null(&here, &[]);
    let new = Manager::null(&there, &[]);
    let spec = json!({"certificate": {"expirationSeconds": SECONDS}});
    let authentication = authorize(&here, &cluster, &["aws"], spec);
    authentication.wait_until_ready(here.kubectl());
    let mut kubelet = kubelet(&cluster, &machine, "kubelet-authenticator-null").start();
    kubelet.wait_until_ready();
    let before = record(here.kubectl(), "default", "prod-1", "m1");
    let machine_before = machine.get();

    let cluster = cluster.move_to(&there);
    // The old one may have been answering; from here on it has nothing to answer by.
    let decided = lines(&old.process, "decided").len();
    let known = issued(&plane, "m1").len();
    let machine = machine.moved_with(&cluster);
    cluster.restore_statuses();
    assert_ne!(
        machine.get()["metadata"]["uid"],
        machine_before["metadata"]["uid"]
    );
    authentication.wait_until_ready(there.kubectl());

    let renewed = wait_for_certificate(&plane, "m1", known, |csr| {
        csr["spec"]["username"] == "system:node:m1"
    });
    assert_eq!(uid_of(&renewed), mark(&before));

    lose_disk(&mut kubelet);
    let spec = &before["spec"];
    let next = format!("{}.2", spec["uid"].as_str().unwrap());
    let again = wait_for_certificate(&plane, "m1", known, |csr| uid_of(csr) == next);
    assert!(
        again["spec"]["username"]
            .as_str()
            .unwrap()
            .starts_with("system:bootstrap:")
    );
    wait_until_ready(&plane, "m1");
    let after = record(there.kubectl(), "default", "prod-1", "m1");
    assert_eq!(mark(&after), next);

    assert_eq!(lines(&old.process, "decided").len(), decided);
    let ours = [
        "get",
        "kubeletauthentications,nodeidentities",
        "-A",
        "-o",
        "name",
    ];
    assert_eq!(here.kubectl().ok(ours), "");
    let decided = lines(&new.process, "decided");
    assert!(
        decided.iter().all(|line| line["outcome"] != "denied"),
        "{decided:#?}"
    );
    none_is_refused(&plane);
}
