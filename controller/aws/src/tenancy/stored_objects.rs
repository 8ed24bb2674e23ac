//! The objects that specify AWS identities: their kinds in the API server, and the fields that are stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::ApiResource;
use kube::{Client, ResourceExt};
use kubelet_attestation::ensure;
use node_attestation_runtime::capi::{
    ClusterObserver, ClusterReferences, ObjectKey, ReferencedObject, listed,
};
use node_attestation_runtime::shared::visit;
use node_attestation_runtime::watch::{Custom, Lenient, MetadataOf, ReadAlone, Unreadable};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::tenancy::store::{IdentityStore, Source};
use crate::tenancy::{
    Cluster, Identity, Infrastructure, Labels, Namespace as NamespaceFacts, ObjectRef, access_key,
};

/// The maximum length of an object's name, and of any other text in a tenant's object. These texts are stored as long
/// as the object exists, and are part of messages.
const MAX_NAME_LEN: usize = 253;

/// The maximum size of a Cluster's labels, in bytes. The labels are stored only if role selectors read them.
const MAX_LABELS_LEN: usize = 8 * 1024;

/// Unparsed JSON.
type Raw = Box<RawValue>;

/// An object that refers to identities, with its unparsed `spec`.
pub(crate) type WithSpec = Custom<Spec>;

/// The only field that the controller reads.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Spec {
    spec: Option<Raw>,
}

impl ReadAlone for Spec {}

/// The references of a Cluster. In both contracts, a reference has a kind and a name.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct References {
    infrastructure_ref: Option<ObjectRef>,
    control_plane_ref: Option<ObjectRef>,
}

/// The API group of the identities, and of the objects that refer to them.
pub(crate) const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The API group of managed control planes.
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";

/// The namespaces of the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The namespace of the Cluster API Provider AWS controller, which contains the Secrets.
    pub capa_namespace: String,
    /// The only namespace whose Clusters are served. `None` if all namespaces are served.
    pub namespace: Option<String>,
    /// The namespace of AWS Controllers for Kubernetes, which contains the `ConfigMap` objects.
    pub ack_namespace: String,
}

/// The kind of an object in the API server.
pub(crate) enum Kind {
    /// A kind of Kubernetes itself.
    BuiltIn,
    /// A custom resource.
    Custom(ApiResource),
    /// The kind is not installed.
    NotServed,
}

/// Looks up the kind for a source.
///
/// # Errors
///
/// Returns an error if the API server does not respond.
pub(crate) async fn kind_of(client: &Client, source: &Source) -> Result<Kind, kube::Error> {
    let (group, kind) = match source {
        Source::Identities(kind) => (INFRASTRUCTURE, kind.to_string()),
        Source::Infrastructure(kind) if kind.ends_with("ControlPlane") => {
            (CONTROL_PLANE, (*kind).to_owned())
        }
        Source::Infrastructure(kind) => (INFRASTRUCTURE, (*kind).to_owned()),
        Source::Clusters => ("cluster.x-k8s.io", "Cluster".to_owned()),
        Source::RoleSelectors => ("services.k8s.aws", "IAMRoleSelector".to_owned()),
        Source::Namespaces | Source::Secret(_) | Source::ConfigMap(_) => {
            return Ok(Kind::BuiltIn);
        }
    };
    // The API server lists the most stable version first. The version is determined separately for each kind, because
    // the versions in Cluster API Provider AWS do not contain this project's identity kind.
    match listed(client, group, &kind).await {
        Ok(resource) => Ok(resource.map_or(Kind::NotServed, Kind::Custom)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Kind::NotServed),
        Err(error) => Err(error),
    }
}

pub(crate) fn key_of(object: &impl ResourceExt) -> ObjectKey {
    ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// Replaces the stored fields of an object. `None` removes the object.
///
/// # Errors
///
/// Returns an error if the object cannot be parsed. The store keeps the object as unreadable, and its cluster's
/// condition reports it.
pub(crate) fn put_custom(
    store: &IdentityStore,
    source: &Source,
    key: &ObjectKey,
    object: Option<&WithSpec>,
) -> Result<(), Unreadable> {
    let none = "null";
    let spec = object.map(|object| match &object.object {
        Ok(Spec { spec }) => Ok(spec.as_ref().map_or(none, |spec| spec.get())),
        Err(unreadable) => Err(unreadable.clone()),
    });
    let ObjectKey { namespace, name } = key;
    match source {
        Source::Identities(kind) => {
            let spec = spec.map(|spec| spec.unwrap_or(none));
            // Parsed and dropped without holding the lock, because a tenant's identity object can be long.
            let identity = spec.map(|spec| {
                visit();
                Identity::parse(*kind, spec)
            });
            let is_readable = identity.as_ref().is_none_or(Identity::is_readable);
            let not_kept: Vec<_> = store.update(|objects| {
                if let Some(identity) = identity {
                    return objects.put_identity(namespace, name, identity);
                }
                let former = objects.remove_identity(*kind, namespace, name);
                former.into_iter().collect()
            });
            drop(not_kept);
            ensure!(is_readable, Unreadable::because("its spec is invalid"));
        }
        Source::Infrastructure(kind) => {
            let found = spec.map(|spec| infrastructure(spec?));
            let error = found
                .as_ref()
                .and_then(|found| found.as_ref().err())
                .cloned();
            store.put_infrastructure(kind, key.clone(), found);
            return error.map_or(Ok(()), Err);
        }
        Source::Clusters => {
            let found = object.zip(spec);
            let found = found.map(|(object, spec)| {
                let References {
                    infrastructure_ref,
                    control_plane_ref,
                } = serde_json::from_str::<Option<_>>(spec?)?.unwrap_or_default();
                let labels = object.metadata.labels.as_ref();
                cluster(store, key, labels, [infrastructure_ref, control_plane_ref])
            });
            let error = found
                .as_ref()
                .and_then(|found| found.as_ref().err())
                .cloned();
            store.put_cluster(key.clone(), found);
            return error.map_or(Ok(()), Err);
        }
        Source::RoleSelectors => {
            let mut is_readable = true;
            let spec = spec.map(|spec| spec.unwrap_or(none));
            store.update(|objects| is_readable = objects.put_role_selector(name, spec));
            ensure!(is_readable, Unreadable::because("its spec is invalid"));
        }
        Source::Namespaces | Source::Secret(_) | Source::ConfigMap(_) => {}
    }
    Ok(())
}

/// Returns the stored fields of an object that refers to an identity. Names that are too long for an object are
/// rejected.
fn infrastructure(spec: &str) -> Result<Infrastructure, Unreadable> {
    let found: Option<Infrastructure> = serde_json::from_str(spec)?;
    let found = found.unwrap_or_default();
    let identity = found.identity_ref.iter();
    let texts = identity.flat_map(|identity| {
        let texts = [Some(&identity.kind), Some(&identity.name)];
        texts.into_iter().chain([identity.namespace.as_ref()])
    });
    are_short(texts.chain([found.region.as_ref()]).flatten())?;
    Ok(found)
}

/// Returns the stored fields of a Cluster, with its references to its infrastructure and its control plane.
fn cluster(
    store: &IdentityStore,
    key: &ObjectKey,
    labels: Option<&Labels>,
    [infrastructure, control_plane]: [Option<ObjectRef>; 2],
) -> Result<Cluster, Unreadable> {
    let references = infrastructure.iter().chain(&control_plane);
    are_short(references.flat_map(|reference| [&reference.kind, &reference.name]))?;
    let labels = labels.filter(|_| store.reads_cluster_labels());
    let len: usize = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    ensure!(
        len <= MAX_LABELS_LEN,
        Unreadable::because("its labels are longer than 8 KiB")
    );
    Ok(Cluster {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        labels: labels.cloned().unwrap_or_default(),
        infrastructure,
        control_plane,
    })
}

/// The store observes the existing Cluster watch.
impl ClusterObserver for IdentityStore {
    fn put(
        &self,
        key: &ObjectKey,
        found: Option<Result<ClusterReferences<'_>, Unreadable>>,
    ) -> Result<(), Unreadable> {
        let found = found.map(|found| {
            let ClusterReferences {
                labels,
                infrastructure,
                control_plane,
            } = found?;
            let references = [object_ref(infrastructure)?, object_ref(control_plane)?];
            cluster(self, key, labels, references)
        });
        let error = found.as_ref().and_then(|found| found.as_ref().err());
        let error = error.cloned();
        self.put_cluster(key.clone(), found);
        error.map_or(Ok(()), Err)
    }

    fn listed(&self, clusters: &BTreeSet<ObjectKey>) {
        self.retain(&Source::Clusters, clusters);
        self.read(&Source::Clusters);
    }

    fn heard(&self) {
        Self::heard(self, &Source::Clusters);
    }

    fn failed(&self) {
        Self::failed(self, &Source::Clusters);
    }
}

/// A reference without a kind or name is an error, and does not count as a missing reference.
fn object_ref(found: Option<ReferencedObject<'_>>) -> Result<Option<ObjectRef>, Unreadable> {
    let Some(found) = found else {
        return Ok(None);
    };
    let (Some(kind), Some(name)) = (found.kind, found.name) else {
        return Err(Unreadable::because(
            "a reference in its spec has no kind or no name",
        ));
    };
    Ok(Some(ObjectRef {
        kind: kind.to_owned(),
        name: name.to_owned(),
    }))
}

fn are_short<'a>(texts: impl IntoIterator<Item = &'a String>) -> Result<(), Unreadable> {
    let is_long = texts.into_iter().any(|text| text.len() > MAX_NAME_LEN);
    ensure!(
        !is_long,
        Unreadable::because("a name in its spec is longer than 253 bytes")
    );
    Ok(())
}

/// Replaces a Namespace. If it cannot be parsed, the last readable state remains in use.
///
/// # Errors
///
/// Returns an error if the Namespace cannot be parsed.
pub(crate) fn put_namespace(
    store: &IdentityStore,
    key: &ObjectKey,
    object: Option<&MetadataOf<Namespace>>,
) -> Result<(), Unreadable> {
    readable(object)?;
    let facts = object.map(|object| NamespaceFacts::new(object.labels(), object.annotations()));
    store.update(|objects| match facts {
        Some(facts) => drop(objects.namespaces.insert(key.name.clone(), facts)),
        None => drop(objects.namespaces.remove(&key.name)),
    });
    Ok(())
}

/// Replaces a Secret. If it cannot be parsed, the stored Secret has no keys.
///
/// # Errors
///
/// Returns an error if the Secret cannot be parsed.
pub(crate) fn put_secret(
    store: &IdentityStore,
    name: &str,
    object: Option<&Lenient<Secret>>,
) -> Result<(), Unreadable> {
    let key = object.map(|object| {
        let secret = object.object.as_ref().ok();
        let data = secret.and_then(|secret| secret.data.as_ref());
        let data = data.into_iter().flatten();
        let data = data.map(|(key, ByteString(value))| (&**key, &**value));
        access_key(&data.collect()).map(Arc::new)
    });
    store.update(|objects| match key {
        Some(key) => drop(objects.access_keys.insert(name.to_owned(), key)),
        None => drop(objects.access_keys.remove(name)),
    });
    readable(object)
}

/// Replaces a `ConfigMap`. If it cannot be parsed, the stored `ConfigMap` is empty.
///
/// # Errors
///
/// Returns an error if the `ConfigMap` cannot be parsed.
pub(crate) fn put_config_map(
    store: &IdentityStore,
    name: &str,
    object: Option<&Lenient<ConfigMap>>,
) -> Result<(), Unreadable> {
    let data = object.map(|object| {
        let map = object.object.as_ref().ok();
        let data: Option<BTreeMap<_, _>> = map.and_then(|map| map.data.clone());
        data.unwrap_or_default()
    });
    store.update(|objects| objects.put_config_map(name, data));
    readable(object)
}

/// The error for an object that exists but cannot be parsed.
fn readable<K, R>(object: Option<&Lenient<K, R>>) -> Result<(), Unreadable> {
    match object.map(|object| &object.object) {
        Some(Err(error)) => Err(error.clone()),
        Some(Ok(_)) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
