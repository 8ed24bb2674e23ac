//! Objects of a tenant that cannot be read.

use node_attestation_runtime::testing::hostile_values;

use super::*;

const MANAGED_CONTROL_PLANES: [&str; 4] = [
    "controlplane.cluster.x-k8s.io",
    "v1beta2",
    "AWSManagedControlPlane",
    "awsmanagedcontrolplanes",
];
const ROSA_CONTROL_PLANES: [&str; 4] = [
    "controlplane.cluster.x-k8s.io",
    "v1beta2",
    "ROSAControlPlane",
    "rosacontrolplanes",
];
const CONTROLLERS: [&str; 4] = [
    INFRASTRUCTURE,
    "v1beta2",
    "AWSClusterControllerIdentity",
    "awsclustercontrolleridentities",
];
const SERVICE_ACCOUNTS: [&str; 4] = [
    INFRASTRUCTURE,
    "v1beta2",
    "AWSServiceAccountIdentity",
    "awsserviceaccountidentities",
];

/// The kinds in whose objects the fields below are read, and the namespace of the object.
const READ: [(&str, &str, &[&str]); 9] = [
    (
        CLUSTERS[3],
        "evil",
        &["topology", "infrastructureRef", "controlPlaneRef"],
    ),
    (AWS_CLUSTERS[3], "evil", &["identityRef", "region"]),
    (
        MANAGED_CONTROL_PLANES[3],
        "evil",
        &["identityRef", "region"],
    ),
    (ROSA_CONTROL_PLANES[3], "evil", &["identityRef", "region"]),
    (SERVICE_ACCOUNTS[3], "evil", &["roleARN", "audiences"]),
    (CONTROLLERS[3], "", &["allowedNamespaces", "other"]),
    (STATICS[3], "", &["allowedNamespaces", "secretRef"]),
    (
        ROLES[3],
        "",
        &["allowedNamespaces", "sourceIdentityRef", "roleARN", "other"],
    ),
    ("namespaces", "", &["finalizers"]),
];

/// The objects of one kind that are tried.
fn objects(fields: &[&str]) -> Vec<Value> {
    let mut all = Vec::new();
    for value in hostile_values() {
        for field in fields {
            all.push(json!({"spec": {*field: value}}));
        }
        all.push(json!({"spec": value}));
        all.push(json!({"status": {"other": value}, "spec": {}}));
        all.push(json!({"metadata": {"labels": value}, "spec": {}}));
        all.push(json!({"metadata": {"annotations": {"a": value}}, "spec": {}}));
    }
    all
}

impl Bed {
    /// A bed in which `tenant-a` resolves.
    fn with_a_victim() -> Self {
        let bed = Self::new();
        for kind in [
            MANAGED_CONTROL_PLANES,
            ROSA_CONTROL_PLANES,
            CONTROLLERS,
            SERVICE_ACCOUNTS,
        ] {
            bed.server.serve(kind);
        }
        bed.namespace("tenant-a");
        bed.identity("a", "keys");
        bed.secret("keys", "AKIA1");
        bed.cluster("a");
        bed
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_does_not_stop_another_tenant() {
    for (plural, namespace, fields) in READ {
        let listed = Bed::with_a_victim();
        for (number, object) in objects(fields).iter().enumerate() {
            let name = format!("evil-{number}");
            listed.server.put(plural, namespace, &name, object);
        }
        let _running = listed.begin().await;
        assert_eq!(listed.resolve(), Ok(()), "{plural} in a list");

        let watched = Bed::with_a_victim();
        let _running = watched.begin().await;
        for (number, object) in objects(fields).iter().enumerate() {
            watched.server.put(plural, namespace, "evil", object);
            settle().await;
            assert_eq!(watched.resolve(), Ok(()), "{plural} {number} as an event");
        }
        let lists = watched.server.requests(plural);
        let lists = lists.iter().filter(|one| !one.contains("watch=true"));
        assert_eq!(lists.count(), 1, "{plural}: the watch went on");
    }
}

impl Bed {
    fn evil(&self) -> IdentityError {
        let tenant = ClusterTenant::new(ObjectKey::new("evil", "evil"));
        self.store.resolve(&tenant).unwrap_err()
    }
}

#[tokio::test(start_paused = true)]
async fn the_condition_and_the_log_name_an_object_that_cannot_be_read() {
    let log = ThreadLog::start(Level::INFO);
    let bed = Bed::with_a_victim();
    bed.namespace("evil");
    let reference = json!({"kind": "AWSCluster", "name": "evil", "apiGroup": INFRASTRUCTURE});
    let cluster = json!({"spec": {"infrastructureRef": reference}});
    bed.server.put(CLUSTERS[3], "evil", "evil", &cluster);
    let unreadable = json!({"spec": {"identityRef": {"kind": "a".repeat(1 << 20), "name": "a"}}});
    bed.server.put(AWS_CLUSTERS[3], "evil", "evil", &unreadable);
    let _running = bed.begin().await;

    let error = bed.evil();
    assert_eq!(error.reason(), Some("InfrastructureInvalid"));
    assert_eq!(
        error.to_string(),
        "AWSCluster evil of namespace evil cannot be read: a name in its spec is longer than 253 bytes"
    );
    assert_eq!(
        log.count(&["kind=\"AWSCluster\" namespace=\"evil\" name=\"evil\""]),
        1
    );

    let wrong = json!({"spec": {"infrastructureRef": 7}});
    bed.server.put(CLUSTERS[3], "evil", "evil", &wrong);
    settle().await;
    let error = bed.evil();
    assert_eq!(error.reason(), Some("ClusterInvalid"));
    let text = error.to_string();
    assert!(
        text.starts_with("Cluster evil/evil cannot be read: invalid type"),
        "{text}"
    );
    assert_eq!(
        log.count(&["kind=\"Cluster\" namespace=\"evil\" name=\"evil\""]),
        1
    );
    assert_eq!(bed.resolve(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn objects_too_large_for_a_page_do_not_block_others() {
    let bed = Bed::new();
    bed.server.has_large_pages_of("namespaces");
    bed.identity("a", "keys");
    bed.secret("keys", "AKIA1");
    bed.namespace("tenant-a");
    bed.cluster("a");
    let _running = bed.begin().await;
    assert_eq!(bed.access_key("keys").as_deref(), Some("AKIA1"));
    assert_eq!(bed.store.clusters().map(|clusters| clusters.len()), Some(1));
    sleep(Duration::from_mins(1)).await;
    assert_eq!(bed.resolve(), Ok(()));
}
