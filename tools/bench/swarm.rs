//! A namespace that contains more Clusters than the controller serves in one namespace. The benchmark constantly
//! creates and deletes Clusters in it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kubelet_authenticator_test_support::process::poll;
use serde_json::json;

use crate::cluster_api::{CLUSTER_API, object};
use crate::crowd::Background;
use crate::simulation::{KUBELET_AUTHENTICATION, Simulation};

/// The number of Clusters, and the number of KubeletAuthentications: twice the limit on served clusters in a namespace
/// (`--max-clusters-per-namespace`).
const CLUSTERS: usize = 2000;

/// The number of Clusters that must have the condition about the limit. Some Clusters are served at first, and get the
/// condition later, when an older Cluster replaces them.
const BEYOND: usize = 900;

const NAMESPACE: &str = "swarm";

/// The pause between two deletions.
const PAUSE: Duration = Duration::from_millis(100);

/// The deadline for the conditions of all Clusters.
const DEADLINE: Duration = Duration::from_secs(90);

/// Creates the Clusters, waits until the controller has reported the limit, and then replaces the oldest Clusters until
/// the returned thread is stopped. Its result is the number of replaced Clusters.
pub fn turn(simulation: &Simulation) -> Background<usize> {
    let management = simulation.management.clone();
    let create = move |number: usize| {
        let name = name(number);
        let key = (NAMESPACE, name.as_str(), name.as_str());
        management.put(object((CLUSTER_API, "Cluster"), key, json!({"spec": {}})));
        let spec = json!({
            "clusterName": name, "authorizedAttestors": ["aws"], "autoApproveBindings": "Report",
        });
        let fields = json!({"spec": spec});
        management.put(object(KUBELET_AUTHENTICATION, key, fields));
    };
    (0..CLUSTERS).for_each(&create);
    let is_reported = || (beyond(simulation) >= BEYOND).then_some(());
    assert!(
        poll(DEADLINE, is_reported).is_some(),
        "{} of {CLUSTERS} Clusters of one namespace are beyond the limit",
        beyond(simulation)
    );
    let management = simulation.management.clone();
    Background::start(move |is_over| {
        let mut replaced = 0;
        while !is_over.load(Ordering::Relaxed) {
            let oldest = name(replaced);
            management.remove("kubeletauthentications", NAMESPACE, &oldest);
            management.remove("clusters", NAMESPACE, &oldest);
            create(CLUSTERS + replaced);
            replaced += 1;
            std::thread::sleep(PAUSE);
        }
        replaced
    })
}

/// The number of Clusters that have the condition about the limit.
fn beyond(simulation: &Simulation) -> usize {
    let all = simulation.management.all("kubeletauthentications");
    let is_beyond = |object: &&serde_json::Value| {
        let conditions = object["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition["reason"] == "TooManyClusters")
    };
    all.iter().filter(is_beyond).count()
}

fn name(number: usize) -> String {
    format!("swarm-{number:05}")
}
