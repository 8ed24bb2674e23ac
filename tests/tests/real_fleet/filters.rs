//! Tests of two controllers with different watch filters in one management cluster.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use kubelet_authenticator_test_support::control_plane::{ControlPlane, Kubectl};
use kubelet_authenticator_test_support::process::{Scratch, poll};
use kubelet_authenticator_tests::management::{Contract, Management, WorkloadCluster};
use serde_json::{Value, json};

use crate::bed::{Authentication, Manager, authorize, grant};
use crate::requests::join;

const FILTER: &str = "cluster.x-k8s.io/watch-filter";

const ATTESTORS: &str = "attestation.cluster.x-k8s.io/authorized-attestors";

/// The number of status changes for which the tests wait.
const ROUNDS: usize = 4;

const DEADLINE: Duration = Duration::from_mins(3);

/// Both controllers, and the API server's log of their writes.
struct Bed {
    management: Management,
    log: PathBuf,
    _controllers: [Manager; 2],
    _scratch: Scratch,
}

/// The group of a controller's user, which identifies its writes.
const BLUE: &str = "blue";
const GREEN: &str = "green";

impl Bed {
    fn start() -> Self {
        let scratch = Scratch::new("filters");
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]},
                {"level": "None"},
            ],
        });
        let policy = scratch.write("policy.yaml", policy.to_string());
        let log = scratch.join("audit.log");
        let plane = ControlPlane::builder()
            .apiserver_arg(format!("--audit-policy-file={}", policy.display()))
            .apiserver_arg(format!("--audit-log-path={}", log.display()))
            .apiserver_arg("--audit-log-mode=blocking");
        let management = Management::on(plane.start(), Contract::V1Beta2);
        grant(&management);
        let controllers = [BLUE, GREEN].map(|filter| {
            let arguments = [&*format!("--watch-filter={filter}")];
            Manager::insecure_in_group(&management, filter, &arguments)
        });
        Self {
            management,
            log,
            _controllers: controllers,
            _scratch: scratch,
        }
    }

    /// For each namespace and resource, the number of writes by a controller, excluding the writes to its Lease.
    fn writes(&self, group: &str) -> BTreeMap<(String, String), usize> {
        let mut writes = BTreeMap::new();
        for event in self.events(group) {
            let object = &event["objectRef"];
            let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let resource = match &*text("subresource") {
                "" => text("resource"),
                part => format!("{}/{part}", text("resource")),
            };
            if resource != "leases" && object["apiGroup"] != "authorization.k8s.io" {
                *writes.entry((text("namespace"), resource)).or_default() += 1;
            }
        }
        writes
    }

    fn events(&self, group: &str) -> Vec<Value> {
        let log = fs::read_to_string(&self.log).unwrap();
        let events = log
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let is_of = |event: &Value| {
            let groups = event["user"]["groups"].as_array();
            groups.is_some_and(|groups| groups.contains(&json!(group)))
        };
        events.filter(is_of).collect()
    }

    /// The Leases that a controller writes.
    fn leases(&self, group: &str) -> Vec<String> {
        let events = self.events(group).into_iter();
        let leases = events.filter(|event| event["objectRef"]["resource"] == "leases");
        let names =
            leases.filter_map(|event| event["objectRef"]["name"].as_str().map(str::to_owned));
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The namespaces to which a controller writes.
    fn namespaces(&self, group: &str) -> Vec<String> {
        let writes = self.writes(group).into_keys();
        let mut namespaces: Vec<String> = writes.map(|(namespace, _)| namespace).collect();
        namespaces.dedup();
        namespaces
    }

    fn cluster(&self, namespace: &str, filter: &str) -> WorkloadCluster {
        let cluster = self.management.cluster("prod-1").namespace(namespace);
        cluster.label(FILTER, filter).create()
    }

    fn label(&self, cluster: &WorkloadCluster, filter: &str) {
        let target = [
            "clusters.cluster.x-k8s.io",
            "prod-1",
            "-n",
            cluster.namespace(),
        ];
        let patch = json!({"metadata": {"labels": {FILTER: filter}}});
        self.management.kubectl().patch(&target, &patch);
    }
}

/// Waits until a controller has written the status of its own Cluster several times. The controller writes this status
/// at most once in 2 seconds. A controller that contradicts the other controller does so within this time.
#[track_caller]
fn pass_rounds(kubectl: &Kubectl, authentication: &Authentication) {
    for _ in 0..ROUNDS {
        authentication.touch(kubectl, "Ready");
    }
}

#[test]
fn controllers_with_different_filters_write_only_for_their_own_clusters() {
    let bed = Bed::start();
    let kubectl = bed.management.kubectl();
    let blue = bed.cluster("of-blue", BLUE);
    let green = bed.cluster("of-green", GREEN);
    let of_blue = authorize(&bed.management, &blue, &["insecure"], json!({}));
    // The label of the Cluster determines the controller, and not the label of the KubeletAuthentication.
    kubectl.apply_object(&json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
        "metadata": {"name": "prod-1", "namespace": "of-green", "labels": {FILTER: BLUE}},
        "spec": {"clusterName": "prod-1", "authorizedAttestors": ["insecure"]},
    }));
    let of_green = Authentication {
        namespace: "of-green".to_owned(),
        name: "prod-1".to_owned(),
    };
    for (cluster, authentication) in [(&blue, &of_blue), (&green, &of_green)] {
        authentication.wait_until_ready(kubectl);
        let machine = cluster.machine("m1").node_name("node-1").create();
        join(cluster, &machine);
    }

    for (filter, namespace) in [(BLUE, "of-blue"), (GREEN, "of-green")] {
        for resource in [
            "kubeletauthentications/status",
            "nodeidentities",
            "machines/status",
            "events",
        ] {
            let key = (namespace.to_owned(), resource.to_owned());
            let written = || bed.writes(filter).contains_key(&key).then_some(());
            assert!(
                poll(DEADLINE, written).is_some(),
                "{resource}: {:#?}",
                bed.writes(filter)
            );
        }
    }

    pass_rounds(kubectl, &of_blue);
    pass_rounds(kubectl, &of_green);

    assert_eq!(bed.namespaces(BLUE), ["of-blue"], "{:#?}", bed.writes(BLUE));
    assert_eq!(
        bed.namespaces(GREEN),
        ["of-green"],
        "{:#?}",
        bed.writes(GREEN)
    );
    for (filter, namespace) in [(BLUE, "of-blue"), (GREEN, "of-green")] {
        let writes = bed.writes(filter);
        // Two controllers that contradict each other write every 2 seconds.
        let statuses = writes[&(
            namespace.to_owned(),
            "kubeletauthentications/status".to_owned(),
        )];
        assert!(statuses < 10, "{writes:#?}");
    }
    let leases = [bed.leases(BLUE), bed.leases(GREEN)];
    assert_eq!([leases[0].len(), leases[1].len()], [1, 1], "{leases:?}");
    assert_ne!(leases[0], leases[1]);

    bed.label(&blue, GREEN);
    let machine = blue.machine("m2").node_name("node-2").create();
    join(&blue, &machine);
    let taken_over = || {
        let writes = bed.writes(GREEN);
        let key = ("of-blue".to_owned(), "nodeidentities".to_owned());
        writes.get(&key).copied()
    };
    assert!(
        poll(DEADLINE, taken_over).is_some(),
        "{:#?}",
        bed.writes(GREEN)
    );
    let before = bed.namespaces(BLUE);
    let writes = bed.writes(BLUE);
    let later = missing(kubectl, "later", json!({FILTER: BLUE}));
    later.wait_for(kubectl, "Ready", "False", "ClusterNotFound");
    pass_rounds(kubectl, &later);
    pass_rounds(kubectl, &of_blue);
    let mut of_later = bed.writes(BLUE);
    of_later.retain(|(namespace, _), _| before.contains(namespace));
    assert_eq!(of_later, writes, "it serves no Cluster there any more");
}

/// Creates a KubeletAuthentication without a Cluster, in a separate namespace.
#[track_caller]
fn missing(kubectl: &Kubectl, namespace: &str, labels: Value) -> Authentication {
    kubectl.apply_object(&json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
    }));
    kubectl.apply_object(&json!({
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "KubeletAuthentication",
        "metadata": {"name": "prod-1", "namespace": namespace, "labels": labels},
        "spec": {"clusterName": "prod-1", "authorizedAttestors": ["insecure"]},
    }));
    Authentication {
        namespace: namespace.to_owned(),
        name: "prod-1".to_owned(),
    }
}

#[test]
fn a_missing_cluster_is_reported_by_the_label_on_its_authentication() {
    let bed = Bed::start();
    let kubectl = bed.management.kubectl();
    missing(kubectl, "unlabeled", json!({}));
    let labeled = missing(kubectl, "labeled", json!({FILTER: BLUE}));
    labeled.wait_for(kubectl, "Ready", "False", "ClusterNotFound");

    // A KubeletAuthentication that is created because of the annotation has the same label as its Cluster.
    let made = bed.cluster("made", GREEN);
    let target = ["clusters.cluster.x-k8s.io", "prod-1", "-n", "made"];
    let patch = json!({"metadata": {"annotations": {ATTESTORS: "aws"}}});
    kubectl.patch(&target, &patch);
    let authentication = poll(DEADLINE, || {
        let list = kubectl.json(["get", "kubeletauthentications", "-n", made.namespace()]);
        list["items"].as_array().unwrap().first().cloned()
    });
    let authentication = authentication.expect("a KubeletAuthentication is created");
    assert_eq!(authentication["metadata"]["labels"][FILTER], GREEN);

    let of_made = Authentication {
        namespace: "made".to_owned(),
        name: authentication["metadata"]["name"]
            .as_str()
            .unwrap()
            .to_owned(),
    };
    pass_rounds(kubectl, &labeled);
    pass_rounds(kubectl, &of_made);
    assert_eq!(bed.namespaces(BLUE), ["labeled"], "{:#?}", bed.writes(BLUE));
    assert_eq!(bed.namespaces(GREEN), ["made"], "{:#?}", bed.writes(GREEN));
}
