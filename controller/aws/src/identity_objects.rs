//! The objects that name AWS identities: their kinds at the API server, and what the store has of each.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt, discovery};
use node_attestation_runtime::capi::ObjectKey;
use serde::Deserialize;
use serde_json::Value;

use crate::identity_store::{IdentityStore, Source};
use crate::tenancy::{Cluster, Infrastructure, Namespace as NamespaceFacts, ObjectRef, access_key};

/// The group of the identities, and of the objects that name them.
pub(crate) const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";

/// The group of managed control planes.
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io";

/// The places of the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The namespace of the controller of Cluster API Provider AWS, in which the Secrets are.
    pub capa_namespace: String,
    /// The only namespace of Clusters that counts; `None` for all.
    pub namespace: Option<String>,
    /// The namespace of AWS Controllers for Kubernetes, in which the config maps are.
    pub ack_namespace: String,
}

/// A kind of objects at the API server.
pub(crate) enum Kind {
    /// Of Kubernetes.
    BuiltIn,
    /// A custom resource.
    Custom(ApiResource),
    /// Nobody has installed it.
    NotServed,
}

/// The kind of a source.
///
/// # Errors
///
/// The API server does not say.
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
    let found = match discovery::group(client, group).await {
        Ok(found) => found,
        Err(kube::Error::Discovery(_)) => return Ok(Kind::NotServed),
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Kind::NotServed),
        Err(error) => return Err(error),
    };
    // Each in its own most stable version: our identity is in no version of the provider's.
    let mut resources = found.resources_by_stability().into_iter();
    let resource = resources.find(|(resource, _)| resource.kind == kind);
    Ok(resource.map_or(Kind::NotServed, |(resource, _)| Kind::Custom(resource)))
}

pub(crate) fn key_of(object: &impl ResourceExt) -> ObjectKey {
    ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any())
}

pub(crate) fn put_custom(
    store: &IdentityStore,
    source: &Source,
    key: &ObjectKey,
    object: Option<&DynamicObject>,
) {
    let null = Value::Null;
    let spec = object.map(|object| object.data.get("spec").unwrap_or(&null));
    let ObjectKey { namespace, name } = key;
    match source {
        Source::Identities(kind) => store.update(|objects| match spec {
            Some(spec) => objects.put_identity(*kind, namespace, name, spec),
            None => objects.remove_identity(*kind, namespace, name),
        }),
        Source::Infrastructure(kind) => {
            // What cannot be read names no identity, and leads to none.
            let found = spec.and_then(|spec| Infrastructure::deserialize(spec).ok());
            store.put_infrastructure(kind, key.clone(), found);
        }
        Source::Clusters => {
            let cluster = object.and_then(|object| Some(cluster(key, object, spec?)));
            store.put_cluster(key.clone(), cluster);
        }
        Source::RoleSelectors => store.update(|objects| {
            objects.put_role_selector(name, spec);
        }),
        Source::Namespaces | Source::Secret(_) | Source::ConfigMap(_) => {}
    }
}

/// References of both contracts have a kind and a name.
fn cluster(key: &ObjectKey, object: &DynamicObject, spec: &Value) -> Cluster {
    let reference = |field| ObjectRef::deserialize(spec.get(field)?).ok();
    Cluster {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        labels: object.labels().clone(),
        infrastructure: reference("infrastructureRef"),
        control_plane: reference("controlPlaneRef"),
    }
}

pub(crate) fn put_namespace(
    store: &IdentityStore,
    key: &ObjectKey,
    object: Option<&PartialObjectMeta<Namespace>>,
) {
    let facts = object.map(|object| NamespaceFacts::new(object.labels(), object.annotations()));
    store.update(|objects| match facts {
        Some(facts) => drop(objects.namespaces.insert(key.name.clone(), facts)),
        None => drop(objects.namespaces.remove(&key.name)),
    });
}

pub(crate) fn put_secret(store: &IdentityStore, name: &str, object: Option<&Secret>) {
    let data = object.map(|object| object.data.iter().flatten());
    let data = data.map(|data| {
        data.map(|(key, ByteString(value))| (&**key, &**value))
            .collect()
    });
    let key = data.map(|data| access_key(&data).map(Arc::new));
    store.update(|objects| match key {
        Some(key) => drop(objects.access_keys.insert(name.to_owned(), key)),
        None => drop(objects.access_keys.remove(name)),
    });
}
