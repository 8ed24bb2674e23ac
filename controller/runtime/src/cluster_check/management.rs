//! The checks of the management cluster.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use node_attestation_core::crd;
use serde_json::Value;

use super::{Checked, Finding, some, within};
use crate::capi::cluster_resource;
use crate::client::{CONTROLLER, ClusterAccess, call};
use crate::clock;
use crate::preflight;
use crate::watch::{Lenient, all_of};

/// The duration of a Lease that does not specify one.
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// Runs all checks of the management cluster.
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
    let api: Api<CustomResourceDefinition> = Api::all(management.client().clone());
    // The controller installs the definition for workload clusters.
    let workload = crd::workload_manifest().name_any();
    let ours = crd::manifests().into_iter();
    let ours: Vec<_> = ours.filter(|one| one.name_any() != workload).collect();
    let read = ours.iter().map(|one| {
        let (api, name) = (&api, one.name_any());
        async move { call(api.get_opt(&name)).await }
    });
    let (mut missing, mut other) = (Vec::new(), Vec::new());
    for (own, there) in ours.iter().zip(join_all(read).await) {
        match there {
            Err(error) => return Finding::failed(&error, "get customresourcedefinitions"),
            Ok(None) => missing.push(own.name_any()),
            Ok(Some(there)) if schemas(&there) != schemas(own) => other.push(own.name_any()),
            Ok(Some(_)) => {}
        }
    }
    if !missing.is_empty() {
        Finding::fail(format!("missing: {}", some(&missing)), CURE)
    } else if !other.is_empty() {
        let what = format!("of a different version from this program: {}", some(&other));
        Finding::warn(what, CURE)
    } else {
        Finding::pass(format!("{} installed, of this version", ours.len()))
    }
}

/// The schemas of all versions.
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
            "the API server serves no supported version of Cluster",
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
                "if this is the user of the controller: kubectl apply -k packaging/rbac",
            )
        }
    }
}

/// Checks that a controller is the leader and renews its Lease.
async fn leader(management: &ClusterAccess) -> Finding {
    const CURE: &str = "check that the controller runs, and read its log";
    let api: Api<Lenient<Lease>> = Api::all(management.client().clone());
    let all = all_of(&api, ListParams::default()).await;
    let all = match all {
        Ok(all) => all.into_iter().filter_map(|one| one.object.ok()),
        Err(error) => return Finding::failed(&error, "list leases"),
    };
    let ours = |lease: &Lease| {
        let name = lease.name_any();
        name == CONTROLLER || name.starts_with(&format!("{CONTROLLER}-"))
    };
    let (mut held, mut lapsed) = (Vec::new(), Vec::new());
    for lease in all.filter(ours) {
        let (name, namespace) = (lease.name_any(), lease.namespace().unwrap_or_default());
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec
            .lease_duration_seconds
            .and_then(|it| u64::try_from(it).ok());
        let duration = seconds.map_or(LEASE_DURATION, Duration::from_secs);
        let renewed = spec.renew_time.map(|time| time.0.into());
        let age = renewed.and_then(|renewed| clock::now().duration_since(renewed).ok());
        let age = age.unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let text = format!("{namespace}/{name}, {} s ago", age.as_secs());
        if holder.is_empty() || age > duration {
            lapsed.push(text);
        } else {
            held.push(format!("{text} by {holder}"));
        }
    }
    if !lapsed.is_empty() {
        let what = format!("no leader: Lease last renewed: {}", some(&lapsed));
        Finding::fail(what, CURE)
    } else if held.is_empty() {
        let what = "no Lease of a controller exists: no controller has run in this cluster";
        Finding::warn(what, CURE)
    } else {
        Finding::pass(format!("renewed: {}", some(&held)))
    }
}
