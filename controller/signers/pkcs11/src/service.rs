//! The gRPC service.

use std::error::Error;
use std::sync::Arc;
use std::time::SystemTime;

use node_attestation_signer_api::external_signer_server::ExternalSigner;
use node_attestation_signer_api::{
    SignRequest, SignResponse, StatusRequest, StatusResponse, VERSION,
};
use tonic::{Request, Response, Status};

use crate::authority::{Authority, Cluster};
use crate::policy;
use crate::server_names::Reserved;
use crate::token::{Token, TokenError};

/// Signs for some CAs with the keys of one token.
pub(crate) struct Service {
    token: Arc<Token>,
    authorities: Vec<Authority>,
    reserved: Reserved,
    clock: fn() -> SystemTime,
}

impl Service {
    /// Checks that the token has all keys.
    pub(crate) fn new(
        token: Token,
        authorities: Vec<Authority>,
        reserved: Reserved,
        clock: fn() -> SystemTime,
    ) -> Result<Self, TokenError> {
        for authority in &authorities {
            token.check_key(&authority.key_label)?;
        }
        Ok(Self {
            token: Arc::new(token),
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

    /// Asks the token in a thread that may wait for it.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Token) -> Result<T, TokenError> + Send + 'static,
    ) -> Result<T, Status> {
        let token = self.token.clone();
        let answer = tokio::task::spawn_blocking(move || question(&token)).await;
        let answer = answer.map_err(|_| Status::internal("the signer failed"))?;
        answer.map_err(|error| {
            let error = chain(&error);
            tracing::error!(error, "the token did not answer");
            Status::unavailable(error)
        })
    }
}

#[tonic::async_trait]
impl ExternalSigner for Service {
    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let health = match self.ask(Token::check).await {
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
        let message = request.tbs_certificate;
        let signed = self.ask(move |token| token.sign(&label, algorithm, &message));
        let signature = signed.await?;
        let policy::NodeCertificate { user, serial } = certificate;
        tracing::info!(
            namespace = request.cluster_namespace,
            cluster = request.cluster_name,
            user,
            serial,
            "signed"
        );
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
