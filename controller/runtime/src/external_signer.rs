//! The external signer: a program that holds CA keys, and signs over a Unix socket (docs/signers.md).
//!
//! # Guarantees
//!
//! - A signer that is unavailable, slow, overloaded or faulty only delays certificates. Each call has a deadline, and
//!   each response has a size limit.
//! - The number of concurrent calls is limited for each cluster. The calls of all clusters take turns by namespace, so
//!   that slow keys do not block other clusters' keys.
//! - Error messages from the signer are truncated and sanitized before they are logged.

mod client;
mod endpoint;

use std::sync::Arc;

use node_attestation_core::refusal::Unavailable;
use node_attestation_core::signer::{
    ExternalKey, ExternalKeyError, SignatureAlgorithm, SigningRequest,
};
use node_attestation_signer_api as api;
use sha2::{Digest as _, Sha256};
use tonic::Code;

use crate::metrics::Metrics;
use crate::object_key::ObjectKey;
use crate::turns::Line;
use client::{Client, SignerCallError};
pub use endpoint::{InvalidEndpoint, SignerEndpoint};

/// The external signer of a controller. Clones share their state.
#[derive(Debug, Clone)]
pub struct ExternalSigner(Arc<Client>);

/// The CA key of one cluster.
#[derive(Debug)]
struct ClusterKey {
    client: Arc<Client>,
    namespace: String,
    name: String,
    line: Line,
}

impl ExternalSigner {
    /// Creates a client for the signer at this endpoint. The client connects when it makes the first call, and
    /// reconnects after a failure.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime.
    pub fn new(endpoint: SignerEndpoint, metrics: Metrics) -> Self {
        Self(Arc::new(Client::new(endpoint, metrics)))
    }

    /// The CA key for the Cluster with this namespace and name. Both are empty without a management cluster.
    pub fn key(&self, namespace: &str, name: &str) -> Arc<dyn ExternalKey> {
        Arc::new(ClusterKey {
            client: self.0.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            line: self.0.calls.line(&ObjectKey::new(namespace, name)),
        })
    }
}

#[async_trait::async_trait]
impl ExternalKey for ClusterKey {
    async fn check(&self) -> Result<(), ExternalKeyError> {
        self.client.check().await.map_err(of_call)
    }

    fn signs_kubelet_serving(&self) -> bool {
        self.client.signs_kubelet_serving()
    }

    async fn sign(&self, request: &SigningRequest<'_>) -> Result<Vec<u8>, ExternalKeyError> {
        let algorithm = match request.algorithm {
            SignatureAlgorithm::EcdsaP256Sha256 => api::SignatureAlgorithm::EcdsaP256Sha256,
            SignatureAlgorithm::EcdsaP384Sha384 => api::SignatureAlgorithm::EcdsaP384Sha384,
            SignatureAlgorithm::EcdsaP521Sha512 => api::SignatureAlgorithm::EcdsaP521Sha512,
            SignatureAlgorithm::RsaPkcs1Sha256 => api::SignatureAlgorithm::RsaPkcs1Sha256,
        };
        let request = api::SignRequest {
            ca_certificate_sha256: Sha256::digest(request.ca_der).to_vec(),
            cluster_namespace: self.namespace.clone(),
            cluster_name: self.name.clone(),
            algorithm: algorithm.into(),
            tbs_certificate: request.to_be_signed.to_vec(),
        };
        let signed = self.client.sign(&self.line, request).await;
        signed.map_err(of_call)
    }
}

fn of_call(error: SignerCallError) -> ExternalKeyError {
    if error.code == Code::PermissionDenied {
        ExternalKeyError::Refused(Unavailable::new(error))
    } else {
        ExternalKeyError::Unavailable(Unavailable::new(error))
    }
}

#[cfg(test)]
mod tests;
