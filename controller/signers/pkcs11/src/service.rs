//! The gRPC service.

use std::error::Error;
use std::sync::Arc;
use std::time::SystemTime;

use node_attestation_signer_api::external_signer_server::ExternalSigner;
use node_attestation_signer_api::{
    SignRequest, SignResponse, StatusRequest, StatusResponse, VERSION,
};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::authority::{Authority, Cluster};
use crate::policy;
use crate::server_names::Reserved;
use crate::token::{Keys, TokenError};

/// Signs for some CAs with the keys of one token.
pub(crate) struct Service<T> {
    token: Arc<T>,
    /// One for each thread that waits for the token. A call whose deadline is over leaves its thread behind, which keeps
    /// the permit until the token answers.
    permits: Arc<Semaphore>,
    authorities: Vec<Authority>,
    reserved: Reserved,
    clock: fn() -> SystemTime,
}

impl<T: Keys> Service<T> {
    /// Checks that the token has all keys, unless it refused the PIN: then each call tells that. It is asked for as many
    /// things at a time as `calls`.
    pub(crate) fn new(
        token: T,
        calls: usize,
        authorities: Vec<Authority>,
        reserved: Reserved,
        clock: fn() -> SystemTime,
    ) -> Result<Self, TokenError> {
        for authority in &authorities {
            match token.check_key(&authority.key_label) {
                Err(error @ TokenError::PinRefused) => {
                    tracing::error!(error = chain(&error), "nothing can be signed");
                    break;
                }
                checked => checked?,
            }
        }
        Ok(Self {
            token: Arc::new(token),
            permits: Arc::new(Semaphore::new(calls)),
            authorities,
            reserved,
            clock,
        })
    }

    /// The CA, if it is one of this cluster.
    fn authority(&self, request: &SignRequest) -> Option<&Authority> {
        let cluster = Cluster {
            namespace: request.cluster_namespace.clone(),
            name: request.cluster_name.clone(),
        };
        let mut all = self.authorities.iter();
        all.find(|one| {
            one.cluster == cluster && one.sha256.as_slice() == request.ca_certificate_sha256
        })
    }

    /// Asks the token in a thread that may wait for it. The question is asked to its end, also when nobody waits for the
    /// answer any more.
    async fn ask<A: Send + 'static>(
        &self,
        question: impl FnOnce(&T) -> Result<A, TokenError> + Send + 'static,
    ) -> Result<A, Status> {
        let permit = self.permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| {
            tracing::warn!("refused: the token is busy");
            Status::resource_exhausted("the token has not answered the calls before this one")
        })?;
        let token = self.token.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let answer = question(&token);
            drop(permit);
            answer
        });
        let answer = answer.await;
        let answer = answer.map_err(|_| Status::internal("the signer failed"))?;
        answer.map_err(|error| {
            let error = chain(&error);
            tracing::error!(error, "the token did not answer");
            Status::unavailable(error)
        })
    }
}

#[tonic::async_trait]
impl<T: Keys> ExternalSigner for Service<T> {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let health = match self.ask(T::check).await {
            Ok(()) => "ok".to_owned(),
            Err(status) => status.message().to_owned(),
        };
        Ok(Response::new(StatusResponse {
            version: VERSION.to_owned(),
            health,
        }))
    }

    async fn sign(&self, request: Request<SignRequest>) -> Result<Response<SignResponse>, Status> {
        let request = request.into_inner();
        let (namespace, cluster) = (&request.cluster_namespace, &request.cluster_name);
        let Some(authority) = self.authority(&request) else {
            tracing::warn!(namespace, cluster, "refused: the CA is not of this cluster");
            return Err(Status::permission_denied(
                "this signer has no key of this CA for this cluster",
            ));
        };
        let algorithm = request.algorithm();
        let certificate = match policy::check(
            &request.tbs_certificate,
            authority,
            algorithm,
            &self.reserved,
            (self.clock)(),
        ) {
            Ok(certificate) => certificate,
            Err(refused) => {
                let reason = refused.to_string();
                tracing::warn!(namespace, cluster, reason, "refused");
                return Err(Status::permission_denied(reason));
            }
        };
        let label = authority.key_label.clone();
        let signed = self.ask(move |token| {
            let signature = token.sign(&label, algorithm, &request.tbs_certificate)?;
            let policy::NodeCertificate { user, serial } = certificate;
            // Here, so that no signature is without its line, though nobody waits for it any more.
            tracing::info!(
                namespace = request.cluster_namespace,
                cluster = request.cluster_name,
                user,
                serial,
                "signed"
            );
            Ok(signature)
        });
        let signature = signed.await?;
        Ok(Response::new(SignResponse { signature }))
    }
}

/// The error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests;
