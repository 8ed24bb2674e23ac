//! Explains the AWS identity of one Cluster to an operator. The objects are read once, with the operator's permissions.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::{Client, Error};
use kubelet_attestation::names::is_dns_subdomain;
use node_attestation_core::crd::KubeletAuthentication;
use node_attestation_runtime::capi::ObjectKey;
use node_attestation_runtime::watch::{Lenient, NoFields, one_of, page_of, readable_one_of};
use tokio::time::timeout;

use crate::credentials::ClusterTenant;
use crate::tenancy::store::{IdentityError, IdentityStore, Source};
use crate::tenancy::stored_objects::{
    Kind, Places, WithSpec, key_of, kind_of, put_config_map, put_custom, put_namespace, put_secret,
};
use crate::tenancy::{
    Ack, Cluster, DecidedBy, Explanation, IdentityKind, ResolutionError, TenancySettings,
};

/// The deadline for a call.
const CALL: Duration = Duration::from_secs(10);

/// The identity of a Cluster, and the controller's report about it.
#[derive(Debug)]
pub struct Explained {
    /// The resolution, based on the objects that could be read.
    pub explanation: Explanation,
    /// The first object that could not be read, at which the resolution stopped.
    pub unread: Option<ExplainError>,
    /// The Cluster's `KubeletAuthentication`. `None` if the Cluster has none.
    pub authentication: Option<KubeletAuthentication>,
}

/// The reason why the identity of a Cluster cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    /// The Cluster does not exist.
    #[error(transparent)]
    Cluster(#[from] IdentityError),
    /// A required object cannot be read.
    #[error("cannot read {what}")]
    Read {
        /// The kind of the object.
        what: String,
        /// The error.
        source: Box<Error>,
    },
    /// The API server did not respond in time.
    #[error("cannot read {0}: no response in time")]
    NoAnswer(String),
}

/// Reads the objects of one Cluster.
pub(crate) struct Reader<'a> {
    pub(crate) client: &'a Client,
    pub(crate) places: &'a Places,
    pub(crate) store: IdentityStore,
}

/// Resolves the identity of a Cluster as the controller does with these settings, from the objects that `client` reads.
/// Reads only the objects that the resolution needs.
///
/// # Errors
///
/// Returns an error if the Cluster does not exist or cannot be read.
pub async fn explain(
    client: &Client,
    places: &Places,
    settings: TenancySettings,
    cluster: ObjectKey,
) -> Result<Explained, ExplainError> {
    let reader = Reader {
        client,
        places,
        store: IdentityStore::new(settings, &places.capa_namespace),
    };
    if !is_dns_subdomain(&cluster.name) || !is_dns_subdomain(&cluster.namespace) {
        return Err(IdentityError::ClusterNotFound(cluster).into());
    }
    reader.read(&Source::Clusters, &cluster).await?;
    let namespace = ObjectKey::new("", cluster.namespace.as_str());
    let mut unread = reader.read(&Source::Namespaces, &namespace).await.err();
    let authentication: Api<KubeletAuthentication> =
        Api::namespaced(client.clone(), &cluster.namespace);
    let authentication = readable_one_of(&authentication, &cluster.name);
    let authentication = in_time("KubeletAuthentication", authentication).await;
    let authentication = authentication.unwrap_or_else(|error| {
        unread.get_or_insert(error);
        None
    });
    let spec = authentication.as_ref().map(|found| &found.spec);
    let aws = spec.and_then(|spec| spec.aws.as_ref());
    let tenant = ClusterTenant {
        service_account_identity: aws.and_then(|aws| aws.service_account_identity.clone()),
        ..ClusterTenant::new(cluster)
    };
    let mut tried = BTreeSet::new();
    let explanation = loop {
        let explanation = reader.store.explain(&tenant)?;
        let next = missing(&explanation, &tenant.cluster.namespace, settings);
        let Some((source, key)) = next.filter(|next| unread.is_none() && !tried.contains(next))
        else {
            break explanation;
        };
        unread = reader.read(&source, &key).await.err();
        tried.insert((source, key));
    };
    Ok(Explained {
        explanation,
        unread,
        authentication,
    })
}

/// Returns the missing object at which a resolution stops. An invalid name never becomes part of a URL path, because a
/// tenant controls the names.
fn missing(
    explanation: &Explanation,
    of_cluster: &str,
    settings: TenancySettings,
) -> Option<(Source, ObjectKey)> {
    use DecidedBy::{Fallback, RoleSelectors};
    let is_by_selectors = matches!(explanation.decided_by, RoleSelectors | Fallback);
    if settings.ack == Ack::RoleSelectors && is_by_selectors {
        return Some((Source::RoleSelectors, ObjectKey::new("", "")));
    }
    let error = explanation.plan.as_ref().err()?;
    missing_for(error, of_cluster).filter(|(_, key)| is_dns_subdomain(&key.name))
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other errors are of objects that were read"
)]
fn missing_for(error: &ResolutionError, of_cluster: &str) -> Option<(Source, ObjectKey)> {
    match error {
        ResolutionError::InfrastructureNotFound {
            kind,
            name,
            namespace,
        } => {
            let kind = Cluster::DECIDERS.into_iter().find(|one| one == kind)?;
            let key = ObjectKey::new(namespace.as_str(), name.as_str());
            Some((Source::Infrastructure(kind), key))
        }
        ResolutionError::IdentityNotFound { identity } => {
            let namespace = match identity.kind {
                IdentityKind::ServiceAccount => of_cluster,
                IdentityKind::Controller | IdentityKind::Static | IdentityKind::Role => "",
            };
            let key = ObjectKey::new(namespace, identity.name.as_str());
            Some((Source::Identities(identity.kind), key))
        }
        ResolutionError::SecretNotFound {
            namespace, name, ..
        } => {
            let key = ObjectKey::new(namespace.as_str(), name.as_str());
            Some((Source::Secret(name.clone()), key))
        }
        ResolutionError::CarmMapNotFound(name) => {
            Some((Source::ConfigMap(name), ObjectKey::new("", *name)))
        }
        _ => None,
    }
}

impl Reader<'_> {
    /// Reads an object into the store. A missing object is not an error.
    pub(crate) async fn read(&self, source: &Source, key: &ObjectKey) -> Result<(), ExplainError> {
        let what = source.to_string();
        let kind = in_time(&what, kind_of(self.client, source)).await?;
        let (client, store) = (self.client.clone(), &self.store);
        match (source, kind) {
            (_, Kind::NotServed) => {}
            (Source::RoleSelectors, Kind::Custom(resource)) => {
                let api: Api<WithSpec> = Api::all_with(client, &resource);
                let page = ListParams::default();
                for object in in_time(&what, page_of(&api, &page)).await? {
                    // The explanation reports objects that cannot be parsed.
                    drop(put_custom(store, source, &key_of(&object), Some(&object)));
                }
            }
            (_, Kind::Custom(resource)) => {
                let api: Api<WithSpec> = if source.is_namespaced() {
                    Api::namespaced_with(client, &key.namespace, &resource)
                } else {
                    Api::all_with(client, &resource)
                };
                let object = in_time(&what, one_of(&api, &key.name)).await?;
                drop(put_custom(store, source, key, object.as_ref()));
            }
            (Source::Secret(name), _) => {
                let api = Api::namespaced(client, &key.namespace);
                let object = in_time(&what, one_of(&api, name)).await?;
                drop(put_secret(store, name, object.as_ref()));
            }
            (Source::ConfigMap(name), _) => {
                let api = Api::namespaced(client, &self.places.ack_namespace);
                let object = in_time(&what, one_of(&api, name)).await?;
                drop(put_config_map(store, name, object.as_ref()));
            }
            (_, Kind::BuiltIn) => {
                let api: Api<Lenient<NoFields, Namespace>> = Api::all(client);
                let object = in_time(&what, one_of(&api, &key.name)).await?;
                drop(put_namespace(store, key, object.as_ref()));
            }
        }
        Ok(())
    }
}

fn in_time<T>(
    what: &str,
    call: impl Future<Output = Result<T, Error>>,
) -> impl Future<Output = Result<T, ExplainError>> {
    let call = Box::pin(call);
    async move {
        let answer = timeout(CALL, call).await;
        let answer = answer.map_err(|_| ExplainError::NoAnswer(what.to_owned()))?;
        answer.map_err(|source| ExplainError::Read {
            what: what.to_owned(),
            source: Box::new(source),
        })
    }
}
