//! Tests of a tenant's objects that cannot be read.

use k8s_openapi::api::core::v1::Namespace;
use node_attestation_runtime::testing::{hostile_values, long_text, many_values};
use node_attestation_runtime::watch::NoFields;

use super::*;
use crate::tenancy::read::Reader;

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

const SELECTORS: [&str; 4] = [
    "services.k8s.aws",
    "v1alpha1",
    "IAMRoleSelector",
    "iamroleselectors",
];

/// Every source in the store with every setting, and one Secret.
fn sources() -> BTreeSet<Source> {
    let store = |ack| {
        let settings = TenancySettings {
            ack,
            ..TenancySettings::default()
        };
        IdentityStore::new(settings, "capa-system")
    };
    let all = [Ack::Off, Ack::Carm, Ack::RoleSelectors];
    let sources = all.into_iter().flat_map(|ack| store(ack).sources());
    let secret = Source::Secret("evil".to_owned());
    sources.chain([secret]).collect()
}

/// The plural name of a source, the namespace of a hostile object, and the fields of its `spec` that the controller
/// reads.
fn row(source: &Source) -> (&'static str, &'static str, &'static [&'static str]) {
    match source {
        Source::Clusters => (
            CLUSTERS[3],
            "evil",
            &["topology", "infrastructureRef", "controlPlaneRef"],
        ),
        Source::Infrastructure("AWSCluster") => (AWS_CLUSTERS[3], "evil", OWNERS),
        Source::Infrastructure("AWSManagedControlPlane") => {
            (MANAGED_CONTROL_PLANES[3], "evil", OWNERS)
        }
        Source::Infrastructure("ROSAControlPlane") => (ROSA_CONTROL_PLANES[3], "evil", OWNERS),
        Source::Infrastructure(other) => panic!("the table has no row for {other}"),
        Source::Identities(IdentityKind::ServiceAccount) => {
            (SERVICE_ACCOUNTS[3], "evil", &["roleARN", "audiences"])
        }
        Source::Identities(IdentityKind::Controller) => {
            (CONTROLLERS[3], "", &["allowedNamespaces", "other"])
        }
        Source::Identities(IdentityKind::Static) => {
            (STATICS[3], "", &["allowedNamespaces", "secretRef"])
        }
        Source::Identities(IdentityKind::Role) => (
            ROLES[3],
            "",
            &["allowedNamespaces", "sourceIdentityRef", "roleARN", "other"],
        ),
        Source::Namespaces => ("namespaces", "", &["finalizers"]),
        Source::Secret(_) => ("secrets", "capa-system", &["other"]),
        Source::ConfigMap(_) => ("configmaps", "ack-system", &["other"]),
        Source::RoleSelectors => (
            SELECTORS[3],
            "",
            &["arn", "namespaceSelector", "resourceLabelSelector", "other"],
        ),
    }
}

/// The fields of an object that refers to an identity.
const OWNERS: &[&str] = &["identityRef", "region"];

/// The tested objects of one kind.
fn objects(fields: &[&str]) -> Vec<Value> {
    let mut all = Vec::new();
    for value in hostile_values() {
        for field in fields {
            all.push(json!({"spec": {*field: value}}));
        }
        all.push(json!({"spec": value}));
        all.push(json!({"status": {"other": value}, "spec": {}}));
        all.push(json!({"data": value}));
        all.push(json!({"data": {"AccessKeyID": value, "tenant-b": value}}));
        all.push(json!({"metadata": {"labels": value}, "spec": {}}));
        all.push(json!({"metadata": {"annotations": {"a": value}}, "spec": {}}));
    }
    all.push(json!({"spec": {"unread": long_text()}}));
    all.push(json!({"metadata": {"labels": many_values()}, "spec": {}}));
    all
}

impl Bed {
    /// A test bed in which the identity of `tenant-a` can be resolved.
    fn with_a_victim(ack: Ack) -> Self {
        let bed = Self::with(ack);
        for kind in [
            SELECTORS,
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

/// A test bed in which the identity of `tenant-a` can be resolved, and which reads this source.
fn reading(source: &Source) -> Bed {
    let is_by_selectors = *source == Source::RoleSelectors;
    let bed = Bed::with_a_victim(if is_by_selectors {
        Ack::RoleSelectors
    } else {
        Ack::Carm
    });
    if let Source::Secret(name) = source {
        bed.identity("evil", name);
    }
    bed
}

/// The name of the source's object with this number.
fn name(source: &Source, number: usize) -> String {
    let one = source.name().map(str::to_owned);
    one.unwrap_or_else(|| format!("evil-{number}"))
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_does_not_stop_another_tenant() {
    for source in sources() {
        let (plural, namespace, fields) = row(&source);
        let listed = reading(&source);
        for (number, object) in objects(fields).iter().enumerate() {
            let name = name(&source, number);
            listed.server.put(plural, namespace, &name, object);
        }
        let _running = listed.begin().await;
        assert_eq!(listed.resolve(), Ok(()), "{source} in a list");

        let watched = reading(&source);
        let _running = watched.begin().await;
        for (number, object) in objects(fields).iter().enumerate() {
            let name = name(&source, 0);
            watched.server.put(plural, namespace, &name, object);
            settle().await;
            assert_eq!(watched.resolve(), Ok(()), "{source} {number} as an event");
        }
        let lists = watched.server.requests(plural);
        let of_source = |one: &&String| {
            let named = source
                .name()
                .is_none_or(|name| one.contains(&format!("%3D{name}&")));
            named && !one.contains("watch=true")
        };
        let lists = lists.iter().filter(of_source);
        assert_eq!(
            lists.clone().count(),
            1,
            "{source}: the watch went on: {:#?}",
            watched.server.requests(plural)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_can_be_fetched_by_its_name() {
    for source in sources() {
        let (plural, namespace, fields) = row(&source);
        let bed = reading(&source);
        let key = ObjectKey::new(namespace, name(&source, 0));
        let client = bed.server.access().client().clone();
        let reader = Reader {
            client: &client,
            places: &bed.watch.places,
            store: IdentityStore::new(TenancySettings::default(), "capa-system"),
        };
        for (number, object) in objects(fields).iter().enumerate() {
            bed.server.put(plural, namespace, &key.name, object);
            let read = reader.read(&source, &key).await;
            assert!(read.is_ok(), "{source} {number}: {read:?}");
        }
    }
}

impl Bed {
    /// The text that describes the identity of this Cluster, without secrets.
    fn plan(&self, namespace: &str, name: &str) -> Result<String, IdentityError> {
        let tenant = ClusterTenant::new(ObjectKey::new(namespace, name));
        self.store.resolve(&tenant).map(|plan| format!("{plan:?}"))
    }

    fn evil(&self) -> IdentityError {
        let tenant = ClusterTenant::new(ObjectKey::new("evil", "evil"));
        self.store.resolve(&tenant).unwrap_err()
    }
}

#[tokio::test(start_paused = true)]
async fn the_condition_and_the_log_name_an_object_that_cannot_be_read() {
    let log = ThreadLog::start(Level::INFO);
    let bed = Bed::with_a_victim(Ack::Carm);
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
        "AWSCluster evil in namespace evil is invalid: a name in its spec is longer than 253 bytes"
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
        text.starts_with("cannot parse Cluster evil/evil: invalid type"),
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

#[test]
fn a_namespace_with_too_many_labels_keeps_its_last_known_labels() {
    let store = IdentityStore::new(TenancySettings::default(), "capa-system");
    let key = ObjectKey::new("", "tenant-a");
    let namespace = |labels: Value, removed: Value| -> Lenient<NoFields, Namespace> {
        let metadata = json!({"name": "tenant-a", "labels": labels});
        let object = json!({"metadata": metadata, "$excessRemoved": removed});
        serde_json::from_value(object).unwrap()
    };
    let known = namespace(json!({"team": "a"}), Value::Null);
    put_namespace(&store, &key, Some(&known)).unwrap();

    let cut = namespace(json!({"other": ""}), json!(true));
    let error = put_namespace(&store, &key, Some(&cut)).unwrap_err();

    assert!(error.to_string().contains("too many values"), "{error}");
    let labels = || {
        let mut labels = None;
        store.update(|all| labels = all.namespaces.get("tenant-a").map(|it| it.labels.clone()));
        labels
    };
    assert_eq!(labels().unwrap(), [("team".into(), "a".into())].into());
    put_namespace(&store, &key, None).unwrap();
    assert_eq!(labels(), None);
}

/// Status fields of the kinds that refer to an identity, with values that belong to another tenant.
fn forged_statuses() -> Value {
    let reference = json!({"kind": "AWSClusterStaticIdentity", "name": "a"});
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Ready", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    json!({
        "ready": true,
        "initialization": {"provisioned": true},
        "identityRef": reference,
        "region": "eu-west-1",
        "roleARN": "arn:aws:iam::200000000001:role/nodes",
        "conditions": [condition],
        "kubeletClientCertificateSigner": "example.com/forged",
        "kubeletServingCertificateSigner": "example.com/forged",
    })
}

#[tokio::test(start_paused = true)]
async fn a_forged_status_does_not_change_an_identity_in_any_namespace() {
    let bed = Bed::with_a_victim(Ack::Carm);
    bed.namespace("evil");
    let _running = bed.begin().await;
    let reference = json!({"kind": "AWSCluster", "name": "evil", "apiGroup": INFRASTRUCTURE});
    let cluster = json!({"infrastructureRef": reference});
    bed.server
        .put(CLUSTERS[3], "evil", "evil", &json!({"spec": cluster}));
    bed.server
        .put(AWS_CLUSTERS[3], "evil", "evil", &json!({"spec": {}}));
    settle().await;
    let [before, own] = [bed.plan("tenant-a", "one"), bed.plan("evil", "evil")];
    assert!(before.is_ok(), "{before:?}");

    for (field, value) in forged_statuses().as_object().unwrap() {
        for (plural, spec) in [
            (CLUSTERS[3], cluster.clone()),
            (AWS_CLUSTERS[3], json!({})),
            (MANAGED_CONTROL_PLANES[3], json!({})),
            (ROSA_CONTROL_PLANES[3], json!({})),
            (SERVICE_ACCOUNTS[3], json!({})),
        ] {
            let forged = json!({"spec": spec, "status": {field: value}});
            bed.server.put(plural, "evil", "evil", &forged);
            settle().await;

            assert_eq!(bed.plan("tenant-a", "one"), before, "{plural} {field}");
            assert_eq!(bed.plan("evil", "evil"), own, "{plural} {field}");
        }
    }
}
