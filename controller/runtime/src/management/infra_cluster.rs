//! Writes the signer names to the status of the `InfraCluster`, if its kind has the fields from the proposal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::core::ApiResource;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::KubeletAuthenticationStatus;
use node_attestation_core::refusal::Unavailable;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::condition_events::in_turn;
use crate::capi::{Lookups, ObjectKey, Objects, Reference};
use crate::client::in_time;
use crate::turns::FairRate;
use crate::watch::{Custom, Lenient, NoFields, one_on_behalf_of, patched_status, read_alone};

/// The deadline for all four calls together.
const DEADLINE: Duration = Duration::from_secs(20);

/// The time for which the definition of a kind is assumed to be unchanged.
const DEFINITION_KEPT: Duration = Duration::from_mins(10);

/// The status fields from the proposal ("Kubelet authentication: `InfraCluster`").
const CLIENT_SIGNER: &str = "kubeletClientCertificateSigner";
const SERVING_SIGNER: &str = "kubeletServingCertificateSigner";

/// Whether each kind has the fields, keyed by version and plural. All clusters share the results, because a definition
/// can be a megabyte long, and a tenant can refer to a different kind in each of its Clusters.
pub(super) type Definitions = Lookups<bool>;

/// Creates an empty set of definitions.
pub(super) fn definitions() -> Definitions {
    Definitions::new(DEFINITION_KEPT)
}

/// The Clusters of a tenant refer to too many kinds at the same time.
#[derive(Debug, thiserror::Error)]
#[error("too many concurrent reads of custom resource definitions for this namespace")]
struct TooManyDefinitions;

/// Writes the `InfraCluster` status of one cluster.
pub(super) struct InfraCluster {
    management: Client,
    objects: Objects,
    cluster: ObjectKey,
    definitions: Arc<Definitions>,
    /// The shared rate of status writes for all clusters.
    rate: Arc<FairRate>,
    written: Option<(Reference, Value)>,
}

impl InfraCluster {
    pub(super) fn new(
        management: Client,
        objects: Objects,
        (definitions, rate): (Arc<Definitions>, Arc<FairRate>),
        cluster: ObjectKey,
    ) -> Self {
        Self {
            management,
            objects,
            cluster,
            definitions,
            rate,
            written: None,
        }
    }

    /// Writes the signer names in `status`, if they differ from the names that were last written. If a write failed or
    /// did not get a turn, the next call repeats it.
    pub(super) async fn write(
        &mut self,
        reference: &Reference,
        status: &KubeletAuthenticationStatus,
    ) {
        let signers = json!({
            CLIENT_SIGNER: status.kubelet_client_certificate_signer,
            SERVING_SIGNER: status.kubelet_serving_certificate_signer,
        });
        let next = (reference.clone(), signers);
        if self.written.as_ref() == Some(&next) || !in_turn(&self.rate, &self.cluster).await {
            return;
        }
        match in_time(DEADLINE, self.patch(&next)).await {
            Ok(()) => self.written = Some(next),
            Err(error) => {
                let error = error_chain(&Unavailable::from(error));
                let cluster = self.cluster.to_string();
                tracing::debug!(
                    cluster,
                    error,
                    "cannot write the signers to the InfraCluster"
                );
            }
        }
    }

    async fn patch(&self, (reference, signers): &(Reference, Value)) -> Result<(), kube::Error> {
        let namespace = self.cluster.namespace.as_str();
        let (client, definitions) = (&self.management, &*self.definitions);
        let patched = self
            .objects
            .call_served(namespace, reference, move |resource| async move {
                if !is_with_fields((client, namespace), definitions, &resource).await? {
                    return Ok(());
                }
                let api: Api<Custom<NoFields>> =
                    Api::namespaced_with(client.clone(), namespace, &resource);
                let patch = json!({ "status": signers });
                let parameters = PatchParams::default();
                let patch = Patch::Merge(&patch);
                Box::pin(patched_status(&api, &reference.name, &parameters, &patch)).await
            });
        Box::pin(patched).await.map_err(kube::Error::from)
    }
}

/// Whether this kind has the fields from the proposal.
async fn is_with_fields(
    (client, namespace): (&Client, &str),
    definitions: &Definitions,
    resource: &ApiResource,
) -> kube::Result<bool> {
    let ApiResource {
        group,
        version,
        plural,
        ..
    } = resource;
    let look_up = || {
        Box::pin(async move {
            let api: Api<Lenient<Definition, CustomResourceDefinition>> = Api::all(client.clone());
            let name = format!("{plural}.{group}");
            let found = one_on_behalf_of(namespace, &api, &name).await?;
            let definition = found.and_then(|found| found.object.ok());
            let has = definition.is_some_and(|definition| has_fields(&definition, version));
            Ok::<_, kube::Error>(Some(has))
        })
    };
    let kind = (group.clone(), Some(version.clone()), plural.clone());
    let has = definitions.get(namespace, &kind, look_up).await?;
    has.ok_or_else(|| kube::Error::Service(TooManyDefinitions.into()))
}

/// The required fields of a `CustomResourceDefinition`. The decoder for kube's type would reject a deeply nested
/// schema.
#[derive(Debug, Clone, Deserialize)]
struct Definition {
    spec: DefinitionSpec,
}

#[derive(Debug, Clone, Deserialize)]
struct DefinitionSpec {
    versions: Vec<Version>,
}

#[derive(Debug, Clone, Deserialize)]
struct Version {
    name: String,
    subresources: Option<Subresources>,
    schema: Option<Schema>,
}

#[derive(Debug, Clone, Deserialize)]
struct Subresources {
    status: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Deserialize)]
struct Schema {
    #[serde(rename = "openAPIV3Schema")]
    properties: Option<Properties<Object>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Object {
    #[expect(clippy::zero_sized_map_values, reason = "only the names are read")]
    status: Option<Properties<BTreeMap<String, IgnoredAny>>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Properties<T> {
    properties: Option<T>,
}

read_alone! {
    "CustomResourceDefinition of an InfraCluster" => Definition,
}

fn has_fields(definition: &Definition, version: &str) -> bool {
    let mut versions = definition.spec.versions.iter();
    let version = versions.find(|one| one.name == version).filter(|one| {
        let subresources = one.subresources.as_ref();
        subresources.is_some_and(|subresources| subresources.status.is_some())
    });
    let schema = version.and_then(|one| one.schema.as_ref()?.properties.as_ref());
    let object = schema.and_then(|schema| schema.properties.as_ref());
    let status = object.and_then(|object| object.status.as_ref()?.properties.as_ref());
    status.is_some_and(|fields| {
        [CLIENT_SIGNER, SERVING_SIGNER]
            .iter()
            .all(|field| fields.contains_key(*field))
    })
}

#[cfg(test)]
mod tests;
