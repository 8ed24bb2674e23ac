//! The checks for the management cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use node_attestation_core::crd::{self, KubeletAuthentication};
use node_attestation_core::time::age;
use serde_json::Value;

use super::{Checked, Finding, some, within};
use crate::capi::cluster_resource;
use crate::client::{CONTROLLER, ClusterAccess, call};
use crate::clock;
use crate::preflight;
use crate::watch::{Lenient, MetadataOf, all_metadata_of, all_of, one_of};

/// The assumed duration of a Lease that does not specify one.
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// Runs all checks for the management cluster.
pub(super) async fn checks(management: &ClusterAccess) -> Vec<Checked> {
    let (definitions, cluster_api, rights, leader) = tokio::join!(
        within(definitions(management)),
        within(cluster_api(management)),
        within(rights(management)),
        within(leader(management)),
    );
    [
        ("definitions", definitions),
        ("cluster-api", cluster_api),
        ("rights", rights),
        ("leader", leader),
    ]
    .into_iter()
    .map(|(name, finding)| finding.checked(None, name))
    .collect()
}

/// Checks that the custom resource definitions match this version.
async fn definitions(management: &ClusterAccess) -> Finding {
    const CURE: &str = "run: node-attestation-controller crds | kubectl apply -f -";
    let api: Api<Lenient<CustomResourceDefinition>> = Api::all(management.client().clone());
    // Excluded, because the controller installs the definition for workload clusters.
    let workload = crd::workload_manifest().name_any();
    let ours = crd::manifests().into_iter();
    let ours: Vec<_> = ours.filter(|one| one.name_any() != workload).collect();
    let read = ours.iter().map(|one| {
        let (api, name) = (&api, one.name_any());
        async move { call(one_of(api, &name)).await }
    });
    let (mut missing, mut other) = (Vec::new(), Vec::new());
    for (own, there) in ours.iter().zip(join_all(read).await) {
        match there {
            Err(error) => return Finding::failed(&error, "get customresourcedefinitions"),
            Ok(None) => missing.push(own.name_any()),
            Ok(Some(there)) => {
                // A definition that cannot be decoded does not match this version.
                let is_own = there
                    .object
                    .is_ok_and(|there| schemas(&there) == schemas(own));
                if !is_own {
                    other.push(own.name_any());
                }
            }
        }
    }
    if !missing.is_empty() {
        Finding::fail(format!("missing: {}", some(&missing)), CURE)
    } else if !other.is_empty() {
        let what = format!(
            "definitions that do not match the version of this program: {}",
            some(&other)
        );
        Finding::warn(what, CURE)
    } else {
        Finding::pass(format!("{} installed, of this version", ours.len()))
    }
}

/// The schemas for all versions.
fn schemas(definition: &CustomResourceDefinition) -> Vec<(String, Option<Value>)> {
    let versions = definition.spec.versions.iter();
    versions
        .map(|version| {
            let schema = serde_json::to_value(&version.schema).ok();
            (version.name.clone(), schema)
        })
        .collect()
}

async fn cluster_api(management: &ClusterAccess) -> Finding {
    match call(cluster_resource(management.client())).await {
        Ok(Some(resource)) => Finding::pass(format!("Cluster is served as {}", resource.version)),
        Ok(None) => Finding::fail(
            "the API server does not serve a supported version of Cluster",
            "install Cluster API: clusterctl init",
        ),
        Err(error) => Finding::failed(&error, "discover APIs"),
    }
}

/// Checks that the current user has the permissions that a controller needs.
async fn rights(management: &ClusterAccess) -> Finding {
    let client = management.client();
    match preflight::missing(client, preflight::management_rights()).await {
        Err(error) => Finding::failed(&error, "create selfsubjectaccessreviews"),
        Ok(missing) if missing.is_empty() => {
            Finding::pass("this user has all permissions that the controller needs")
        }
        Ok(missing) => {
            let missing: Vec<_> = missing.iter().map(ToString::to_string).collect();
            Finding::warn(
                format!("this user is not allowed to: {}", some(&missing)),
                "if this is the controller's user: kubectl apply -k packaging/rbac",
            )
        }
    }
}

/// Checks that a controller is the leader and renews its Lease.
async fn leader(management: &ClusterAccess) -> Finding {
    let api: Api<Lenient<Lease>> = Api::all(management.client().clone());
    let namespaces = LeaseNamespaces {
        controllers: namespaces_of_controllers(management).await,
        tenants: namespaces_of_tenants(management).await,
    };
    match all_of(&api, ListParams::default()).await {
        Ok(all) => leadership(
            all.into_iter().filter_map(|one| one.object.ok()),
            &namespaces,
            management.server_time().now_or(clock::now()),
        ),
        Err(error) => Finding::failed(&error, "list leases"),
    }
}

/// The namespaces that determine whether a Lease counts.
#[derive(Debug, Default)]
struct LeaseNamespaces {
    /// The namespaces of the controllers' service accounts, which contain their Leases. Empty if they are unknown.
    controllers: BTreeSet<String>,
    /// The namespaces that contain a `KubeletAuthentication`.
    tenants: BTreeSet<String>,
}

impl LeaseNamespaces {
    /// Whether a tenant can write Leases in this namespace.
    fn are_of_tenant(&self, namespace: &str) -> bool {
        if self.controllers.is_empty() {
            self.tenants.contains(namespace)
        } else {
            !self.controllers.contains(namespace)
        }
    }
}

/// The namespaces of the service accounts that have the controller's cluster role. A tenant with Kubernetes'
/// `ClusterRole` `admin` can write Roles and `RoleBindings` in its namespace, but no `ClusterRoleBinding`.
async fn namespaces_of_controllers(management: &ClusterAccess) -> BTreeSet<String> {
    let api: Api<Lenient<ClusterRoleBinding>> = Api::all(management.client().clone());
    // If the current user is not allowed to list the bindings, the namespaces are unknown.
    let all = all_of(&api, ListParams::default()).await;
    let all = all.unwrap_or_default().into_iter();
    of_service_accounts(all.filter_map(|one| one.object.ok()))
}

/// The namespaces of the bound service accounts. Empty if another subject is bound, because the Lease of a controller
/// with a kubeconfig can be in any namespace.
fn of_service_accounts(bindings: impl Iterator<Item = ClusterRoleBinding>) -> BTreeSet<String> {
    let role = format!("{CONTROLLER}-management");
    let of_role = bindings.filter(|binding| binding.role_ref.name.contains(&role));
    let subjects = of_role.flat_map(|binding| binding.subjects.unwrap_or_default());
    let namespaces = subjects.map(|subject| match subject.kind.as_str() {
        "ServiceAccount" => subject.namespace,
        _ => None,
    });
    let namespaces: Option<BTreeSet<String>> = namespaces.collect();
    namespaces.unwrap_or_default()
}

/// The namespaces that contain a `KubeletAuthentication`. In these namespaces, a tenant with Kubernetes' `ClusterRole`
/// `edit` can write Leases.
async fn namespaces_of_tenants(management: &ClusterAccess) -> BTreeSet<String> {
    let api: Api<MetadataOf<KubeletAuthentication>> = Api::all(management.client().clone());
    // Another check reports the error.
    let all = all_metadata_of(&api, ListParams::default()).await;
    let all = all.unwrap_or_default().into_iter();
    all.filter_map(|one| one.metadata.namespace).collect()
}

/// Whether a controller renews its Lease at `now`. A removed controller leaves its Lease behind. Therefore a Lease
/// without renewals is only a warning if its namespace has another Lease that is held. Leases in tenants' namespaces
/// count only if there are no other Leases, and if the namespaces of the controllers are unknown.
fn leadership(
    all: impl Iterator<Item = Lease>,
    namespaces: &LeaseNamespaces,
    now: SystemTime,
) -> Finding {
    let ours = |lease: &Lease| {
        let name = lease.name_any();
        name == CONTROLLER || name.starts_with(&format!("{CONTROLLER}-"))
    };
    let is_of_tenant =
        |lease: &Lease| namespaces.are_of_tenant(&lease.namespace().unwrap_or_default());
    let (of_tenants, own): (Vec<_>, Vec<_>) = all.filter(ours).partition(is_of_tenant);
    if own.is_empty() && namespaces.controllers.is_empty() {
        return leadership_of(of_tenants, now);
    }
    let mut finding = leadership_of(own, now);
    let ignored = of_tenants.iter().map(|lease| {
        let namespace = lease.namespace().unwrap_or_default();
        format!("{namespace}/{}", lease.name_any())
    });
    let ignored: Vec<String> = ignored.collect();
    if !ignored.is_empty() {
        let ignored = some(&ignored);
        let what = format!("; ignored, because tenants can write these Leases: {ignored}");
        finding.what.push_str(&what);
    }
    finding
}

/// Whether a controller renews one of these Leases.
fn leadership_of(leases: Vec<Lease>, now: SystemTime) -> Finding {
    const CURE: &str = "check that the controller runs, and read its log";
    let (mut held, mut lapsed) = (BTreeMap::new(), Vec::new());
    for lease in leases {
        let (name, namespace) = (lease.name_any(), lease.namespace().unwrap_or_default());
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec
            .lease_duration_seconds
            .and_then(|it| u64::try_from(it).ok());
        let duration = seconds.map_or(LEASE_DURATION, Duration::from_secs);
        let renewed = spec.renew_time.map(|time| SystemTime::from(time.0));
        let age = renewed.and_then(|renewed| age(renewed, now));
        let age = age.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let text = format!("{namespace}/{name}, {} s ago", age.as_secs());
        if holder.is_empty() || age > duration {
            lapsed.push((namespace, text));
        } else {
            let held: &mut Vec<_> = held.entry(namespace).or_default();
            held.push(format!("{text} by {holder}"));
        }
    }
    let (of_others, down): (Vec<_>, Vec<_>) = lapsed
        .into_iter()
        .partition(|(namespace, _)| held.contains_key(namespace));
    let [of_others, down] = [of_others, down].map(|leases| {
        let texts = leases.into_iter().map(|(_, text)| text);
        texts.collect::<Vec<_>>()
    });
    let held: Vec<String> = held.into_values().flatten().collect();
    if !down.is_empty() {
        Finding::fail(
            format!("no leader; last renewal of the Lease: {}", some(&down)),
            CURE,
        )
    } else if !of_others.is_empty() {
        Finding::warn(
            format!(
                "renewed: {}; not renewed: {}",
                some(&held),
                some(&of_others)
            ),
            "if this controller was removed, delete its Lease; otherwise, check that it runs",
        )
    } else if held.is_empty() {
        let what = "no Lease of a controller exists: no controller has run in this cluster";
        Finding::warn(what, CURE)
    } else {
        Finding::pass(format!("renewed: {}", some(&held)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::State;
    use super::*;

    const NOW: &str = "2026-11-21T12:00:00.000000Z";
    const LONG_AGO: &str = "2026-11-20T12:00:00.000000Z";

    fn lease(namespace: &str, name: &str, holder: &str, renewed: &str) -> Lease {
        let object = json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed,
            },
        });
        serde_json::from_value(object).unwrap()
    }

    fn found(leases: &[Lease]) -> (State, String) {
        found_with(leases, &[])
    }

    fn found_with(leases: &[Lease], tenants: &[&str]) -> (State, String) {
        let now = NOW.parse::<k8s_openapi::jiff::Timestamp>().unwrap();
        let namespaces = LeaseNamespaces {
            controllers: BTreeSet::new(),
            tenants: tenants.iter().map(ToString::to_string).collect(),
        };
        let finding = leadership(leases.iter().cloned(), &namespaces, now.into());
        (finding.state, finding.what)
    }

    #[test]
    fn a_stale_lease_fails_the_check_unless_another_lease_is_held() {
        let held = lease("system", CONTROLLER, "a", NOW);
        let lapsed = lease("system", "node-attestation-controller-b", "b", LONG_AGO);
        let elsewhere = lease("other", CONTROLLER, "c", LONG_AGO);
        let released = lease("system", CONTROLLER, "", NOW);

        let renewed = "system/node-attestation-controller, 0 s ago by a";
        let gone = "system/node-attestation-controller-b, 86400 s ago";
        assert_eq!(
            found(std::slice::from_ref(&held)),
            (State::Pass, format!("renewed: {renewed}"))
        );
        assert_eq!(
            found(&[held.clone(), lapsed.clone()]),
            (
                State::Warn,
                format!("renewed: {renewed}; not renewed: {gone}")
            )
        );
        assert_eq!(
            found(&[lapsed]),
            (
                State::Fail,
                format!("no leader; last renewal of the Lease: {gone}")
            )
        );
        let other = "other/node-attestation-controller, 86400 s ago";
        assert_eq!(
            found(&[held, elsewhere]),
            (
                State::Fail,
                format!("no leader; last renewal of the Lease: {other}")
            )
        );
        let (state, what) = found(&[released]);
        assert_eq!(state, State::Fail, "{what}");
    }

    #[test]
    fn a_lease_of_a_tenant_neither_fails_nor_passes_the_check_of_others() {
        let [held, down] = [NOW, LONG_AGO].map(|at| lease("system", CONTROLLER, "a", at));
        let [forged, expired] = [NOW, LONG_AGO].map(|at| lease("tenant-a", CONTROLLER, "b", at));
        let found = |leases: &[&Lease]| {
            let leases: Vec<Lease> = leases.iter().map(|lease| (*lease).clone()).collect();
            found_with(&leases, &["tenant-a"])
        };
        let ignored = "; ignored, because tenants can write these Leases: tenant-a/node-attestation-controller";
        for (own, others, expected) in [
            (&held, &expired, State::Pass),
            (&held, &forged, State::Pass),
            (&down, &forged, State::Fail),
        ] {
            let (state, what) = found(&[own, others]);
            assert_eq!(state, expected, "{what}");
            assert!(what.ends_with(ignored), "{what}");
        }
        for (only, expected) in [(&forged, State::Pass), (&expired, State::Fail)] {
            let (state, what) = found(&[only]);
            assert_eq!(state, expected, "{what}");
            assert!(!what.contains("ignored"), "{what}");
        }
    }

    /// A binding of the controller's role to these subjects.
    fn bound(subjects: &Value) -> BTreeSet<String> {
        let role = format!("{CONTROLLER}-management");
        let binding = |role: &str, subjects: &Value| {
            let group = "rbac.authorization.k8s.io";
            let role = json!({"apiGroup": group, "kind": "ClusterRole", "name": role});
            let object = json!({"metadata": {"name": "b"}, "roleRef": role, "subjects": subjects});
            serde_json::from_value(object).unwrap()
        };
        let user = json!([{"kind": "User", "name": "jane"}]);
        let bindings = [binding(&role, subjects), binding("another", &user)];
        of_service_accounts(bindings.into_iter())
    }

    #[test]
    fn only_leases_beside_the_service_account_of_a_controller_count() {
        let account = json!({"kind": "ServiceAccount", "namespace": "system", "name": CONTROLLER});
        let user = json!({"kind": "User", "name": CONTROLLER});
        assert_eq!(bound(&json!([user])), BTreeSet::new());
        assert_eq!(bound(&json!([account, user])), BTreeSet::new());
        let namespaces = LeaseNamespaces {
            controllers: bound(&json!([account])),
            tenants: BTreeSet::new(),
        };
        let now = NOW.parse::<k8s_openapi::jiff::Timestamp>().unwrap();
        let [held, down] = [NOW, LONG_AGO].map(|at| lease("system", CONTROLLER, "a", at));
        let [forged, expired] = [NOW, LONG_AGO].map(|at| lease("other", CONTROLLER, "b", at));
        let ignored =
            "; ignored, because tenants can write these Leases: other/node-attestation-controller";

        for (own, other, expected) in [
            (Some(&held), &expired, State::Pass),
            (Some(&down), &forged, State::Fail),
            (None, &forged, State::Warn),
        ] {
            let all = own.into_iter().chain([other]).cloned();
            let finding = leadership(all, &namespaces, now.into());
            assert_eq!(finding.state, expected, "{}", finding.what);
            assert!(finding.what.ends_with(ignored), "{}", finding.what);
        }
    }

    #[test]
    fn a_missing_controller_lease_is_a_warning() {
        let another = lease("kube-system", "kube-scheduler", "s", NOW);
        let (state, what) = found(&[another]);
        assert_eq!(state, State::Warn);
        assert!(what.starts_with("no Lease of a controller"), "{what}");
    }
}
