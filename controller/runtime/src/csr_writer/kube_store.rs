//! Requests in a Kubernetes API server.

use futures::future::BoxFuture;
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

impl RequestStore for KubeStore {
    fn get<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CertificateSigningRequest>, CallError>> {
        Box::pin(call(self.api.get_opt(name)))
    }

    fn update<'a>(
        &'a self,
        subresource: &'static str,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, CallError>> {
        Box::pin(async move {
            let name = request.metadata.name.as_deref().unwrap_or_default();
            let parameters = post(CONTROLLER);
            let replaced = self
                .api
                .replace_subresource(subresource, name, &parameters, request);
            call(replaced).await
        })
    }
}
