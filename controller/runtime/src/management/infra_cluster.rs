//! Writes the names of the signers to the status of the `InfraCluster`, if its kind has the fields of the proposal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Resource as _;
use kube::api::{Api, GetParams, Patch, PatchParams};
use kube::core::ApiResource;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::KubeletAuthenticationStatus;
use node_attestation_core::refusal::Unavailable;
use serde_json::{Value, json};

use super::Shared;
use crate::capi::{ObjectKey, Reference};
use crate::client::{in_time, on_behalf_of};
use crate::watch::{Custom, NoFields};

/// The deadline for all four calls together.
const DEADLINE: Duration = Duration::from_secs(20);

/// The fields of the proposal ("Kubelet authentication: `InfraCluster`").
const CLIENT_SIGNER: &str = "kubeletClientCertificateSigner";
const SERVING_SIGNER: &str = "kubeletServingCertificateSigner";

/// The writer of one cluster's `InfraCluster`.
pub(super) struct InfraCluster {
    shared: Arc<Shared>,
    cluster: ObjectKey,
    /// Whether each kind has the fields. Its definition is read once.
    kinds: BTreeMap<(String, String), bool>,
    written: Option<(Reference, Value)>,
}

impl InfraCluster {
    pub(super) fn new(shared: Arc<Shared>, cluster: ObjectKey) -> Self {
        Self {
            shared,
            cluster,
            kinds: BTreeMap::new(),
            written: None,
        }
    }

    /// Writes the signers of `status`, if they differ from the last written ones. The next call repeats a failed write.
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
        if self.written.as_ref() == Some(&next) {
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
                    "the signers were not written to the InfraCluster"
                );
            }
        }
    }

    async fn patch(
        &mut self,
        (reference, signers): &(Reference, Value),
    ) -> Result<(), kube::Error> {
        let namespace = &self.cluster.namespace;
        let Some(resource) = self.shared.objects.resource(namespace, reference).await? else {
            return Ok(());
        };
        if !self.has_fields(&resource).await? {
            return Ok(());
        }
        let client = self.shared.controller.management.clone();
        let api: Api<Custom<NoFields>> =
            Api::namespaced_with(client, &self.cluster.namespace, &resource);
        let patch = json!({ "status": signers });
        let parameters = PatchParams::default();
        api.patch_status(&reference.name, &parameters, &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    async fn has_fields(&mut self, resource: &ApiResource) -> Result<bool, kube::Error> {
        let kind = (resource.api_version.clone(), resource.plural.clone());
        if let Some(has) = self.kinds.get(&kind) {
            return Ok(*has);
        }
        let name = format!("{}.{}", resource.plural, resource.group);
        let definitions = CustomResourceDefinition::url_path(&(), None);
        let request = kube::api::Request::new(definitions).get(&name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let request = on_behalf_of(request, &self.cluster.namespace);
        let management = &self.shared.controller.management;
        let has = match management.request(request).await {
            Ok(definition) => has_fields(&definition, &resource.version),
            Err(kube::Error::Api(status)) if status.code == 404 => false,
            Err(error) => return Err(error),
        };
        self.kinds.insert(kind, has);
        Ok(has)
    }
}

fn has_fields(definition: &CustomResourceDefinition, version: &str) -> bool {
    let versions = &definition.spec.versions;
    let schema = versions
        .iter()
        .find(|one| one.name == version)
        .filter(|one| {
            let subresources = one.subresources.as_ref();
            subresources.is_some_and(|subresources| subresources.status.is_some())
        })
        .and_then(|one| one.schema.as_ref()?.open_api_v3_schema.as_ref())
        .and_then(|schema| schema.properties.as_ref()?.get("status"))
        .and_then(|status| status.properties.as_ref());
    schema.is_some_and(|fields| {
        [CLIENT_SIGNER, SERVING_SIGNER]
            .iter()
            .all(|field| fields.contains_key(*field))
    })
}
