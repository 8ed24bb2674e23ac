//! Requests in a Kubernetes API server.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use kube::api::Api;

use super::RequestStore;
use crate::client::{CONTROLLER, CallError, call, post};

/// The requests of one Kubernetes API server.
#[derive(Debug, Clone)]
pub struct KubeStore {
    api: Api<CertificateSigningRequest>,
}

impl KubeStore {
    /// The requests of the API server that `client` speaks to.
    pub fn new(client: Client) -> Self {
        Self {
            api: Api::all(client),
        }
    }
}

#[async_trait::async_trait]
impl RequestStore for KubeStore {
    async fn get(&self, name: &str) -> Result<Option<CertificateSigningRequest>, CallError> {
        call(self.api.get_opt(name)).await
    }

    async fn update(
        &self,
        subresource: &'static str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, CallError> {
        let name = request.metadata.name.as_deref().unwrap_or_default();
        let parameters = post(CONTROLLER);
        let replaced = self
            .api
            .replace_subresource(subresource, name, &parameters, request);
        call(replaced).await
    }
}
