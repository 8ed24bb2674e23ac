use std::collections::BTreeMap;

use node_attestation_runtime::shared::testing::most_visited;
use node_attestation_runtime::shared::{Lock, PAGE};
use serde_json::{Value, json};
use tokio::time::advance;

use super::*;
use crate::tenancy::testing::{TENANT, arn, namespace, objects, put, role, secret, summary};
use crate::tenancy::{Identity, TEAM_MAP};

const CONTROLLER: &str = "AWSClusterControllerIdentity/default";
const ROLE: &str = "AWSClusterRoleIdentity/a";
const KEYS: &str = "AWSClusterStaticIdentity/keys";

fn key() -> ObjectKey {
    ObjectKey::new(TENANT, "one")
}

fn tenant() -> ClusterTenant {
    ClusterTenant::new(key())
}

#[expect(clippy::unnecessary_wraps, reason = "as the store takes it")]
fn naming(identity: &str) -> Option<Infrastructure> {
    let (kind, name) = identity.split_once('/').unwrap();
    let spec = json!({"identityRef": {"kind": kind, "name": name}, "region": "eu-west-1"});
    Some(serde_json::from_value(spec).unwrap())
}

#[expect(clippy::unnecessary_wraps, reason = "as the store takes it")]
fn aws_cluster() -> Option<Cluster> {
    let infrastructure = ObjectRef {
        kind: "AWSCluster".to_owned(),
        name: "one".to_owned(),
    };
    Some(Cluster {
        namespace: TENANT.to_owned(),
        name: "one".to_owned(),
        infrastructure: Some(infrastructure),
        ..Cluster::default()
    })
}

/// A store for a cluster with the identity `a`. The store has already received all objects.
fn store() -> IdentityStore {
    let store = IdentityStore::new(TenancySettings::default(), "capa-system");
    store.update(|all| {
        *all = objects();
        put(all, ROLE, &role(CONTROLLER, "a"));
        put(
            all,
            KEYS,
            &json!({"allowedNamespaces": {}, "secretRef": "keys"}),
        );
    });
    store.put_cluster(key(), aws_cluster().map(Ok));
    store.put_infrastructure("AWSCluster", key(), naming(ROLE).map(Ok));
    for source in store.sources() {
        store.read(&source);
    }
    store
}

fn roles(store: &IdentityStore) -> Result<Vec<String>, IdentityError> {
    store.resolve(&tenant()).map(|plan| summary(&plan).1)
}

#[test]
fn a_cluster_is_resolved_with_the_current_objects() {
    let store = store();
    let resolved = store.resolve(&tenant()).unwrap();
    assert_eq!(summary(&resolved).1, [arn("a")]);

    store.put_infrastructure("AWSCluster", key(), naming(CONTROLLER).map(Ok));
    assert_eq!(roles(&store), Ok(vec![]));

    let selector = json!({"selector": {"matchLabels": {"environment": "dev"}}});
    store.update(|all| put(all, CONTROLLER, &json!({"allowedNamespaces": selector})));
    assert_eq!(
        roles(&store).unwrap_err().reason(),
        Some("UsageUnauthorized")
    );
    store.update(|all| namespace(all, TENANT, &[("environment", "dev")], &[]));
    assert_eq!(roles(&store), Ok(vec![]));

    store.update(|all| all.remove_identity(IdentityKind::Controller, "", "default"));
    assert_eq!(
        roles(&store).unwrap_err().reason(),
        Some("IdentityNotFound")
    );
}

#[test]
fn identities_are_resolved_only_after_all_objects_are_read() {
    let all = store().sources();
    assert_eq!(all.len(), 9);
    for missing in &all {
        let store = IdentityStore::new(TenancySettings::default(), "capa-system");
        store.update(|objects_of| *objects_of = objects());
        store.put_cluster(key(), aws_cluster().map(Ok));
        store.put_infrastructure("AWSCluster", key(), naming(CONTROLLER).map(Ok));
        for source in all.iter().filter(|source| *source != missing) {
            store.read(source);
        }
        let error = roles(&store).unwrap_err();
        assert_eq!(error, IdentityError::NotRead(missing.clone()));
        assert_eq!(error.reason(), None);
        store.read(missing);
        assert_eq!(roles(&store), Ok(vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn identities_are_resolved_for_two_minutes_after_a_watch_breaks() {
    let store = store();
    for source in store.sources() {
        store.failed(&source);
        advance(Duration::from_mins(1)).await;
        // A second failure does not change the time of the first failure.
        store.failed(&source);
        advance(Duration::from_mins(1)).await;
        assert_eq!(roles(&store), Ok(vec![arn("a")]), "{source}");
        advance(Duration::from_secs(1)).await;
        assert_eq!(
            roles(&store),
            Err(IdentityError::WatchBroken(source.clone()))
        );
        store.read(&source);
        assert_eq!(roles(&store), Ok(vec![arn("a")]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_affects_only_clusters_whose_identity_references_it() {
    let store = store();
    let source = Source::Secret("keys".to_owned());
    store.put_infrastructure("AWSCluster", key(), naming(KEYS).map(Ok));
    assert_eq!(roles(&store), Err(IdentityError::NotRead(source.clone())));

    store.read(&source);
    assert_eq!(roles(&store).unwrap_err().reason(), Some("SecretNotFound"));

    store.update(|all| {
        secret(
            all,
            "keys",
            &[("AccessKeyID", "AKIA1"), ("SecretAccessKey", "s")],
        );
    });
    assert_eq!(roles(&store), Ok(vec![]));

    store.failed(&source);
    advance(Duration::from_secs(121)).await;
    assert_eq!(
        roles(&store),
        Err(IdentityError::WatchBroken(source.clone()))
    );
    store.put_infrastructure("AWSCluster", key(), naming(ROLE).map(Ok));
    assert_eq!(roles(&store), Ok(vec![arn("a")]));

    store.put_infrastructure("AWSCluster", key(), naming(KEYS).map(Ok));
    store.forget(&source);
    assert_eq!(roles(&store), Err(IdentityError::NotRead(source)));
}

#[test]
fn an_object_missing_from_a_list_is_removed_from_the_store() {
    let store = store();
    let none = BTreeSet::new();
    store.retain(&Source::Infrastructure("AWSManagedControlPlane"), &none);
    store.retain(&Source::Identities(IdentityKind::ServiceAccount), &none);
    assert_eq!(roles(&store), Ok(vec![arn("a")]));

    let only = |name: &str| BTreeSet::from([ObjectKey::new("", name)]);
    store.retain(&Source::Identities(IdentityKind::Role), &only("a"));
    assert_eq!(roles(&store), Ok(vec![arn("a")]));
    store.retain(&Source::Identities(IdentityKind::Role), &only("b"));
    assert_eq!(
        roles(&store).unwrap_err().reason(),
        Some("IdentityNotFound")
    );

    store.retain(&Source::Infrastructure("AWSCluster"), &none);
    assert_eq!(
        roles(&store).unwrap_err().reason(),
        Some("InfrastructureNotFound")
    );
    store.retain(&Source::Clusters, &none);
    assert_eq!(roles(&store), Err(IdentityError::ClusterNotFound(key())));
    assert_eq!(store.clusters(), Some(BTreeSet::new()));
    store.forget(&Source::Clusters);
    assert_eq!(store.clusters(), None);
}

#[test]
fn many_clusters_are_listed_and_removed_in_small_steps() {
    let store = store();
    for number in 0..1000 {
        let key = ObjectKey::new(TENANT, format!("c{number}"));
        store.put_cluster(key.clone(), aws_cluster().map(Ok));
        store.put_infrastructure("AWSCluster", key, naming(ROLE).map(Ok));
    }
    let one = BTreeSet::from([key()]);

    let visited = most_visited(|| {
        assert_eq!(store.clusters().unwrap().len(), 1001);
        for source in [Source::Clusters, Source::Infrastructure("AWSCluster")] {
            store.retain(&source, &one);
        }
        assert!(store.resolve(&tenant()).is_ok());
    });

    assert_eq!(visited, BTreeMap::from([(Lock::Identities, PAGE)]));
    assert_eq!(store.clusters(), Some(one));
}

#[test]
fn a_label_removed_during_a_broken_watch_revokes_its_permission() {
    let store = store();
    let selector = json!({"selector": {"matchLabels": {"environment": "dev"}}});
    store.update(|all| {
        namespace(all, TENANT, &[("environment", "dev")], &[]);
        put(all, CONTROLLER, &json!({"allowedNamespaces": selector}));
    });
    assert_eq!(roles(&store), Ok(vec![arn("a")]));
    store.retain(&Source::Namespaces, &BTreeSet::new());
    assert_eq!(
        roles(&store).unwrap_err().reason(),
        Some("SourceUsageUnauthorized")
    );
}

#[test]
fn the_ack_maps_are_read_only_if_the_operator_enables_carm() {
    let carm = TenancySettings {
        ack: Ack::Carm,
        ..TenancySettings::default()
    };
    let store = IdentityStore::new(carm, "capa-system");
    let maps = [
        Source::ConfigMap("ack-role-account-map"),
        Source::ConfigMap("ack-role-team-map"),
    ];
    assert_eq!(store.sources()[9..], maps);
    let team = "services.k8s.aws/team-id";
    store.update(|all| {
        *all = objects();
        namespace(all, TENANT, &[], &[(team, "team-a")]);
        all.put_config_map(TEAM_MAP, Some([("team-a".to_owned(), arn("team"))].into()));
    });
    let cluster = Cluster {
        infrastructure: None,
        ..aws_cluster().unwrap()
    };
    store.put_cluster(key(), Some(Ok(cluster)));
    for source in store.sources() {
        store.read(&source);
    }
    assert_eq!(roles(&store), Ok(vec![arn("team")]));
    store.retain(&Source::ConfigMap(TEAM_MAP), &BTreeSet::new());
    assert_eq!(roles(&store).unwrap_err().reason(), Some("CARMMapNotFound"));

    let selectors = TenancySettings {
        ack: Ack::RoleSelectors,
        ..TenancySettings::default()
    };
    let store = IdentityStore::new(selectors, "capa-system");
    assert_eq!(store.sources()[9..], [Source::RoleSelectors]);
}

#[test]
fn the_store_lists_the_secrets_that_identities_reference() {
    let store = store();
    store.update(|all| {
        put(
            all,
            "AWSClusterStaticIdentity/b",
            &json!({"secretRef": "../b"}),
        );
    });
    assert_eq!(store.secrets(), BTreeSet::from(["keys".to_owned()]));
}

#[test]
fn a_service_account_gets_its_region_from_the_aws_cluster() {
    let store = store();
    let identity = json!({"roleARN": arn("nodes")});
    store.update(|all| put(all, "AWSServiceAccountIdentity/nodes", &identity));
    let of_account = ClusterTenant {
        service_account_identity: Some("nodes".to_owned()),
        ..tenant()
    };
    assert!(store.resolve(&of_account).is_ok());
    for tenant in [tenant(), of_account] {
        let accepts = |region| store.accepts_region(&tenant, region);
        assert_eq!(accepts("eu-west-1"), Ok(true));
        assert_eq!(accepts("eu-west-2"), Ok(false));
        for source in [Source::Clusters, Source::Infrastructure("AWSCluster")] {
            store.failed(&source);
            assert_eq!(accepts("eu-west-1"), Ok(true));
            let interrupted = IdentityError::WatchInterrupted(source.clone());
            assert_eq!(accepts("eu-west-2"), Err(interrupted));
            store.read(&source);
            assert_eq!(accepts("eu-west-2"), Ok(false));
        }
    }
}

#[test]
fn a_managed_control_plane_determines_the_region_of_its_cluster() {
    let store = store();
    let managed = Cluster {
        control_plane: Some(ObjectRef {
            kind: "AWSManagedControlPlane".to_owned(),
            name: "managed".to_owned(),
        }),
        ..aws_cluster().unwrap()
    };
    store.put_cluster(key(), Some(Ok(managed)));
    let control_plane = ObjectKey::new(TENANT, "managed");
    store.put_infrastructure(
        "AWSManagedControlPlane",
        control_plane,
        naming(ROLE).map(Ok),
    );
    let accepts = || store.accepts_region(&tenant(), "eu-west-2");
    assert_eq!(accepts(), Ok(false));
    // The AWSCluster does not specify the region.
    store.failed(&Source::Infrastructure("AWSCluster"));
    assert_eq!(accepts(), Ok(false));
    let source = Source::Infrastructure("AWSManagedControlPlane");
    store.failed(&source);
    assert_eq!(accepts(), Err(IdentityError::WatchInterrupted(source)));
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_watch_denies_nothing_until_it_has_caught_up() {
    let store = store();
    let source = Source::Clusters;
    let accepts = || store.accepts_region(&tenant(), "eu-west-2");
    let interrupted = Err(IdentityError::WatchInterrupted(source.clone()));
    store.failed(&source);
    advance(BROKEN_WATCH / 2).await;

    store.heard(&source);

    assert_eq!(accepts(), interrupted);
    advance(CATCHES_UP).await;
    assert_eq!(accepts(), interrupted);
    advance(Duration::from_millis(1)).await;
    assert_eq!(accepts(), Ok(false));
    // A response on a working watch has no effect.
    store.heard(&source);
    assert_eq!(accepts(), Ok(false));
    // The store no longer reports the time of the first failure.
    store.failed(&source);
    advance(BROKEN_WATCH).await;
    assert!(store.resolve(&tenant()).is_ok());
    advance(BROKEN_WATCH).await;
    let broken = IdentityError::WatchBroken(source);
    assert_eq!(store.resolve(&tenant()).unwrap_err(), broken);
}

/// The identity that the Cluster `one` in this namespace gets from a service account identity.
fn of_account(store: &IdentityStore, namespace: &str, name: &str) -> Result<(), IdentityError> {
    let key = ObjectKey::new(namespace, "one");
    let cluster = Cluster {
        namespace: namespace.to_owned(),
        ..aws_cluster().unwrap()
    };
    store.put_cluster(key.clone(), Some(Ok(cluster)));
    let tenant = ClusterTenant {
        service_account_identity: Some(name.to_owned()),
        ..ClusterTenant::new(key)
    };
    store.resolve(&tenant).map(drop)
}

fn put_account(store: &IdentityStore, namespace: &str, name: &str, spec: &Value) {
    let identity = Identity::parse(IdentityKind::ServiceAccount, &spec.to_string());
    drop(store.update(|all| all.put_identity(namespace, name, identity)));
}

#[test]
fn identities_beyond_the_number_of_their_namespace_hide_no_others() {
    let store = store();
    let spec = json!({"roleARN": arn("nodes")});
    for number in 0..MAX_SERVICE_ACCOUNTS.objects {
        put_account(&store, TENANT, &format!("n{number}"), &spec);
    }
    assert_eq!(of_account(&store, TENANT, "n999"), Ok(()));
    let missing = of_account(&store, TENANT, "last").unwrap_err();
    assert_eq!(missing.reason(), Some("IdentityNotFound"));

    put_account(&store, TENANT, "last", &spec);

    let error = of_account(&store, TENANT, "last").unwrap_err();
    assert_eq!(error.reason(), Some("TooManyObjects"));
    let limit = "namespace tenant-a has more than 1000 such objects";
    assert!(error.to_string().contains(limit), "{error}");
    let source = Source::Identities(IdentityKind::ServiceAccount);
    let kept = ["n0", "last"].map(|name| store.keeps(&source, &ObjectKey::new(TENANT, name)));
    assert_eq!(kept, [true, false], "in a list");
    put_account(&store, "tenant-b", "nodes", &spec);
    assert_eq!(of_account(&store, "tenant-b", "nodes"), Ok(()));
    store.update(|all| all.remove_identity(IdentityKind::ServiceAccount, TENANT, "n0"));
    put_account(&store, TENANT, "last", &spec);
    assert_eq!(of_account(&store, TENANT, "last"), Ok(()));
}

#[test]
fn identities_beyond_the_size_of_their_namespace_hide_no_others() {
    let store = store();
    let spec = json!({"roleARN": arn("nodes"), "inlinePolicy": "a".repeat(2 << 20)});
    for name in ["a", "b", "c"] {
        put_account(&store, TENANT, name, &spec);
        let error = of_account(&store, TENANT, name).unwrap_err();
        assert_eq!(error.reason(), Some("InvalidRole"), "{name}");
    }

    put_account(&store, TENANT, "d", &spec);

    let error = of_account(&store, TENANT, "d").unwrap_err();
    assert_eq!(error.reason(), Some("IdentityInvalid"));
    assert!(
        error.to_string().contains("exceed 8 MiB in total"),
        "{error}"
    );
    let small = json!({"roleARN": arn("nodes")});
    for namespace in [TENANT, "tenant-b"] {
        put_account(&store, namespace, "small", &small);
        assert_eq!(of_account(&store, namespace, "small"), Ok(()));
    }
}

#[test]
fn clusters_beyond_the_number_of_their_namespace_hide_no_others() {
    let store = store();
    let key = |number: usize| ObjectKey::new("tenant-b", format!("c{number}"));
    for number in 0..=OF_CLUSTERS.objects {
        let infrastructure = ObjectRef {
            kind: "AWSCluster".to_owned(),
            name: format!("c{}", OF_CLUSTERS.objects),
        };
        let cluster = Cluster {
            namespace: "tenant-b".to_owned(),
            infrastructure: Some(infrastructure),
            ..Cluster::default()
        };
        store.put_cluster(key(number), Some(Ok(cluster)));
        store.put_infrastructure("AWSCluster", key(number), naming(ROLE).map(Ok));
    }

    // The cases are the last Cluster, and the AWSCluster of the first Cluster.
    for number in [OF_CLUSTERS.objects, 0] {
        let tenant = ClusterTenant::new(key(number));
        let error = store.resolve(&tenant).unwrap_err();
        assert_eq!(error.reason(), Some("TooManyObjects"), "{number}");
        let limit = "Cluster c20000 if it exists: namespace tenant-b has more than 20000 such";
        assert!(error.to_string().contains(limit), "{error}");
    }
    for source in [Source::Clusters, Source::Infrastructure("AWSCluster")] {
        let kept = [0, OF_CLUSTERS.objects].map(|number| store.keeps(&source, &key(number)));
        assert_eq!(kept, [true, false], "{source} in a list");
    }
    assert_eq!(roles(&store), Ok(vec![arn("a")]));
}
