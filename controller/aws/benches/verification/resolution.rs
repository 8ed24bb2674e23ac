//! Resolves the identity of one cluster among others.

use std::hint::black_box;

use node_attestation_aws::credentials::ClusterTenant;
use node_attestation_aws::tenancy::store::IdentityStore;
use node_attestation_aws::tenancy::{
    Cluster, Identity, IdentityKind, Infrastructure, Namespace, ObjectRef, TenancySettings,
};
use node_attestation_runtime::capi::ObjectKey;
use serde_json::json;

use crate::results::Results;

/// The numbers of clusters and identities, and the names of the two measurements: the same cluster repeatedly, and all
/// clusters in turn.
const SCALES: [(usize, usize, [&str; 2]); 2] = [
    (
        100,
        100,
        [
            "resolution of one cluster among 100",
            "resolution of 100 clusters in turn",
        ],
    ),
    (
        10_000,
        1_000,
        [
            "resolution of one cluster among 10,000",
            "resolution of 10,000 clusters in turn",
        ],
    ),
];

/// The maximum cost with many clusters, as a multiple of the cost with few clusters. It has a margin, because other
/// processes use the same cores.
const LEEWAY: f64 = 1.5;

pub(crate) fn measure(results: &mut Results) {
    let mut among_few = None;
    for (clusters, identities, [one, in_turn]) in SCALES {
        let (store, tenants) = fleet(clusters, identities);
        let resolve = |tenant: &ClusterTenant| {
            let plan = store.resolve(tenant).unwrap();
            assert_eq!(plan.roles.len(), 2);
            black_box(plan);
        };
        let (_, later) = tenants.split_at(clusters / 2);
        let middle = later.first().unwrap();
        let median = results.measure(one, among_few, || resolve(middle));
        among_few = among_few.or_else(|| Some(median?.mul_f64(LEEWAY)));
        let mut all = tenants.iter().cycle();
        results.measure(in_turn, None, || resolve(all.next().unwrap()));
    }
}

/// Clusters in separate namespaces, whose roles are assumed with the same jump role. A selector permits each namespace.
fn fleet(clusters: usize, identities: usize) -> (IdentityStore, Vec<ClusterTenant>) {
    let store = IdentityStore::new(TenancySettings::default(), "capa-system");
    // The objects are added one at a time, as in a watch, because the time under the lock is measured.
    let put = |kind, name: &str, spec: &str| {
        let identity = Identity::parse(kind, spec);
        drop(store.update(|objects| objects.put_identity("", name, identity)));
    };
    let own = json!({"allowedNamespaces": {}}).to_string();
    put(IdentityKind::Controller, "default", &own);
    let role = |name: &str, source: &str, kind: IdentityKind| {
        let spec = json!({
            "allowedNamespaces": {"selector": {"matchLabels": {"role": "tenant"}}},
            "roleARN": format!("arn:aws:iam::111122223333:role/{name}"),
            "externalID": "7a5b816a-7743-4377-a382-2d695bf1f172",
            "sourceIdentityRef": {"kind": kind.to_string(), "name": source},
        });
        put(IdentityKind::Role, name, &spec.to_string());
    };
    role("jump", "default", IdentityKind::Controller);
    for identity in 1..identities {
        role(&format!("role-{identity}"), "jump", IdentityKind::Role);
    }
    let tenants = (0..clusters).map(|number| {
        let key = ObjectKey::new(format!("tenant-{number}"), format!("cluster-{number}"));
        let labels = [("role", "tenant"), ("team", "nodes")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let namespace = Namespace {
            labels: labels.into(),
            ..Namespace::default()
        };
        store.update(|objects| drop(objects.namespaces.insert(key.namespace.clone(), namespace)));
        let cluster = Cluster {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            infrastructure: Some(ObjectRef {
                kind: "AWSCluster".to_owned(),
                name: key.name.clone(),
            }),
            ..Cluster::default()
        };
        let role = format!("role-{}", 1 + number % (identities - 1));
        let reference = json!({"kind": "AWSClusterRoleIdentity", "name": role});
        let spec = json!({"identityRef": reference, "region": "eu-west-1"});
        let spec: Infrastructure = serde_json::from_value(spec).unwrap();
        store.put_cluster(key.clone(), Some(Ok(cluster)));
        store.put_infrastructure("AWSCluster", key.clone(), Some(Ok(spec)));
        ClusterTenant::new(key)
    });
    let tenants = tenants.collect();
    for source in store.sources() {
        store.read(&source);
    }
    (store, tenants)
}
