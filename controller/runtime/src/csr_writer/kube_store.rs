//! Requests in a Kubernetes API server.

use std::error::Error;

use futures::future::BoxFuture;
use hyper::StatusCode;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::Api;
use kube::core::Status;
use kube::{Client, Error as KubeError};

use super::RequestStore;
use crate::client::{CALL_DEADLINE, CONTROLLER, CallError, call, post};

/// A request could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It has changed since it was read; nothing was written.
    #[error("the request has changed meanwhile")]
    Conflict,
    /// There is no such request; nothing was written.
    #[error("the request exists no longer")]
    Gone,
    /// The API server refused; nothing was written.
    #[error("the API server refused with {} {}: {}", .0.code, .0.reason, .0.message)]
    Refused(Box<Status>),
    /// The API server gave no answer, or none that says what it did.
    #[error("the API server gave no answer")]
    Unavailable {
        /// The reason.
        source: Box<dyn Error + Send + Sync>,
    },
    /// There was no answer in time.
    #[error("the API server gave no answer in {} s", CALL_DEADLINE.as_secs())]
    Deadline,
}

impl StoreError {
    /// Whether the same write will be refused for ever: the object itself is refused, and not the
    /// writer or the moment.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == StatusCode::UNPROCESSABLE_ENTITY)
    }
}

impl From<CallError> for StoreError {
    fn from(error: CallError) -> Self {
        if error.is_conflict() {
            return Self::Conflict;
        }
        if error.is_not_found() {
            return Self::Gone;
        }
        let error = match error {
            CallError::Deadline(_) => return Self::Deadline,
            CallError::Api(error) => *error,
        };
        if let KubeError::Api(status) = error {
            return Self::Refused(status);
        }
        Self::Unavailable {
            source: Box::new(error),
        }
    }
}

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

    async fn replace(
        &self,
        subresource: &str,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, StoreError> {
        let name = request.metadata.name.as_deref().unwrap_or_default();
        let parameters = post(CONTROLLER);
        let api = &self.api;
        let replaced = api.replace_subresource(subresource, name, &parameters, request);
        Ok(call(replaced).await?)
    }
}

impl RequestStore for KubeStore {
    fn get<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<CertificateSigningRequest>, StoreError>> {
        Box::pin(async move { Ok(call(self.api.get_opt(name)).await?) })
    }

    fn update_approval<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, StoreError>> {
        Box::pin(self.replace("approval", request))
    }

    fn update_status<'a>(
        &'a self,
        request: &'a CertificateSigningRequest,
    ) -> BoxFuture<'a, Result<CertificateSigningRequest, StoreError>> {
        Box::pin(self.replace("status", request))
    }
}
